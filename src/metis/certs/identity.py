"""Who is at the other end: a name and a role that the authority vouches for, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from metis.certs.certificates import (
    ROLES,
    USAGE,
    Role,
    a,
    check_crl,
    common_name,
    is_name,
    is_signed_by,
    load_certificate,
    moment,
    plain,
    unit_name,
)
from metis.core.errors import IdentityError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a certificate is for. Only `identity_of` vouches that it is so."""

    name: str
    role: Role
    serial: int

    def require(self, *roles: str) -> None:
        """Raise IdentityError unless this is one of these roles."""
        if self.role not in roles:
            allowed = " or ".join(a(role) for role in roles)
            raise IdentityError(f"{self.name} is {a(self.role)}; this is for {allowed} alone")


def identity_of(
    pem: bytes | str,
    ca: x509.Certificate,
    crl: x509.CertificateRevocationList | None,
    now: datetime,
) -> Identity:
    """Return who a certificate is for; raises IdentityError that says why it is not accepted.

    Signature first: what a stranger wrote into a certificate is not looked at before. With no
    revocation list (None) a revoked certificate is accepted. Two signatures are checked, which
    takes well below a millisecond: a controller can ask for every message anew, so that a
    revocation counts at once and not at the next connection.
    """
    try:
        certificate = load_certificate(pem)
    except IdentityError:
        raise IdentityError("what was shown as a certificate is none") from None
    who = f"certificate of {shown_name(certificate)}"
    authority = plain(common_name(ca.subject))
    if not is_signed_by(certificate, ca):
        raise IdentityError(f"{who} is signed by another authority than {authority}")
    _check_dates(ca, f"certificate of the authority {authority}", now)
    _check_dates(certificate, who, now)
    if crl is not None:
        check_crl(crl, ca)
        entry = crl.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is not None:
            raise IdentityError(f"{who} was revoked on {moment(entry.revocation_date_utc)}")
    name, role = common_name(certificate.subject), role_of(certificate)
    if not is_name(name) or role is None:
        raise IdentityError(f"{who} has no role: metis certs did not make it")
    return Identity(name, role, certificate.serial_number)


def role_of(certificate: x509.Certificate) -> Role | None:
    """Return the role in a certificate; None unless its unit and its usage agree on one."""
    unit = unit_name(certificate.subject)
    usages: list[x509.ObjectIdentifier] = []
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.ExtendedKeyUsage):
            usages += extension.value
        if isinstance(extension.value, x509.BasicConstraints) and extension.value.ca:
            return None
    found = [role for role in ROLES if role == unit]
    return found[0] if found and usages == [USAGE[found[0]]] else None


def shown_name(certificate: x509.Certificate) -> str:
    """Return a certificate's name for a message; one that we did not make may have an odd one."""
    name = common_name(certificate.subject)
    return name if is_name(name) else repr(plain(name))


def _check_dates(certificate: x509.Certificate, who: str, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise IdentityError(f"{who} is not valid before {moment(certificate.not_valid_before_utc)}")
    if now > certificate.not_valid_after_utc:
        raise IdentityError(f"{who} expired on {moment(certificate.not_valid_after_utc)}")
