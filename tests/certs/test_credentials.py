"""What an endpoint loads: files that belong together, and a revocation list that only grows."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from metis.certs import authority
from metis.certs.credentials import Credentials, CrlChange, find
from metis.core.errors import IdentityError
from tests.certs.consortium import NOW, Consortium, altered, consortium, days


def put(content: bytes, path: Path) -> None:
    """Copy as people do: the file is another one afterwards, whatever the clock's grain."""
    beside = path.with_name("copied")
    beside.write_bytes(content)
    os.replace(beside, path)


@pytest.fixture
def hub(ours: Consortium) -> Path:
    return ours.admit("hub", "controller")


# ---- files that belong together ---------------------------------------------------------------


def test_an_endpoint_knows_who_it_is(ours: Consortium, hub: Path) -> None:
    credentials = Credentials(hub, NOW)

    assert (credentials.identity.name, credentials.identity.role) == ("hub", "controller")
    assert credentials.crl_number == 1
    assert credentials.valid_until == NOW + days(365)
    assert credentials.certificate_pem == (hub / "hub.crt").read_bytes()
    assert credentials.ca_pem == (ours.directory / "ca.crt").read_bytes()
    assert credentials.key_pem == (hub / "hub.key").read_bytes()


def test_files_can_lie_anywhere(ours: Consortium, hub: Path) -> None:
    paths = replace(
        find(hub), ca=ours.directory / "ca.crt", crl=(ours.directory / "crl.pem").resolve()
    )
    (hub / "ca.crt").unlink()
    (hub / "crl.pem").unlink()

    assert Credentials(paths, NOW).identity.name == "hub"


def test_of_several_keys_one_is_chosen_by_name(ours: Consortium, hub: Path) -> None:
    for file in ours.admit("site-a").glob("site-a.*"):
        shutil.copy(file, hub)
    shutil.copy(ours.directory / "ca.key", hub)  # the authority's own key is nobody's identity

    with pytest.raises(IdentityError, match="holds keys of hub, site-a; say whose to use"):
        Credentials(hub, NOW)

    assert Credentials(hub, NOW, name="site-a").identity.role == "learner"


def test_a_directory_without_a_key_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="holds no key; make one with metis certs request"):
        Credentials(tmp_path, NOW)


@pytest.mark.parametrize("missing", ["hub.crt", "ca.crt"])
def test_a_missing_file_is_named(hub: Path, missing: str) -> None:
    (hub / missing).unlink()

    with pytest.raises(IdentityError, match=rf"{missing}: No such file"):
        Credentials(hub, NOW)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o602, 0o660])
def test_a_private_key_that_others_can_use_is_refused(hub: Path, mode: int) -> None:
    (hub / "hub.key").chmod(mode)

    with pytest.raises(IdentityError, match=rf"hub.key: .*mode {mode:04o}.*chmod 600 .*hub.key"):
        Credentials(hub, NOW)

    (hub / "hub.key").chmod(0o400)
    assert Credentials(hub, NOW).identity.name == "hub"


def test_a_certificate_of_another_key_is_refused(ours: Consortium, hub: Path) -> None:
    shutil.copy(ours.admit("site-a") / "site-a.crt", hub / "hub.crt")

    with pytest.raises(IdentityError, match=r"hub.crt: is not the certificate of the key in .*key"):
        Credentials(hub, NOW)


def test_a_certificate_of_another_authority_is_refused(theirs: Consortium, hub: Path) -> None:
    shutil.copy(theirs.directory / "ca.crt", hub)
    shutil.copy(theirs.directory / "crl.pem", hub)

    with pytest.raises(IdentityError, match=r"hub.crt: .*hub is signed by another authority"):
        Credentials(hub, NOW)


def test_ones_own_certificate_must_be_valid(ours: Consortium, hub: Path) -> None:
    with pytest.raises(IdentityError, match=r"hub.crt: certificate of hub expired on"):
        Credentials(hub, NOW + days(400))
    with pytest.raises(IdentityError, match=r"hub2.crt: certificate of hub2 is not valid"):
        Credentials(ours.admit("hub2", "controller", NOW + days(9)), NOW - days(0.001))

    authority.revoke(ours.directory, "hub", NOW)
    shutil.copy(ours.directory / "crl.pem", hub)
    with pytest.raises(IdentityError, match=r"hub.crt: certificate of hub was revoked on"):
        Credentials(hub, NOW)


def test_a_controller_must_have_a_revocation_list(hub: Path) -> None:
    (hub / "crl.pem").unlink()

    with pytest.raises(IdentityError, match=r"crl.pem: is missing.*copy it from the authority"):
        Credentials(hub, NOW)


def test_a_learner_may_have_none_and_take_one_later(ours: Consortium) -> None:
    site = ours.admit("site-a")
    (site / "crl.pem").unlink()
    credentials = Credentials(site, NOW)

    assert credentials.crl_number is None
    assert credentials.refresh() is None
    shutil.copy(ours.directory / "crl.pem", site)
    assert credentials.refresh() == CrlChange(True, 1, "revocation list number 1: 0 revoked")
    assert credentials.crl_number == 1


def test_the_key_is_in_no_description(hub: Path) -> None:
    credentials = Credentials(hub, NOW)

    assert repr(credentials) == str(credentials) == "Credentials(hub, controller)"


# ---- judging peers ----------------------------------------------------------------------------


def test_a_revocation_counts_as_soon_as_its_file_is_there(ours: Consortium, hub: Path) -> None:
    pem = (ours.admit("site-b") / "site-b.crt").read_bytes()
    told: list[CrlChange] = []
    credentials = Credentials(hub, NOW, on_crl=told.append)
    assert credentials.identity_of(pem, NOW).name == "site-b"

    authority.revoke(ours.directory, "site-b", NOW)
    assert credentials.identity_of(pem, NOW).name == "site-b"  # nobody has copied it yet
    put((ours.directory / "crl.pem").read_bytes(), hub / "crl.pem")

    for _ in range(2):
        with pytest.raises(IdentityError, match="certificate of site-b was revoked on"):
            credentials.identity_of(pem, NOW)
    assert told == [CrlChange(True, 2, "revocation list number 2: 1 revoked")]


def test_a_new_list_is_seen_even_if_size_and_time_are_those_of_the_old(
    ours: Consortium, hub: Path
) -> None:
    credentials = Credentials(hub, NOW)
    before = (hub / "crl.pem").stat()

    put((hub / "crl.pem").read_bytes()[::-1], hub / "crl.pem")
    os.utime(hub / "crl.pem", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert (hub / "crl.pem").stat().st_size == before.st_size
    assert credentials.refresh() is not None


def test_a_peer_of_another_authority_is_refused(theirs: Consortium, hub: Path) -> None:
    pem = (theirs.admit("site-b") / "site-b.crt").read_bytes()

    with pytest.raises(IdentityError, match="signed by another authority"):
        Credentials(hub, NOW).identity_of(pem, NOW)


def test_a_list_that_is_old_foreign_or_damaged_is_refused_and_the_newer_kept(
    ours: Consortium, theirs: Consortium, hub: Path
) -> None:
    pem = (ours.admit("site-b") / "site-b.crt").read_bytes()
    old = (hub / "crl.pem").read_bytes()
    authority.revoke(ours.directory, "site-b", NOW)
    new = (ours.directory / "crl.pem").read_bytes()
    put(new, hub / "crl.pem")
    credentials = Credentials(hub, NOW)
    # Number 1 is 020101 in a list and nowhere else in it.
    forged = altered(old, bytes.fromhex("0403020101"), bytes.fromhex("0403020109"))

    for content, why in (
        (old, "is an old revocation list: number 1, but 2 is known; number 2 is kept"),
        ((theirs.directory / "crl.pem").read_bytes(), "did not sign"),
        (forged, "did not sign, or that was changed since; number 2 is kept"),
        (new[: len(new) // 2], "is no revocation list (CRL); number 2 is kept"),
        (b"", "is no revocation list"),
    ):
        put(content, hub / "crl.pem")
        change = credentials.refresh()
        assert change is not None
        assert not change.taken
        assert change.number == 2
        assert why in change.message
        assert change.message.startswith("refused: ")
        assert credentials.refresh() is None  # said once
        with pytest.raises(IdentityError, match="revoked"):
            credentials.identity_of(pem, NOW)


def test_a_list_that_vanishes_is_kept_in_mind(ours: Consortium, hub: Path) -> None:
    credentials = Credentials(hub, NOW)
    (hub / "crl.pem").unlink()

    change = credentials.refresh()

    assert change is not None
    assert not change.taken
    assert "No such file" in change.message
    assert credentials.crl_number == 1


def test_a_list_touched_or_copied_again_is_no_new_one(hub: Path) -> None:
    credentials = Credentials(hub, NOW)
    put((hub / "crl.pem").read_bytes(), hub / "crl.pem")

    change = credentials.refresh()

    assert change is not None
    assert change.taken
    assert change.number == 1


def test_an_authority_restored_from_an_old_backup_cannot_forget_a_revocation(
    ours: Consortium, hub: Path
) -> None:
    for name in ("site-a", "site-b", "site-c"):
        ours.admit(name)
    backup = (ours.directory / "crl.pem").read_bytes()
    authority.revoke(ours.directory, "site-a", NOW)
    put((ours.directory / "crl.pem").read_bytes(), hub / "crl.pem")
    credentials = Credentials(hub, NOW)

    (ours.directory / "crl.pem").write_bytes(backup)
    for name, why in (
        ("site-b", "differs from the revocation list of number 2"),
        ("site-c", "has lost certificates that were revoked before"),
    ):
        authority.revoke(ours.directory, name, NOW)
        put((ours.directory / "crl.pem").read_bytes(), hub / "crl.pem")
        change = credentials.refresh()
        assert change is not None
        assert not change.taken
        assert why in change.message


def test_a_number_remembered_over_a_restart_counts(ours: Consortium, hub: Path) -> None:
    assert Credentials(hub, NOW, minimum_crl_number=1).crl_number == 1

    with pytest.raises(IdentityError, match=r"crl.pem: is an old .*: number 1, but 7 is known"):
        Credentials(hub, NOW, minimum_crl_number=7)


def test_a_damaged_list_at_the_start_is_no_list(hub: Path) -> None:
    (hub / "crl.pem").write_bytes(b"nonsense")

    with pytest.raises(IdentityError, match=r"crl.pem: is no revocation list"):
        Credentials(hub, NOW)


def test_many_threads_see_a_new_list_once(tmp_path: Path) -> None:
    ours = consortium(tmp_path / "ours")
    hub = ours.admit("hub", "controller")
    pem = (ours.admit("site-a") / "site-a.crt").read_bytes()
    told: list[CrlChange] = []
    credentials = Credentials(hub, NOW, on_crl=told.append)
    authority.revoke(ours.directory, "site-a", NOW)
    put((ours.directory / "crl.pem").read_bytes(), hub / "crl.pem")
    refusals: list[str] = []

    def ask() -> None:
        for _ in range(20):
            try:
                credentials.identity_of(pem, NOW)
            except IdentityError as error:
                refusals.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(told) == 1
    assert len(refusals) == 160
