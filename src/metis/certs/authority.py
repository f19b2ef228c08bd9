"""A small certificate authority in one directory, kept by somebody the sites trust.

    ca.key       its private key; whoever has it can admit anybody
    ca.crt       its certificate, for every site
    crl.pem      what it revoked, for the controller
    issued/      SITE.crt, the newest of every site; earlier/SERIAL.crt, those that were renewed

The certificates are the records: there is no other file to lose or to contradict them. One command
at a time works in the directory, and a killed one leaves either the old state or the new.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from metis.certs.certificates import (
    Request,
    Role,
    a,
    check_name,
    check_role,
    common_name,
    crl_number,
    hosts_of,
    is_signed_by,
    key_pem,
    load_authority,
    load_certificate,
    load_crl,
    load_key,
    load_request,
    moment,
    new_authority,
    new_certificate,
    new_crl,
    new_key,
    new_request,
    new_serial,
    public_bytes,
    revoked_in,
    same_fingerprint,
)
from metis.certs.files import (
    about,
    alone_in,
    private_directory,
    read,
    read_private,
    write_private,
    write_public,
)
from metis.certs.identity import role_of
from metis.core.errors import IdentityError, RunError, unknown

CA_KEY, CA_CERTIFICATE, CRL, ISSUED, EARLIER = "ca.key", "ca.crt", "crl.pem", "issued", "earlier"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was made, and where it lies."""

    path: Path
    pem: bytes
    name: str
    role: Role
    serial: int
    fingerprint: str
    hosts: tuple[str, ...]
    valid_until: datetime


@dataclass(frozen=True, slots=True)
class Revoked:
    """What revoking a name did: the serials that are revoked by it, none if all were before."""

    serials: tuple[int, ...]
    when: datetime
    crl: Path
    crl_number: int


@dataclass(frozen=True, slots=True)
class _Record:
    """A certificate that was issued, and when it was revoked, if it was."""

    certificate: x509.Certificate
    revoked: datetime | None

    @property
    def name(self) -> str:
        return common_name(self.certificate.subject)

    @property
    def serial(self) -> int:
        return self.certificate.serial_number


@dataclass(frozen=True, slots=True, repr=False)
class _Authority:
    """An authority as its directory has it. Without a repr: it holds the private key."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    crl: x509.CertificateRevocationList
    records: tuple[_Record, ...]


# ---- making one -------------------------------------------------------------------------------


def create(directory: Path, name: str, now: datetime, days: int = 3650) -> x509.Certificate:
    """Make an authority in an empty or new directory, and return its certificate."""
    key = new_key()
    certificate = new_authority(name, key, now, days)
    private_directory(directory)
    try:
        if any(directory.iterdir()):
            has_one = (directory / CA_KEY).exists() or (directory / CA_CERTIFICATE).exists()
            what = "holds an authority already" if has_one else "is not empty"
            raise IdentityError(f"{directory}: {what}; choose a new directory")
        directory.chmod(0o700)
        (directory / ISSUED / EARLIER).mkdir(parents=True)
    except OSError as error:
        raise RunError(f"cannot make an authority in {directory}: {error.strerror}") from None
    write_private(directory / CA_KEY, key_pem(key))
    write_public(directory / CRL, _pem(new_crl(certificate, key, 1, (), now)))
    write_public(directory / CA_CERTIFICATE, _pem(certificate))
    return certificate


def request(directory: Path, name: str, hosts: tuple[str, ...] = ()) -> Request:
    """Make a key and a request for a certificate where the key will be used, and return it."""
    key = new_key()
    pem = new_request(name, key, hosts)
    private_directory(directory)
    for path in (directory / f"{name}.key", directory / f"{name}.csr"):
        if path.exists():
            raise IdentityError(
                f"{path}: is there already and is never overwritten; its request can be issued "
                "again (metis certs issue --renew); for a new key choose another --out"
            )
    write_private(directory / f"{name}.key", key_pem(key))
    write_public(directory / f"{name}.csr", pem)
    return load_request(pem)


# ---- issuing ----------------------------------------------------------------------------------


def issue(
    directory: Path,
    name: str,
    csr: Path,
    now: datetime,
    *,
    role: Role | None = None,
    days: int = 365,
    renew: bool = False,
    read_out: str | None = None,
) -> Issued:
    """Certify what a request asks for, if it is what it should be, and keep a record.

    `role`: learner if None, or the one it had before if renewed. `read_out`: the fingerprint that
    the site has read out by phone; another one in the request is refused.
    """
    check_name(name)
    asked = request_in(csr)
    if asked.name != name:
        raise IdentityError(f"{csr}: asks for the name {asked.name!r}, not {name!r}")
    if read_out is not None and not same_fingerprint(read_out, asked.fingerprint):
        raise IdentityError(
            f"{csr}: has the key fingerprint {asked.fingerprint}, which is not the one given: "
            "this request does not come from the one who read it out"
        )
    with alone_in(directory):
        authority = _open(directory)
        old = [record for record in authority.records if record.name == name]
        role = _role_for(name, role, old, renew, now)
        _check_hosts(asked, role, csr)
        _check_key(authority, asked)
        _check_spelling(authority, name)
        _check_end(authority, now, days)
        serials = {record.serial for record in authority.records}
        serial = new_serial()
        while serial in serials:
            serial = new_serial()
        made = new_certificate(asked, role, authority.certificate, authority.key, serial, now, days)
        path = _keep(directory, name, made)
    return Issued(
        path=path,
        pem=_pem(made),
        name=name,
        role=role,
        serial=serial,
        fingerprint=asked.fingerprint,
        hosts=hosts_of(made),
        valid_until=made.not_valid_after_utc,
    )


def request_in(csr: Path) -> Request:
    """Return what the request in a file asks for, once it is known to be a right one."""
    content = read(csr)
    with about(csr):
        asked = load_request(content)
        check_name(asked.name)
    return asked


def _role_for(name: str, role: Role | None, old: list[_Record], renew: bool, now: datetime) -> Role:
    """Return the role of a new certificate; refuses a second one that nobody asked to renew."""
    kept = [record for record in old if record.revoked is None]
    valid = [record for record in kept if record.certificate.not_valid_after_utc >= now]
    if renew:
        if not kept:
            why = "was revoked" if old else "has no certificate yet"
            raise IdentityError(f"{name} {why}: there is nothing to renew; leave out --renew")
        had = role_of(kept[-1].certificate)
        if had is not None and role not in (None, had):
            raise IdentityError(
                f"{name} is {a(had)} and cannot be renewed as {a(str(role))}: revoke it first "
                f"(metis certs revoke {name})"
            )
        return check_role(had or role or "learner", name)
    if valid:
        until = moment(max(record.certificate.not_valid_after_utc for record in valid))
        raise IdentityError(
            f"{name} has a certificate that is valid until {until}: add --renew to make another "
            f"one, or take that one back first (metis certs revoke {name})"
        )
    return check_role(role or "learner", name)


def _check_hosts(asked: Request, role: Role, csr: Path) -> None:
    if role == "controller" and not asked.hosts:
        raise IdentityError(
            f"{csr}: names no host: learners must know where they dial the controller; make the "
            "request with --host"
        )
    if role != "controller" and asked.hosts:
        raise IdentityError(
            f"{csr}: asks for a certificate of hosts, which {a(role)} does not have; if this is "
            "the controller, add --role controller"
        )


def _check_key(authority: _Authority, asked: Request) -> None:
    """One key, one name; and what was revoked stays so, under whatever certificate."""
    key = public_bytes(asked.key)
    if key == public_bytes(authority.key.public_key()):
        raise IdentityError("this request is for the authority's own key")
    for record in authority.records:
        if public_bytes(record.certificate.public_key()) != key:
            continue
        if record.name != asked.name:
            raise IdentityError(f"this request is for the key of {record.name}: make a new one")
        if record.revoked is not None:
            raise IdentityError(
                f"a certificate of this very key was revoked on {moment(record.revoked)}: make a "
                f"new key (metis certs request {asked.name})"
            )


def _check_spelling(authority: _Authority, name: str) -> None:
    for record in authority.records:
        if record.name != name and record.name.lower() == name.lower():
            raise IdentityError(f"{name} differs from {record.name} in capital letters alone")


def _check_end(authority: _Authority, now: datetime, days: int) -> None:
    end = authority.certificate.not_valid_after_utc
    left = (end - now).days
    if left < 1:
        raise IdentityError(f"the authority itself ends on {moment(end)}: make a new one")
    if days > left:
        raise IdentityError(
            f"{days} days are more than the authority itself has left: it ends on {moment(end)}; "
            f"--days {left} is the most"
        )


def _keep(directory: Path, name: str, made: x509.Certificate) -> Path:
    """Write a certificate as the newest of its name, the one before it under its serial."""
    path = directory / ISSUED / f"{name}.crt"
    if path.exists():
        before = load_certificate(read(path))
        write_public(_earlier(directory, before.serial_number), _pem(before))
    write_public(path, _pem(made))
    return path


def _earlier(directory: Path, serial: int) -> Path:
    return directory / ISSUED / EARLIER / f"{serial:016x}.crt"


# ---- revoking ---------------------------------------------------------------------------------


def revoke(directory: Path, name: str, now: datetime) -> Revoked:
    """Revoke all certificates of a name, and sign the list again if that changes it."""
    check_name(name)
    with alone_in(directory):
        authority = _open(directory)
        found = [record for record in authority.records if record.name == name]
        if not found:
            known = {record.name for record in authority.records} or {"none yet"}
            raise IdentityError(unknown("site", name, known))
        path, number = directory / CRL, crl_number(authority.crl)
        before = [record.revoked for record in found if record.revoked is not None]
        if len(before) == len(found):
            return Revoked((), max(before), path, number)
        serials = tuple(record.serial for record in found if record.revoked is None)
        revoked = revoked_in(authority.crl) | dict.fromkeys(serials, now)
        made = new_crl(authority.certificate, authority.key, number + 1, revoked.items(), now)
        write_public(path, _pem(made))
    return Revoked(serials, now, path, number + 1)


# ---- the directory ----------------------------------------------------------------------------


def _open(directory: Path) -> _Authority:
    if not (directory / CA_KEY).exists():
        raise IdentityError(f"{directory}: holds no authority; make one with metis certs init")
    key_content = read_private(directory / CA_KEY)
    with about(directory / CA_KEY):
        key = load_key(key_content)
    content = read(directory / CA_CERTIFICATE)
    with about(directory / CA_CERTIFICATE):
        certificate = load_authority(content)
        if public_bytes(certificate.public_key()) != public_bytes(key.public_key()):
            raise IdentityError(f"is not the certificate of the key in {CA_KEY}")
    content = read(directory / CRL)
    with about(directory / CRL):
        crl = load_crl(content, certificate)
    revoked = revoked_in(crl)
    records = tuple(
        _Record(found, revoked.get(found.serial_number))
        for found in _certificates(directory, certificate)
    )
    return _Authority(directory, certificate, key, crl, records)


def _certificates(directory: Path, ca: x509.Certificate) -> list[x509.Certificate]:
    """Return all certificates that were issued, each once, oldest first."""
    found: dict[int, x509.Certificate] = {}
    for path in certificate_files(directory):
        content = read(path)
        with about(path):
            certificate = load_certificate(content)
            if not is_signed_by(certificate, ca):
                raise IdentityError("is signed by another authority: it does not belong here")
        found[certificate.serial_number] = certificate
    return sorted(found.values(), key=lambda one: (one.not_valid_before_utc, one.serial_number))


def certificate_files(directory: Path) -> list[Path]:
    """Return where the certificates lie that an authority issued."""
    folders = (directory / ISSUED, directory / ISSUED / EARLIER)
    return [path for folder in folders for path in sorted(folder.glob("*.crt"))]


def _pem(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)
