"""What lies in a directory or file of certificates, and in which state: for people to look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from metis.certs.authority import CA_CERTIFICATE, CRL, certificate_files, request_in
from metis.certs.certificates import (
    common_name,
    crl_number,
    fingerprint,
    hosts_of,
    is_signed_by,
    load_authority,
    load_certificate,
    load_crl,
    plain,
    revoked_in,
    serial_text,
    unit_name,
)
from metis.certs.files import about, read
from metis.certs.identity import shown_name
from metis.core.errors import IdentityError


@dataclass(frozen=True, slots=True)
class Entry:
    """One certificate or request. A request has neither role nor serial nor dates yet."""

    name: str
    role: str
    serial: str
    valid_from: datetime | None
    valid_until: datetime | None
    state: str
    fingerprint: str
    hosts: tuple[str, ...]
    file: Path


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found, and what could not be checked because a file is missing or wrong."""

    entries: tuple[Entry, ...]
    crl_number: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Trust:
    """What a state is judged by: an authority and what it revoked, as far as they are at hand."""

    ca: x509.Certificate | None
    revoked: dict[int, datetime]
    crl_number: int | None
    notes: tuple[str, ...]


def listing(path: Path, now: datetime) -> Listing:
    """Return what a directory holds (an authority's or an endpoint's), or one file."""
    if path.is_dir():
        trust = _trust([path])
        files = [*sorted(path.glob("*.crt")), *certificate_files(path)]
        have = {file.stem for file in files}
        files += [file for file in sorted(path.glob("*.csr")) if file.stem not in have]
        if not files:
            raise IdentityError(f"{path}: holds no certificates")
        entries = [_entry_or_none(file, trust, now) for file in files]
    else:
        trust = _trust(list(path.absolute().parents)[:3])  # issued/ and earlier/ lie below it
        entries = [_entry(path, trust, now)]
    unique = {(entry.name, entry.serial, entry.fingerprint): entry for entry in reversed(entries)}
    notes = () if all(entry.state == "requested" for entry in entries) else trust.notes
    return Listing(tuple(reversed(unique.values())), trust.crl_number, notes)


def _trust(folders: list[Path]) -> _Trust:
    folder = next((f for f in folders if (f / CA_CERTIFICATE).exists()), None)
    if folder is None:
        note = f"no {CA_CERTIFICATE} beside it: neither signatures nor revocation are checked"
        return _Trust(None, {}, None, (note,))
    path = folder / CA_CERTIFICATE
    try:
        content = read(path)
        with about(path):
            ca = load_authority(content)
    except IdentityError as error:
        return _Trust(None, {}, None, (str(error),))
    if not (folder / CRL).exists():
        return _Trust(ca, {}, None, (f"no {CRL} beside it: revocation is not checked",))
    try:
        content = read(folder / CRL)
        with about(folder / CRL):
            crl = load_crl(content, ca)
    except IdentityError as error:
        return _Trust(ca, {}, None, (f"{error}; revocation is not checked",))
    return _Trust(ca, revoked_in(crl), crl_number(crl), ())


def _entry_or_none(file: Path, trust: _Trust, now: datetime) -> Entry:
    try:
        return _entry(file, trust, now)
    except IdentityError:
        return Entry(plain(file.name), "", "", None, None, "unreadable", "", (), file)


def _entry(file: Path, trust: _Trust, now: datetime) -> Entry:
    content = read(file)
    if b"CERTIFICATE REQUEST-----" in content:
        asked = request_in(file)
        hosts = tuple(str(host.value) for host in asked.hosts)
        return Entry(asked.name, "", "", None, None, "requested", asked.fingerprint, hosts, file)
    with about(file):
        if b"PRIVATE KEY-----" in content and b"CERTIFICATE-----" not in content:
            raise IdentityError("holds a private key, which is not shown; show its certificate")
        if b"X509 CRL-----" in content:
            raise IdentityError("is a revocation list; show the directory it lies in")
        found = load_certificate(content)
    own = trust.ca is not None and found == trust.ca
    return Entry(
        name=plain(common_name(found.subject)) if own else shown_name(found),
        role="authority" if own else plain(unit_name(found.subject)),
        serial=serial_text(found.serial_number),
        valid_from=found.not_valid_before_utc,
        valid_until=found.not_valid_after_utc,
        state=_state(found, trust, now),
        fingerprint=fingerprint(found.public_key()),
        hosts=hosts_of(found),
        file=file,
    )


def _state(found: x509.Certificate, trust: _Trust, now: datetime) -> str:
    if trust.ca is not None and not is_signed_by(found, trust.ca):
        return "foreign"
    if found.serial_number in trust.revoked:
        return "revoked"
    if now > found.not_valid_after_utc:
        return "expired"
    if now < found.not_valid_before_utc:
        return "not yet valid"
    return "valid" if trust.ca is not None else "unchecked"
