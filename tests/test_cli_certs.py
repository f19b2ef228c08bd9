"""The verbs about certificates, as the people of a consortium use them."""

from __future__ import annotations

import shutil
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metis.cli import certs
from tests.command import Metis, Outcome, assert_refused


@pytest.fixture
def metis(metis: Metis) -> Metis:
    """The verbs about certificates, with a line of arguments."""
    return lambda line: metis("certs", *str(line).split())


@pytest.fixture
def consortium(metis: Metis) -> Metis:
    """The command line where there are an authority, a controller and two sites."""
    for line in (
        "init ca --name Hearts",
        "request hub --out hub --host hub.example.org --host 10.0.0.5",
        "request site-a --out site-a",
        "request site-b --out site-b",
        "issue hub --csr hub/hub.csr --ca ca --role controller --out hub/hub.crt",
        "issue site-a --csr site-a/site-a.csr --ca ca --out site-a/site-a.crt",
        "issue site-b --csr site-b/site-b.csr --ca ca --out site-b/site-b.crt",
    ):
        assert metis(line).code == 0
    for site in ("hub", "site-a", "site-b"):
        for file in ("ca.crt", "crl.pem"):
            shutil.copy(Path("ca") / file, site)
    return metis


def travel(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    later = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(certs, "now", lambda: later)


def states(outcome: Outcome) -> dict[str, str]:
    return {row["name"]: row["state"] for row in outcome.json["certificates"]}


def fingerprint_in(text: str) -> str:
    return text.partition("fingerprint: ")[2][:39]


# ---- init, request, issue ---------------------------------------------------------------------


def test_an_authority_says_what_goes_where(metis: Metis) -> None:
    outcome = metis("init ca --name Hearts")

    assert outcome.code == 0, outcome.err
    for words in ("'Hearts'", "ca.key    stays here", "ca.crt    goes to every site", "crl.pem"):
        assert words in outcome.out
    assert len(fingerprint_in(outcome.out).split()) == 8
    assert stat.S_IMODE(Path("ca/ca.key").stat().st_mode) == 0o600
    assert_refused(metis("init ca"), "ca: holds an authority already")


def test_both_sides_of_a_phone_call_read_the_same(metis: Metis) -> None:
    metis("init ca")

    asked = metis("request site-a --out there")
    shown = metis("show there/site-a.csr --json")
    issued = metis("issue site-a --csr there/site-a.csr --ca ca")

    spoken = fingerprint_in(asked.out)
    assert len(spoken) == 39
    assert shown.json["certificates"][0]["fingerprint"] == spoken
    assert fingerprint_in(issued.out) == spoken
    assert "metis certs revoke site-a --ca ca" in issued.out
    assert Path("ca/issued/site-a.crt").exists()


def test_a_spoken_fingerprint_is_compared(metis: Metis) -> None:
    metis("init ca")
    spoken = fingerprint_in(metis("request site-a --out there").out).replace(" ", "")
    issue = "issue site-a --csr there/site-a.csr --ca ca --fingerprint "

    assert_refused(metis(issue + spoken[::-1]), "there/site-a.csr", "not the one given")
    assert "as it was read out" in metis(issue + spoken).out


def test_a_controller_is_certified_with_its_hosts(consortium: Metis) -> None:
    shown = consortium("show hub/hub.crt --json").json["certificates"][0]

    assert (shown["role"], shown["hosts"]) == ("controller", ["hub.example.org", "10.0.0.5"])


def test_requests_that_are_not_in_order_are_refused(consortium: Metis) -> None:
    consortium("request other --out x")
    consortium("request learner --out x")
    issue = "issue other --ca ca --csr "

    assert_refused(consortium(issue + "nowhere.csr"), "nowhere.csr: No such file")
    assert_refused(consortium(issue + "site-a/site-a.csr"), "asks for the name 'site-a'")
    assert_refused(consortium(issue + "x/other.key"), "other.key: is no certificate request")
    assert_refused(consortium(issue + "x/other.csr --role king"), "unknown role 'king'", "learner")
    assert_refused(consortium(issue + "x/other.csr --role controller"), "--host")
    assert_refused(
        consortium("issue learner --ca ca --csr x/learner.csr --role operator"),
        "'learner' is reserved for a learner",
    )
    assert_refused(consortium("issue other --csr x/other.csr --ca hub"), "holds no authority")
    assert_refused(consortium("request a/b --out x"), "cannot be a name")
    assert_refused(consortium("request other --out x"), "never overwritten")
    assert_refused(consortium("request new --out x --host a:1"), "'a:1' is no host")


def test_a_second_certificate_must_be_asked_for(consortium: Metis) -> None:
    issue = "issue site-a --csr site-a/site-a.csr --ca ca"

    assert_refused(consortium(issue), "--renew", "metis certs revoke site-a")
    assert consortium(issue + " --renew --out site-a/site-a.crt").code == 0


def test_a_certificate_is_written_over_a_certificate_alone(consortium: Metis) -> None:
    issue = "issue site-a --csr site-a/site-a.csr --ca ca --renew --out "
    before = Path("site-a/site-a.key").read_bytes()

    assert_refused(consortium(issue + "site-a/site-a.key"), "what is there is no certificate")
    assert_refused(consortium(issue + "no/where.crt"), "its directory is not there")

    assert Path("site-a/site-a.key").read_bytes() == before
    assert len(list(Path("ca/issued").rglob("*.crt"))) == 3  # and nothing was issued


# ---- revoke -----------------------------------------------------------------------------------


def test_revoking_says_what_to_copy_where(consortium: Metis) -> None:
    first = consortium("revoke site-b --ca ca")
    again = consortium("revoke site-b --ca ca")

    assert first.out.startswith("revoked site-b: serial ")
    assert "copy ca/crl.pem (list number 2) to the controller" in first.out
    assert again.code == 0
    assert "was revoked already" in again.out
    assert "(list number 2)" in again.out
    assert_refused(consortium("revoke site-c --ca ca"), "unknown site 'site-c'", "site-a")


def test_a_revoked_site_needs_a_new_key(consortium: Metis) -> None:
    consortium("revoke site-b --ca ca")

    old = consortium("issue site-b --csr site-b/site-b.csr --ca ca")
    consortium("request site-b --out site-b/new")
    new = consortium("issue site-b --csr site-b/new/site-b.csr --ca ca")

    assert_refused(old, "this very key was revoked", "metis certs request site-b")
    assert new.code == 0


# ---- show -------------------------------------------------------------------------------------


def test_an_authority_is_shown_with_all_it_issued(
    consortium: Metis, monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium("revoke site-b --ca ca")
    found = consortium("show ca --json").json

    assert found["crl_number"] == 2
    assert found["notes"] == []
    assert {row["name"]: (row["role"], row["state"]) for row in found["certificates"]} == {
        "Hearts": ("authority", "valid"),
        "hub": ("controller", "valid"),
        "site-a": ("learner", "valid"),
        "site-b": ("learner", "revoked"),
    }
    travel(monkeypatch, 400)
    assert states(consortium("show ca --json")) == {
        "Hearts": "valid",
        "hub": "expired",
        "site-a": "expired",
        "site-b": "revoked",
    }


def test_the_table_fits_a_terminal(consortium: Metis, monkeypatch: pytest.MonkeyPatch) -> None:
    consortium("revoke site-b --ca ca")
    outcome = consortium("show ca")

    assert outcome.err == ""
    assert "…" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["hub.example.org"] in rows
    assert any(row[:2] + row[3:4] == ["site-b", "learner", "revoked"] for row in rows)
    assert "revocation list number 2" in outcome.out


def test_a_sites_directory_is_shown_by_what_lies_in_it(consortium: Metis) -> None:
    consortium("revoke site-b --ca ca")

    assert states(consortium("show site-b --json"))["site-b"] == "valid"  # by its old list
    shutil.copy("ca/crl.pem", "site-b")
    assert states(consortium("show site-b --json"))["site-b"] == "revoked"

    Path("site-b/crl.pem").write_text("nonsense")
    assert "is no revocation list" in consortium("show site-b").err
    Path("site-b/crl.pem").unlink()
    assert "no crl.pem beside it" in consortium("show site-b").err
    Path("site-b/ca.crt").unlink()
    assert states(consortium("show site-b --json")) == {"site-b": "unchecked"}
    assert "no ca.crt beside it" in consortium("show site-b").err


def test_odd_files_are_shown_as_what_they_are(consortium: Metis) -> None:
    consortium("init other --name Others")
    consortium("request site-x --out x")
    consortium("issue site-x --csr x/site-x.csr --ca other --out site-a/site-x.crt")
    consortium("request later --out site-a")
    Path("site-a/odd.crt").write_text("nonsense")

    assert states(consortium("show site-a --json")) == {
        "Hearts": "valid",
        "odd.crt": "unreadable",
        "site-a": "valid",
        "site-x": "foreign",
        "later": "requested",
    }
    assert_refused(consortium("show site-a/odd.crt"), "odd.crt: is no certificate")
    assert_refused(consortium("show site-a/crl.pem"), "is a revocation list")
    assert_refused(consortium("show nowhere"), "nowhere: No such file")
    Path("empty").mkdir()
    assert_refused(consortium("show empty"), "holds no certificates")


def test_a_certificate_of_tomorrow_is_not_yet_valid(
    consortium: Metis, monkeypatch: pytest.MonkeyPatch
) -> None:
    travel(monkeypatch, -1)

    assert set(states(consortium("show ca --json")).values()) == {"not yet valid"}


# ---- all of them ------------------------------------------------------------------------------


def test_no_output_holds_anything_of_a_key(consortium: Metis) -> None:
    keys = [Path("ca/ca.key"), Path("site-a/site-a.key")]
    secrets = [line for key in keys for line in key.read_text().splitlines()[1:-1]]
    Path("ca/ca.key").chmod(0o644)
    commands = (
        *("show ca", "show site-a", "show ca --json", "show ca/ca.key", "show site-a/site-a.key"),
        *("revoke site-a --ca ca", "issue x --csr site-a/site-a.key --ca ca"),
    )

    said = "".join(outcome.out + outcome.err for outcome in map(consortium, commands))

    assert "chmod 600 ca/ca.key" in said
    assert "holds a private key, which is not shown" in said
    assert not any(secret[:12] in said for secret in secrets)


def test_without_the_library_the_extra_is_named(
    metis: Metis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [name for name in sys.modules if name.startswith("metis.certs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("metis.certs.authority", raising=False)

    assert_refused(metis("init ca"), "this needs cryptography: pip install 'metis-fl[live]'")
