"""Who is not who they would have to be is turned away, and told why; the others work on."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from metis.certs import authority
from metis.core.errors import HandshakeError, IdentityError, LineError, MetisError
from metis.service.connection import TrainOrder
from metis.service.grpc.client import GrpcConnection, Operator
from metis.service.grpc.server import server_credentials
from tests.certs.consortium import Consortium, consortium, days
from tests.service.hub import NOW, Hub, Steady, credentials_in, eventually, hub


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    return consortium(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def guarded(ours: Consortium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A controller with mutual TLS."""
    with hub(tmp_path_factory.mktemp("guarded"), ours) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A controller without certificates."""
    with hub(tmp_path_factory.mktemp("plain")) as found:
        yield found


@pytest.fixture(scope="module")
def steady(guarded: Hub) -> Iterator[Steady]:
    found = Steady(guarded)
    assert found.goes_on(1)
    yield found
    found.stop()
    assert found.failures == []


def refusal(
    address: str, credentials: grpc.ChannelCredentials | None, name: str = "x"
) -> MetisError:
    """Return what somebody is told who asks for the charter, which every learner may have."""
    line = GrpcConnection(address, name, credentials)
    began = time.monotonic()
    try:
        with pytest.raises(MetisError) as caught:
            line.charter()
    finally:
        line.close()
    assert time.monotonic() - began < 20
    return caught.value


# ---- certificates that TLS itself refuses -----------------------------------------------------


def foreign(ours: Consortium, tmp_path: Path) -> grpc.ChannelCredentials:
    """A certificate of another authority, of a name that ours has certified too."""
    theirs = consortium(tmp_path / "theirs")
    folder = theirs.admit("steady")
    shutil.copy(ours.directory / "ca.crt", folder)  # it believes the controller
    return credentials_in(folder, "steady")


def expired(ours: Consortium, tmp_path: Path) -> grpc.ChannelCredentials:
    folder = ours.admit("late", now=NOW - days(400), valid_days=30)
    return credentials_in(folder, "late")


def nobody(ours: Consortium, tmp_path: Path) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((ours.directory / "ca.crt").read_bytes())


def in_the_clear(ours: Consortium, tmp_path: Path) -> None:
    return None


def self_made(ours: Consortium, tmp_path: Path) -> grpc.ChannelCredentials:
    """A right certificate with another's key is no proof."""
    one = ours.admit("one-key")
    other = consortium(tmp_path / "other").admit("one-key")
    shutil.copy(one / "one-key.crt", other)
    shutil.copy(ours.directory / "ca.crt", other)
    return credentials_in(other, "one-key")


@pytest.mark.parametrize("who", [foreign, expired, nobody, in_the_clear, self_made])
def test_a_stranger_gets_no_connection_and_the_others_notice_nothing(
    who: Callable[[Consortium, Path], grpc.ChannelCredentials | None],
    guarded: Hub,
    ours: Consortium,
    steady: Steady,
    tmp_path: Path,
) -> None:
    joins = len(guarded.records("join"))

    error = refusal(guarded.address, who(ours, tmp_path))

    assert isinstance(error, LineError)
    assert "cannot be reached" in str(error)
    assert len(guarded.records("join")) == joins
    assert steady.goes_on()


def test_tls_on_a_port_without_it_is_no_connection(plain: Hub, guarded: Hub) -> None:
    error = refusal(plain.address, guarded.credentials("site-a"))

    assert isinstance(error, LineError)
    with plain.member("somebody") as good:
        assert good.round().taken


def test_a_learner_cannot_pose_as_the_controller(ours: Consortium, guarded: Hub) -> None:
    folder = guarded.folder("impostor")
    files = (folder / "impostor.key", folder / "impostor.crt", folder / "ca.crt")
    server = grpc.server(ThreadPoolExecutor(1))
    made = server_credentials(*(file.read_bytes() for file in files))
    port = server.add_secure_port("127.0.0.1:0", made)
    server.start()

    error = refusal(f"127.0.0.1:{port}", guarded.credentials("site-a"))

    server.stop(grace=None).wait()
    assert isinstance(error, LineError)


# ---- certificates that are good for something else --------------------------------------------


def test_the_controllers_certificate_is_not_a_learners(guarded: Hub, ours: Consortium) -> None:
    credentials = credentials_in(ours.root / "hub", "hub")

    error = refusal(guarded.address, credentials, "hub")

    assert isinstance(error, IdentityError | LineError)
    assert "hub" not in {record["learner"] for record in guarded.records("join")}


def test_an_operator_cannot_join(guarded: Hub, steady: Steady) -> None:
    with guarded.line("anna", "operator") as line, pytest.raises(IdentityError) as caught:
        line.join(guarded.hello("anna"))

    assert "anna is an operator; this is for a learner alone" in str(caught.value)
    assert any("this is for a learner" in reason for reason in guarded.audits("anna"))


def test_a_learner_cannot_stop_the_federation(guarded: Hub, steady: Steady) -> None:
    operator = Operator(guarded.address, "anna", guarded.credentials("mutineer"))

    with pytest.raises(IdentityError, match="mutineer is a learner; this is for an operator"):
        operator.stop("because I can")

    operator.close()
    assert any("operator alone" in reason for reason in guarded.audits("mutineer"))
    assert guarded.process.poll() is None
    assert steady.goes_on()


def test_a_learner_that_was_refused_something_may_still_do_its_work_at_once(guarded: Hub) -> None:
    credentials = guarded.credentials("hasty")
    operator = Operator(guarded.address, "hasty", credentials)
    with guarded.line("hasty") as line:
        with pytest.raises(IdentityError):
            operator.stop("by mistake")
        charter = line.charter()

    operator.close()
    assert charter.num_classes == 3


# ---- somebody else's name ---------------------------------------------------------------------


def test_a_name_is_the_certificates_whatever_a_caller_says(guarded: Hub, steady: Steady) -> None:
    credentials = guarded.credentials("mallory")
    line = GrpcConnection(guarded.address, "steady", credentials)
    before = [r for r in guarded.records("join", "leave") if r["learner"] == "steady"]

    line.join(guarded.hello("steady"))
    line.leave(withdraw=True)

    line.close()
    after = [r for r in guarded.records("join", "leave") if r["learner"] == "steady"]
    assert after == before
    mine = [r["kind"] for r in guarded.records("join", "leave") if r["learner"] == "mallory"]
    assert mine == ["join", "leave"]
    assert steady.goes_on()


def test_a_learner_cannot_answer_anothers_task(guarded: Hub) -> None:
    with guarded.member("worker") as worker, guarded.member("thief") as thief:
        order = worker.next(TrainOrder)
        own = thief.next(TrainOrder)

        receipt = thief.answer(order)
        standing = thief.line.progress(order.task, 1)
        thief.line.fail(order.task, "not mine to fail")

        assert not receipt.taken
        assert receipt.reason == "no such task is open for this learner"
        assert not standing.is_open
        assert worker.answer(order).taken
        assert thief.answer(own).taken


# ---- revoked ----------------------------------------------------------------------------------


def replace_crl(ours: Consortium) -> None:
    """Bring the authority's newest list to the controller, as a careful administrator does."""
    target = ours.root / "hub" / "crl.pem"
    shutil.copy(ours.directory / "crl.pem", target.with_suffix(".new"))
    target.with_suffix(".new").rename(target)


def test_a_revocation_ends_orders_and_calls_within_seconds(
    guarded: Hub, ours: Consortium, steady: Steady
) -> None:
    ended: list[Exception] = []
    with guarded.line("traitor") as line:
        line.join(guarded.hello("traitor"))
        orders = line.orders()
        next(orders)  # it is connected, and has work

        def listen() -> None:
            try:
                for _ in orders:
                    pass
            except MetisError as error:
                ended.append(error)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        authority.revoke(ours.directory, "traitor", NOW)
        replace_crl(ours)
        began = time.monotonic()
        listener.join(timeout=20)
        took = time.monotonic() - began
        with pytest.raises(IdentityError) as caught:
            line.progress(1, 1)

    assert not listener.is_alive()
    assert took < 5
    assert isinstance(ended[0], IdentityError)
    assert "traitor was revoked on" in str(ended[0])
    assert "traitor was revoked on" in str(caught.value)
    assert any("was revoked on" in reason for reason in guarded.audits("traitor"))
    taken = [r for r in guarded.records("audit") if r["what"] == "revocation list taken"]
    assert taken
    assert steady.goes_on()


def test_a_revoked_certificate_is_refused_at_the_door(guarded: Hub, ours: Consortium) -> None:
    credentials = guarded.credentials("outcast")
    authority.revoke(ours.directory, "outcast", NOW)
    replace_crl(ours)

    error = refusal(guarded.address, credentials)

    assert isinstance(error, IdentityError)
    assert "certificate of outcast was revoked on" in str(error)
    assert eventually(lambda: bool(guarded.audits("outcast")))


def test_an_older_revocation_list_brings_nobody_back(guarded: Hub, ours: Consortium) -> None:
    credentials = guarded.credentials("stubborn")
    older = (ours.directory / "crl.pem").read_bytes()
    authority.revoke(ours.directory, "stubborn", NOW)
    replace_crl(ours)
    first = refusal(guarded.address, credentials)

    (ours.root / "hub" / "crl.pem").write_bytes(older)
    second = refusal(guarded.address, credentials)

    replace_crl(ours)
    assert isinstance(first, IdentityError)
    assert "stubborn was revoked on" in str(second)
    refused = [r for r in guarded.records("audit") if r["what"] == "revocation list refused"]
    assert "is an old revocation list" in refused[-1]["reason"]


# ---- handshakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"protocol": 999}, "protocol 999"),
        ({"protocol": 0}, "protocol 0"),
        ({"layout": "0" * 16}, "model layout 0000000000000000"),
        ({"config": "f" * 16}, "config ffffffffffffffff"),
        ({"config": "x" * 3_000_000}, "config xxx"),
        ({"layout": "\x1b[2J\n" * 1000}, "model layout"),
    ],
    ids=["newer", "never", "layout", "config", "huge config", "odd layout"],
)
def test_a_site_of_another_federation_is_told_what_differs(
    said: dict[str, object], reason: str, guarded: Hub, steady: Steady, request: Any
) -> None:
    name = "odd-" + request.node.callspec.id.replace(" ", "-")  # of one, not all would be noted
    before = guarded.rss_mib()
    with guarded.line(name) as line, pytest.raises(HandshakeError) as caught:
        line.join(guarded.hello(name, **said))

    assert reason in str(caught.value)
    assert "they must be equal" in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert any(reason in audit for audit in guarded.audits(name))
    assert "\x1b" not in guarded.said()
    assert guarded.rss_mib() - before < 64
    assert steady.goes_on()


def test_a_controller_among_strangers_says_nothing_unforeseen(guarded: Hub) -> None:
    """Last in this file: what the process wrote while all of the above happened."""
    assert guarded.process.poll() is None
    assert "Traceback" not in guarded.said()
