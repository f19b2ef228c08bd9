"""The gate: who may call, how often, how many at once, and what is noted of refusals."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime

import grpc
import pytest

from metis.core.errors import (
    GoneError,
    HandshakeError,
    IdentityError,
    LineError,
    ModelError,
)
from metis.live.settings import CallLimits
from metis.security.identity import Identity
from metis.transport.gate import (
    NAME,
    Gate,
    Identified,
    by_certificate,
    by_name,
    reason_code,
)


@dataclass(frozen=True, slots=True)
class Context:
    """As much of a call as the gate looks at."""

    name: str | None = "site-a"
    address: str = "ipv4:10.0.0.1:5000"
    certificates: tuple[bytes, ...] = ()

    def peer(self) -> str:
        return self.address

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("other", "x")] if self.name is None else [("other", "x"), (NAME, self.name)]

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": list(self.certificates)} if self.certificates else {}


@dataclass(slots=True)
class Watched:
    """A gate with a clock that stands still, and all that it has noted."""

    limits: CallLimits = field(
        default_factory=lambda: CallLimits(calls_per_second=10.0, calls_at_once=3)
    )
    now: float = 1000.0
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    gate: Gate = field(init=False)

    def __post_init__(self) -> None:
        self.gate = Gate(by_name, self.limits, self.note, lambda: self.now)

    def note(self, what: str, who: str, reason: str) -> None:
        self.notes.append((what, who, reason))

    def call(self, name: str | None = "site-a", address: str = "ipv4:10.0.0.1:5000") -> str:
        with self.gate.open(Context(name, address), "learner") as who:
            return who

    def num_let_in(self, attempts: int, name: str = "site-a") -> int:
        let_in = 0
        for _ in range(attempts):
            try:
                self.call(name)
                let_in += 1
            except LineError:
                pass
        return let_in


def roles_by_name(context: grpc.ServicerContext) -> Identified:
    """Knows an operator, called anna; all others are learners."""
    name = by_name(context).name
    return Identity(name, "operator" if name == "anna" else "learner", 1)


# ---- how often --------------------------------------------------------------------------------


def test_a_burst_of_two_seconds_worth_is_let_in_and_no_more() -> None:
    watched = Watched()

    assert watched.num_let_in(50) == 20


def test_what_is_let_in_after_a_burst_is_the_rate() -> None:
    watched = Watched()
    watched.num_let_in(50)
    found = []
    for _ in range(5):
        watched.now += 1.0
        found.append(watched.num_let_in(50))

    assert found == [10] * 5


def test_a_long_rest_earns_no_more_than_one_burst() -> None:
    watched = Watched()
    watched.num_let_in(50)
    watched.now += 3600.0

    assert watched.num_let_in(50) == 20


def test_calls_that_were_put_off_do_not_count_against_the_rate() -> None:
    watched = Watched()
    watched.num_let_in(10_000)
    watched.now += 1.0

    assert watched.num_let_in(1) == 1


def test_one_callers_rate_is_not_anothers() -> None:
    watched = Watched()
    watched.num_let_in(50, "site-a")

    assert watched.num_let_in(50, "site-b") == 20


def test_who_calls_too_often_is_told_so_in_words() -> None:
    watched = Watched()
    watched.num_let_in(20)

    with pytest.raises(LineError, match="site-a calls more than 10 times a second; try again late"):
        watched.call()


def test_a_clock_that_stands_still_or_goes_back_lets_nobody_in_for_free() -> None:
    watched = Watched()
    watched.num_let_in(20)
    watched.now -= 5.0

    assert watched.num_let_in(5) == 0


# ---- at once ----------------------------------------------------------------------------------


def test_no_more_calls_than_allowed_are_under_way_at_once() -> None:
    watched = Watched()
    with ExitStack() as under_way:
        for _ in range(3):
            under_way.enter_context(watched.gate.open(Context(), "learner"))

        with pytest.raises(LineError, match="site-a has 3 calls under way, which is all it may"):
            watched.call()
        other = watched.call("site-b")

    assert other == "site-b"
    assert watched.call() == "site-a"


def test_a_call_that_fails_is_not_under_way_any_more() -> None:
    watched = Watched()
    for _ in range(10):
        with pytest.raises(ModelError), watched.gate.open(Context(), "learner"):
            raise ModelError("of the call itself")

    assert watched.call() == "site-a"


def test_a_call_that_was_put_off_is_not_counted_as_under_way() -> None:
    watched = Watched()
    with ExitStack() as under_way:
        for _ in range(3):
            under_way.enter_context(watched.gate.open(Context(), "learner"))
        watched.num_let_in(10)

    with ExitStack() as under_way:
        for _ in range(3):
            under_way.enter_context(watched.gate.open(Context(), "learner"))


def test_calls_under_way_are_still_counted_when_accounts_were_forgotten() -> None:
    watched = Watched(CallLimits(calls_per_second=10.0, calls_at_once=1))
    with watched.gate.open(Context(), "learner"):
        for number in range(10_100):
            with pytest.raises(IdentityError):
                watched.call(None, f"ipv4:10.0.{number // 250}.{number % 250}:1")

        assert watched.num_let_in(1) == 0


# ---- who --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "", "x" * 65, "two\nlines", "bell\x07"])
def test_a_caller_in_plain_text_must_have_a_name_that_is_one(name: str | None) -> None:
    watched = Watched()

    with pytest.raises(IdentityError, match="must say its name"):
        watched.call(name)


def test_a_caller_without_a_certificate_is_nobody() -> None:
    identify = by_certificate(lambda pem, now: Identity("never", "learner", 1))

    with pytest.raises(IdentityError, match="without a certificate is nobody"):
        identify(Context("site-a"))


def test_a_certificate_is_looked_at_anew_for_every_call_and_names_are_not_believed() -> None:
    seen: list[tuple[bytes, datetime]] = []

    def look(pem: bytes, now: datetime) -> Identity:
        seen.append((pem, now))
        return Identity("of-the-certificate", "learner", 1)

    gate = Gate(by_certificate(look))
    for _ in range(2):
        with gate.open(Context("somebody-else", certificates=(b"pem",)), "learner") as who:
            assert who == "of-the-certificate"

    assert [pem for pem, _ in seen] == [b"pem", b"pem"]
    assert seen[0][1].tzinfo is not None


def test_a_role_that_does_not_fit_is_refused_and_noted() -> None:
    watched = Watched()
    gate = Gate(roles_by_name, watched.limits, watched.note, lambda: watched.now)

    with pytest.raises(IdentityError), gate.open(Context("site-a"), "operator"):
        pass

    ((what, who, reason),) = watched.notes
    assert (what, who) == ("call refused", "site-a")
    assert "site-a is a learner; this is for an operator alone" in reason


def test_a_refusal_does_not_use_up_what_a_caller_may_do() -> None:
    watched = Watched()
    gate = Gate(roles_by_name, watched.limits, watched.note, lambda: watched.now)
    with pytest.raises(IdentityError), gate.open(Context("site-a"), "operator"):
        pass

    with gate.open(Context("site-a"), "learner") as who:
        assert who == "site-a"


# ---- what is noted ----------------------------------------------------------------------------


def test_refusals_of_one_address_are_noted_once_in_ten_seconds_and_counted() -> None:
    watched = Watched()
    for port in range(100):
        with pytest.raises(IdentityError):
            watched.call(None, f"ipv4:10.0.0.1:{port}")
    first = list(watched.notes)
    watched.now += 10.0
    with pytest.raises(IdentityError):
        watched.call(None, "ipv4:10.0.0.1:9")

    assert len(first) == 1
    assert first[0][:2] == ("call refused", "10.0.0.1")
    assert len(watched.notes) == 2
    assert "(and 99 more since the last note)" in watched.notes[1][2]


def test_refusals_of_different_addresses_are_each_noted() -> None:
    watched = Watched()
    for host in range(5):
        with pytest.raises(IdentityError):
            watched.call(None, f"ipv4:10.0.0.{host}:1")

    assert [who for _, who, _ in watched.notes] == [f"10.0.0.{host}" for host in range(5)]


def test_two_who_are_refused_from_one_address_are_both_noted() -> None:
    """Behind one address there may be a whole hospital."""
    watched = Watched()

    def revoked(context: grpc.ServicerContext) -> Identified:
        raise IdentityError(f"certificate of {by_name(context).name} was revoked")

    gate = Gate(revoked, watched.limits, watched.note, lambda: watched.now)
    for name in ("site-a", "site-b"):
        with pytest.raises(IdentityError), gate.open(Context(name), "learner"):
            pass

    noted = " ".join(reason for _, _, reason in watched.notes)
    assert "site-a was revoked" in noted
    assert "site-b was revoked" in noted


def test_a_caller_that_is_put_off_is_noted_by_name_and_not_for_every_call() -> None:
    watched = Watched()
    watched.num_let_in(1000)

    assert [(what, who) for what, who, _ in watched.notes] == [("call put off", "site-a")]
    assert "site-a calls more than 10 times a second" in watched.notes[0][2]


# ---- bounded ----------------------------------------------------------------------------------


def test_addresses_by_the_ten_thousands_are_forgotten_again() -> None:
    watched = Watched()
    for number in range(25_000):
        with pytest.raises(IdentityError):
            watched.call(None, f"ipv6:[2001:db8::{number:x}]:1")

    assert len(watched.gate._complaints._known) <= 10_001


def test_names_by_the_ten_thousands_are_forgotten_again() -> None:
    """In plain text a name is whatever a caller says, so there are as many as it likes."""
    watched = Watched()
    for number in range(25_000):
        watched.call(f"site-{number}")

    assert len(watched.gate._accounts) <= 10_001


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IdentityError("x"), grpc.StatusCode.PERMISSION_DENIED),
        (HandshakeError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (LineError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ModelError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (GoneError("x"), grpc.StatusCode.NOT_FOUND),
    ],
)
def test_each_of_our_errors_has_a_status_of_its_own(
    error: Exception, code: grpc.StatusCode
) -> None:
    assert reason_code(error) is code
