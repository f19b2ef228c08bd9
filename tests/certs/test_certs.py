"""Requests, certificates and revocation lists: what is made, and everything that is refused."""

from __future__ import annotations

import random
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from metis.certs import authority
from metis.certs.certificates import (
    Role,
    check_name,
    crl_number,
    host,
    load_authority,
    load_certificate,
    load_crl,
    load_key,
    load_request,
    new_crl,
    new_key,
    new_request,
    plain,
)
from metis.certs.files import read, write_private
from metis.certs.identity import Identity, identity_of, role_of
from metis.certs.revocation import listing
from metis.core.errors import IdentityError, RunError
from tests.certs.consortium import NOW, Consortium, altered, as_pem, consortium, days, der


def certificate_of(folder: Path) -> bytes:
    return (folder / f"{folder.name}.crt").read_bytes()


def hand_made_request(
    subject: list[x509.NameAttribute[str]], *extensions: x509.ExtensionType
) -> bytes:
    """Return a rightly signed request that `metis certs request` would not make."""
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    for extension in extensions:
        asked = asked.add_extension(extension, critical=False)
    return asked.sign(new_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def called(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


# ---- an authority -----------------------------------------------------------------------------


def test_an_authority_keeps_its_key_to_itself(ours: Consortium) -> None:
    assert stat.S_IMODE(ours.directory.stat().st_mode) == 0o700
    assert modes(ours.directory)["ca.key"] == 0o600
    assert set(modes(ours.directory)) == {"ca.key", "ca.crt", "crl.pem", "issued"}


def test_an_empty_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir(mode=0o755)

    authority.create(tmp_path / "ca", "Consortium", NOW)

    assert modes(tmp_path) == {"ca": 0o700}


def test_a_new_authority_has_revoked_nobody(ours: Consortium) -> None:
    assert crl_number(ours.crl) == 1
    assert list(ours.crl) == []


def test_an_authority_is_never_overwritten(ours: Consortium) -> None:
    before = (ours.directory / "ca.key").read_bytes()

    with pytest.raises(IdentityError, match="holds an authority already"):
        authority.create(ours.directory, "Another", NOW)

    assert (ours.directory / "ca.key").read_bytes() == before


def test_an_authority_wants_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(IdentityError, match="is not empty"):
        authority.create(tmp_path, "Consortium", NOW)
    with pytest.raises(RunError, match=r"cannot make the directory .*thesis.tex"):
        authority.create(tmp_path / "thesis.tex", "Consortium", NOW)


def test_an_authority_cannot_be_called_anything(tmp_path: Path) -> None:
    for name in ("", " ", "x" * 65, "a\nb", "\x1b[31m"):
        with pytest.raises(IdentityError, match="cannot be an authority's name"):
            authority.create(tmp_path / "ca", name, NOW)

    assert list(tmp_path.iterdir()) == []


def test_only_who_can_sign_others_is_an_authority(ours: Consortium) -> None:
    site = ours.admit("site-a")

    with pytest.raises(IdentityError, match="is not the certificate of an authority"):
        load_authority(certificate_of(site))


# ---- names and hosts --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "7", "site-a", "st.mary_s-2", "X" * 64])
def test_good_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "-a", ".a", "_a", "a b", "a/b", "../a", "a\n", "a\0", "é", "²", "X" * 65, "ca", "CRL"],
)
def test_bad_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="cannot be a name"):
        authority.request(tmp_path / "site", name)

    assert list(tmp_path.iterdir()) == []


def test_hosts_are_names_or_addresses() -> None:
    assert host("Hub.Example.org.").value == "hub.example.org"
    assert [str(host(text).value) for text in ("10.0.0.5", "::1")] == ["10.0.0.5", "::1"]

    for wrong in ("", "*.example.org", "10.0.0.300", "hub:8443", "a..b", "-a", "a b", "a" * 254):
        with pytest.raises(IdentityError, match="is no host"):
            host(wrong)


def test_foreign_text_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"
    assert len(plain("x" * 5000)) == 80


# ---- requests ---------------------------------------------------------------------------------


def test_a_request_holds_the_public_half_of_a_key_that_stays(tmp_path: Path) -> None:
    made = authority.request(tmp_path / "hub", "hub", ("hub.example.org", "10.0.0.5", "10.0.0.5"))

    found = load_request((tmp_path / "hub" / "hub.csr").read_bytes())
    key = load_key((tmp_path / "hub" / "hub.key").read_bytes())
    assert found == made
    assert found.name == "hub"
    assert [str(one.value) for one in found.hosts] == ["hub.example.org", "10.0.0.5"]
    assert found.key == key.public_key()
    assert modes(tmp_path / "hub")["hub.key"] == 0o600
    assert b"PRIVATE" not in (tmp_path / "hub" / "hub.csr").read_bytes()


def test_a_fingerprint_is_short_enough_to_be_read_out() -> None:
    one, other = (load_request(new_request("site-a", new_key())) for _ in range(2))

    assert re.fullmatch(r"([0-9a-f]{4} ){7}[0-9a-f]{4}", one.fingerprint)
    assert one.fingerprint != other.fingerprint


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    authority.request(tmp_path, "site-a")
    before = (tmp_path / "site-a.key").read_bytes()

    with pytest.raises(IdentityError, match="never overwritten"):
        authority.request(tmp_path, "site-a")
    with pytest.raises(RunError, match="it is there already"):
        write_private(tmp_path / "site-a.key", b"new")

    assert (tmp_path / "site-a.key").read_bytes() == before
    assert sorted(modes(tmp_path)) == ["site-a.csr", "site-a.key"]


def test_what_a_killed_attempt_left_behind_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.key.tmp").write_text("half")
    (tmp_path / "a.key.tmp").chmod(0o666)

    write_private(tmp_path / "a.key", b"whole")

    assert (tmp_path / "a.key").read_bytes() == b"whole"
    assert modes(tmp_path) == {"a.key": 0o600}


def test_a_request_that_was_changed_on_the_way_is_refused(ours: Consortium) -> None:
    authority.request(ours.root, "site-a")
    csr = ours.root / "site-a.csr"
    csr.write_bytes(altered(csr.read_bytes(), b"site-a", b"site-b"))

    with pytest.raises(IdentityError, match=r"site-a.csr: has a wrong signature"):
        authority.issue(ours.directory, "site-b", csr, NOW)


def test_a_request_for_another_name_is_refused(ours: Consortium) -> None:
    authority.request(ours.root, "site-a")

    with pytest.raises(IdentityError, match="asks for the name 'site-a', not 'site-b'"):
        authority.issue(ours.directory, "site-b", ours.root / "site-a.csr", NOW)

    assert listing(ours.directory, NOW).entries[1:] == ()


def test_a_request_for_more_than_a_name_and_hosts_is_refused() -> None:
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "operator")
    mail = x509.SubjectAlternativeName([x509.RFC822Name("a@b.org")])
    wildcard = x509.SubjectAlternativeName([x509.DNSName("*.org")])
    for pem, why in (
        (hand_made_request([called("site-a"), unit]), "more than a common name"),
        (hand_made_request([called("site-a"), called("site-b")]), "more than a common name"),
        (hand_made_request([unit]), "more than a common name"),
        (
            hand_made_request([called("site-a")], x509.BasicConstraints(ca=True, path_length=None)),
            r"asks for an extension \(2.5.29.19\)",
        ),
        (hand_made_request([called("site-a")], mail), "neither a host nor an address"),
        (hand_made_request([called("site-a")], wildcard), "is no host"),
    ):
        with pytest.raises(IdentityError, match=why):
            load_request(pem)


def test_a_request_for_another_kind_of_key_is_refused() -> None:
    keys = (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 1024))
    for key in keys:
        asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([called("a")]))
        pem = asked.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(IdentityError, match="not ECDSA P-256"):
            load_request(pem)


def test_a_request_with_a_bad_name_is_refused_without_its_control_characters(
    ours: Consortium,
) -> None:
    csr = ours.root / "odd.csr"
    csr.write_bytes(hand_made_request([called("\x1b[2Jsite")]))

    with pytest.raises(IdentityError) as refusal:
        authority.issue(ours.directory, "site-a", csr, NOW)

    assert str(refusal.value).isprintable()
    assert "cannot be a name" in str(refusal.value)


def test_files_that_are_far_too_long_are_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "long.csr", "wb") as file:
        file.truncate(5 << 20)

    with pytest.raises(IdentityError, match=r"more than 4,194,304 bytes"):
        read(tmp_path / "long.csr")


# ---- issuing ----------------------------------------------------------------------------------


def test_a_site_is_certified_under_its_name_as_a_learner(ours: Consortium) -> None:
    site = ours.admit("site-a")

    identity = ours.identity(certificate_of(site))

    made = load_certificate(certificate_of(site))
    assert identity == Identity("site-a", "learner", made.serial_number)
    assert made.not_valid_after_utc == NOW + days(365)
    assert NOW - days(1) < made.not_valid_before_utc < NOW
    assert (ours.directory / "issued" / "site-a.crt").read_bytes() == certificate_of(site)


def test_a_site_has_one_valid_certificate_unless_it_is_renewed(ours: Consortium) -> None:
    site = ours.admit("site-a")
    csr = site / "site-a.csr"

    with pytest.raises(IdentityError, match=r"valid until .*--renew.*metis certs revoke site-a"):
        authority.issue(ours.directory, "site-a", csr, NOW + days(100))
    renewed = authority.issue(ours.directory, "site-a", csr, NOW + days(300), renew=True)

    assert renewed.valid_until == NOW + days(665)
    for pem in (certificate_of(site), renewed.pem):  # both are good until the site has changed over
        assert ours.identity(pem, NOW + days(350)).name == "site-a"
    with pytest.raises(IdentityError, match="expired"):
        ours.identity(certificate_of(site), NOW + days(400))


def test_an_expired_certificate_is_followed_by_a_new_one(ours: Consortium) -> None:
    csr = ours.admit("site-a") / "site-a.csr"

    for renew in (False, True):
        later = NOW + days(800 if renew else 400)
        issued = authority.issue(ours.directory, "site-a", csr, later, renew=renew)
        assert ours.identity(issued.pem, later).name == "site-a"


def test_renewing_keeps_the_role(ours: Consortium) -> None:
    csr = ours.admit("boss", "operator") / "boss.csr"

    issued = authority.issue(ours.directory, "boss", csr, NOW, renew=True)

    assert ours.identity(issued.pem).role == "operator"
    with pytest.raises(IdentityError, match="boss is an operator and cannot be renewed"):
        authority.issue(ours.directory, "boss", csr, NOW, role="learner", renew=True)


def test_what_is_not_there_cannot_be_renewed(ours: Consortium) -> None:
    authority.request(ours.root, "site-a")
    csr = ours.root / "site-a.csr"

    with pytest.raises(IdentityError, match="site-a has no certificate yet"):
        authority.issue(ours.directory, "site-a", csr, NOW, renew=True)

    authority.issue(ours.directory, "site-a", csr, NOW)
    authority.revoke(ours.directory, "site-a", NOW)
    with pytest.raises(IdentityError, match="site-a was revoked"):
        authority.issue(ours.directory, "site-a", csr, NOW, renew=True)


def test_two_sites_cannot_share_a_key(ours: Consortium) -> None:
    site = ours.admit("site-a")
    csr = ours.root / "site-b.csr"
    csr.write_bytes(new_request("site-b", load_key((site / "site-a.key").read_bytes())))

    with pytest.raises(IdentityError, match="for the key of site-a"):
        authority.issue(ours.directory, "site-b", csr, NOW)


def test_the_authority_does_not_certify_its_own_key(ours: Consortium) -> None:
    csr = ours.root / "site-b.csr"
    csr.write_bytes(new_request("site-b", load_key((ours.directory / "ca.key").read_bytes())))

    with pytest.raises(IdentityError, match="authority's own key"):
        authority.issue(ours.directory, "site-b", csr, NOW)


def test_names_that_differ_in_capitals_alone_are_refused(ours: Consortium) -> None:
    ours.admit("site-a")

    with pytest.raises(IdentityError, match="Site-A differs from site-a in capital letters"):
        ours.admit("Site-A")


def test_a_certificate_does_not_outlive_its_authority(ours: Consortium) -> None:
    authority.request(ours.root, "site-a")
    csr = ours.root / "site-a.csr"

    with pytest.raises(IdentityError, match="--days 150 is the most"):
        authority.issue(ours.directory, "site-a", csr, NOW + days(3500))
    with pytest.raises(IdentityError, match="the authority itself ends on"):
        authority.issue(ours.directory, "site-a", csr, NOW + days(3650))

    late = authority.issue(ours.directory, "site-a", csr, NOW + days(3500), days=150)
    assert late.valid_until == NOW + days(3650)


@pytest.mark.parametrize("number", [0, -3, 40_000])
def test_a_number_of_days_makes_sense(tmp_path: Path, number: int) -> None:
    with pytest.raises(IdentityError, match="1 to 36500 days"):
        authority.create(tmp_path / "ca", "Consortium", NOW, number)


def test_another_fingerprint_than_the_one_read_out_is_refused(ours: Consortium) -> None:
    made = authority.request(ours.root, "site-a")
    csr = ours.root / "site-a.csr"
    spelled = made.fingerprint.upper().replace(" ", ":")
    other = spelled.translate(str.maketrans("0123456789ABCDEF", "123456789ABCDEF0"))

    for wrong in (other, made.fingerprint[:19], ""):
        with pytest.raises(IdentityError, match="not the one given"):
            authority.issue(ours.directory, "site-a", csr, NOW, read_out=wrong)
    issued = authority.issue(ours.directory, "site-a", csr, NOW, read_out=spelled)

    assert issued.fingerprint == made.fingerprint


def test_commands_that_run_at_once_do_not_lose_each_others_work(ours: Consortium) -> None:
    names = [f"site-{number}" for number in range(6)]
    for name in names:
        ours.admit(name)

    with ThreadPoolExecutor(len(names)) as pool:  # a lock of files holds between threads too
        list(pool.map(lambda name: authority.revoke(ours.directory, name, NOW), names))

    assert {entry.state for entry in listing(ours.directory, NOW).entries[1:]} == {"revoked"}
    assert crl_number(ours.crl) == 1 + len(names)


def test_a_record_that_does_not_belong_to_the_authority_is_found(
    ours: Consortium, theirs: Consortium
) -> None:
    stranger = theirs.admit("site-x")
    (ours.directory / "issued" / "site-x.crt").write_bytes(certificate_of(stranger))

    with pytest.raises(IdentityError, match=r"issued/site-x.crt: is signed by another authority"):
        ours.admit("site-a")


def test_an_authority_whose_key_others_can_read_does_not_work(ours: Consortium) -> None:
    (ours.directory / "ca.key").chmod(0o640)

    with pytest.raises(IdentityError, match=r"mode 0640.*chmod 600 .*ca.key"):
        ours.admit("site-a")


def test_an_authority_with_anothers_certificate_does_not_work(
    ours: Consortium, theirs: Consortium
) -> None:
    (ours.directory / "ca.crt").write_bytes((theirs.directory / "ca.crt").read_bytes())

    with pytest.raises(IdentityError, match=r"ca.crt: is not the certificate of the key in ca.key"):
        ours.admit("site-a")


def test_a_directory_without_an_authority_says_so(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="holds no authority; make one with metis certs init"):
        authority.revoke(tmp_path, "site-a", NOW)
    with pytest.raises(IdentityError, match="nowhere: No such file"):
        authority.revoke(tmp_path / "nowhere", "site-a", NOW)


# ---- roles ------------------------------------------------------------------------------------


def test_a_role_is_in_the_subject_and_in_the_usage(ours: Consortium) -> None:
    usage = {
        "learner": ExtendedKeyUsageOID.CLIENT_AUTH,
        "operator": ExtendedKeyUsageOID.CLIENT_AUTH,
        "controller": ExtendedKeyUsageOID.SERVER_AUTH,
    }
    roles: tuple[Role, ...] = ("learner", "operator", "controller")
    for role in roles:
        made = load_certificate(certificate_of(ours.admit(f"a-{role}", role)))

        uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(uses) == [usage[role]]
        assert f"OU={role}" in made.subject.rfc4514_string()
        assert ours.identity(made.public_bytes(serialization.Encoding.PEM)).role == role


def test_a_role_is_demanded_in_plain_words() -> None:
    learner = Identity("site-a", "learner", 1)

    learner.require("learner", "operator")
    with pytest.raises(IdentityError, match="site-a is a learner; this is for an operator alone"):
        learner.require("operator")


def test_the_name_of_a_role_is_for_that_role(ours: Consortium) -> None:
    with pytest.raises(IdentityError, match="'controller' is reserved for a controller"):
        ours.admit("controller", "learner")
    with pytest.raises(IdentityError, match="'Operator' is reserved for an operator"):
        ours.admit("Operator", "controller")

    authority.request(ours.root / "there", "controller", ("localhost",))
    csr = ours.root / "there" / "controller.csr"
    issued = authority.issue(ours.directory, "controller", csr, NOW, role="controller")
    assert ours.identity(issued.pem).role == "controller"


def test_a_controller_has_hosts_and_nobody_else_has(ours: Consortium) -> None:
    authority.request(ours.root, "plain")
    authority.request(ours.root, "dialled", ("localhost",))

    with pytest.raises(IdentityError, match=r"names no host.*--host"):
        authority.issue(ours.directory, "plain", ours.root / "plain.csr", NOW, role="controller")
    with pytest.raises(IdentityError, match="add --role controller"):
        authority.issue(ours.directory, "dialled", ours.root / "dialled.csr", NOW)


def test_a_certificate_whose_role_and_usage_differ_has_no_role(ours: Consortium) -> None:
    serves, dials = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    odd = [
        forged(ours, ["learner"], [serves]),
        forged(ours, ["controller"], [dials]),
        forged(ours, ["operator"], [dials, serves]),
        forged(ours, ["learner", "operator"], [dials]),
        forged(ours, ["janitor"], [dials]),
        forged(ours, [], [dials]),
        forged(ours, ["learner"], [dials], ca=True),
        ours.ca,
    ]

    assert role_of(forged(ours, ["learner"], [dials])) == "learner"
    for certificate in odd:
        assert role_of(certificate) is None
        with pytest.raises(IdentityError, match="has no role: metis certs did not make it"):
            ours.identity(certificate.public_bytes(serialization.Encoding.PEM))


def forged(
    ours: Consortium, units: list[str], usages: list[x509.ObjectIdentifier], ca: bool = False
) -> x509.Certificate:
    """Return a certificate that our authority signed, but as it never would."""
    ca_key = load_key((ours.directory / "ca.key").read_bytes())
    named = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*named, called("site-a")]))
        .issuer_name(ours.ca.subject)
        .public_key(new_key().public_key())
        .serial_number(99)
        .not_valid_before(NOW - days(1))
        .not_valid_after(NOW + days(1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


# ---- identity ---------------------------------------------------------------------------------


def test_a_certificate_of_another_authority_is_refused(
    ours: Consortium, theirs: Consortium
) -> None:
    stranger = theirs.admit("site-a")

    with pytest.raises(
        IdentityError, match="certificate of site-a is signed by another authority than Consortium"
    ):
        ours.identity(certificate_of(stranger))


def test_a_certificate_that_vouches_for_itself_is_refused(ours: Consortium, tmp_path: Path) -> None:
    own = authority.create(tmp_path / "mine", "Consortium", NOW)

    with pytest.raises(IdentityError, match="signed by another authority"):
        ours.identity(own.public_bytes(serialization.Encoding.PEM))


def test_an_expired_certificate_is_refused_with_its_date(ours: Consortium) -> None:
    site = ours.admit("site-a")
    end = NOW + days(365)

    assert ours.identity(certificate_of(site), end).name == "site-a"
    with pytest.raises(
        IdentityError, match=f"certificate of site-a expired on {end:%Y-%m-%d %H:%M} UTC"
    ):
        ours.identity(certificate_of(site), end + days(0.01))


def test_a_certificate_is_refused_before_its_time(ours: Consortium) -> None:
    site = ours.admit("site-a", now=NOW + days(30))

    with pytest.raises(IdentityError, match="certificate of site-a is not valid before 20"):
        ours.identity(certificate_of(site))


def test_a_site_whose_clock_is_a_little_slow_is_not_refused(ours: Consortium) -> None:
    site = ours.admit("site-a")

    assert ours.identity(certificate_of(site), NOW - days(5 / 24 / 60)).name == "site-a"


def test_nobody_is_accepted_after_the_end_of_the_authority(tmp_path: Path) -> None:
    old = consortium(tmp_path / "old", "Old", NOW - days(3651))
    site = old.admit("site-a", now=NOW - days(3000), valid_days=600)

    with pytest.raises(IdentityError, match="certificate of the authority Old expired"):
        old.identity(certificate_of(site))


def test_a_changed_certificate_is_refused(ours: Consortium) -> None:
    pem = altered(certificate_of(ours.admit("site-a")), b"site-a", b"site-b")

    with pytest.raises(IdentityError, match="certificate of site-b is signed by another authority"):
        ours.identity(pem)


# ---- revocation -------------------------------------------------------------------------------


def test_a_revoked_certificate_is_refused_with_the_date(ours: Consortium) -> None:
    a, b = ours.admit("site-a"), ours.admit("site-b")
    when = NOW + days(3)

    done = authority.revoke(ours.directory, "site-b", when)

    assert done.crl_number == crl_number(ours.crl) == 2
    assert done.serials == (load_certificate(certificate_of(b)).serial_number,)
    assert ours.identity(certificate_of(a), when).name == "site-a"
    with pytest.raises(
        IdentityError, match=f"certificate of site-b was revoked on {when:%Y-%m-%d %H:%M} UTC"
    ):
        ours.identity(certificate_of(b), when)


def test_without_a_list_revocation_is_not_known(ours: Consortium) -> None:
    site = ours.admit("site-b")
    authority.revoke(ours.directory, "site-b", NOW)

    assert identity_of(certificate_of(site), ours.ca, None, NOW).name == "site-b"


def test_revoking_a_name_revokes_all_its_certificates(ours: Consortium) -> None:
    site = ours.admit("site-a")
    renewed = authority.issue(ours.directory, "site-a", site / "site-a.csr", NOW, renew=True)

    done = authority.revoke(ours.directory, "site-a", NOW)

    assert len(done.serials) == 2
    for pem in (certificate_of(site), renewed.pem):
        with pytest.raises(IdentityError, match="revoked"):
            ours.identity(pem)


def test_revoking_again_changes_nothing(ours: Consortium) -> None:
    ours.admit("site-a")
    authority.revoke(ours.directory, "site-a", NOW)
    before = (ours.directory / "crl.pem").read_bytes()

    again = authority.revoke(ours.directory, "site-a", NOW + days(5))

    assert (again.serials, again.when, again.crl_number) == ((), NOW, 2)
    assert (ours.directory / "crl.pem").read_bytes() == before


def test_revoking_an_unknown_name_offers_the_nearest(ours: Consortium) -> None:
    with pytest.raises(IdentityError, match=r"unknown site 'site-a' \(known: none yet\)"):
        authority.revoke(ours.directory, "site-a", NOW)

    ours.admit("site-a")
    with pytest.raises(IdentityError, match="unknown site 'sitea'; did you mean 'site-a'"):
        authority.revoke(ours.directory, "sitea", NOW)


def test_a_revoked_site_comes_back_with_a_new_key_only(ours: Consortium, tmp_path: Path) -> None:
    site = ours.admit("site-a")
    authority.revoke(ours.directory, "site-a", NOW)

    with pytest.raises(IdentityError, match=r"this very key was revoked.*metis certs request"):
        authority.issue(ours.directory, "site-a", site / "site-a.csr", NOW)
    authority.request(tmp_path / "new", "site-a")
    issued = authority.issue(ours.directory, "site-a", tmp_path / "new" / "site-a.csr", NOW)

    assert ours.identity(issued.pem).name == "site-a"
    with pytest.raises(IdentityError, match="revoked"):
        ours.identity(certificate_of(site))


def test_a_changed_list_is_refused(ours: Consortium) -> None:
    site = ours.admit("site-a")
    authority.revoke(ours.directory, "site-a", NOW)
    serial = load_certificate(certificate_of(site)).serial_number
    pem = (ours.directory / "crl.pem").read_bytes()
    changed = altered(pem, serial.to_bytes(8), (serial ^ 1).to_bytes(8))

    with pytest.raises(IdentityError, match="Consortium did not sign, or that was changed since"):
        load_crl(changed, ours.ca)
    with pytest.raises(IdentityError, match="did not sign"):
        identity_of(certificate_of(site), ours.ca, x509.load_pem_x509_crl(changed), NOW)


def test_a_list_of_another_authority_is_refused(ours: Consortium, theirs: Consortium) -> None:
    with pytest.raises(IdentityError, match="did not sign"):
        load_crl((theirs.directory / "crl.pem").read_bytes(), ours.ca)


def test_a_list_without_a_number_is_refused(ours: Consortium) -> None:
    key = load_key((ours.directory / "ca.key").read_bytes())
    made = new_crl(ours.ca, key, 1, (), NOW)
    bare = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ours.ca.subject)
        .last_update(made.last_update_utc)
        .next_update(NOW + days(9))
        .sign(key, hashes.SHA256())
    )

    with pytest.raises(IdentityError, match="is no revocation list"):
        load_crl(bare.public_bytes(serialization.Encoding.PEM), ours.ca)


# ---- nonsense ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")  # the library's, about serials below zero
def test_damaged_bytes_are_refused_or_have_lost_nothing(ours: Consortium) -> None:
    folder = ours.admit("hub", "controller")
    readers: tuple[tuple[Path, Callable[[bytes], object]], ...] = (
        (folder / "hub.csr", load_request),
        (folder / "hub.crt", ours.identity),
        (folder / "crl.pem", lambda pem: len(list(load_crl(pem, ours.ca)))),
        (folder / "ca.crt", lambda pem: load_authority(pem).subject),
    )
    rng = random.Random(5)
    num_refused = 0
    for path, reader in readers:
        whole = path.read_bytes()
        expected = reader(whole)
        for _ in range(300):
            content = bytearray(der(whole))
            at = rng.randrange(len(content))
            content[at : at + rng.randrange(2)] = rng.randbytes(rng.randrange(3))
            try:
                found = reader(as_pem(bytes(content), whole))
            except IdentityError:
                num_refused += 1
            else:
                assert found == expected

    assert num_refused > 1000


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"-----BEGIN CERTIFICATE-----\n", b"\xff"])
def test_nonsense_is_called_what_it_is(ours: Consortium, content: bytes) -> None:
    with pytest.raises(IdentityError, match="what was shown as a certificate is none"):
        ours.identity(content)
    with pytest.raises(IdentityError, match="is no certificate request"):
        load_request(content)
    with pytest.raises(IdentityError, match="is no revocation list"):
        load_crl(content, ours.ca)
    with pytest.raises(IdentityError, match="holds no private key"):
        load_key(content)


def test_no_error_tells_anything_of_a_key(ours: Consortium) -> None:
    pem = (ours.directory / "ca.key").read_bytes()
    other = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for wrong in (pem.replace(b"M", b"-", 1), pem[: len(pem) // 2], other):
        with pytest.raises(IdentityError) as refusal:
            load_key(wrong)

        assert refusal.value.__cause__ is None
        assert len(str(refusal.value)) < 60
