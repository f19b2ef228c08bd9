"""Keys, requests, certificates and revocation lists: what is in them, and how they are made.

Bytes and values only: no files (`authority`, `credentials`) and no clock (`now` is given, in UTC).
Keys are ECDSA P-256, signatures SHA-256.

A certificate has one role, as the organizational unit (OU) of its subject. The authority writes
it; what a request says about itself is not copied. An OU rather than an extension of our own,
because every tool shows it (`openssl x509 -subject`, a proxy's log) and no number has to be
registered for it. The extended key usage says the same to TLS itself, which knows nothing of roles:
only a controller's certificate may serve, and only the others may dial. A peer whose role and usage
differ is refused (`identity`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from metis.core.errors import IdentityError, unknown

Role = Literal["learner", "controller", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

USAGE = {
    "learner": ExtendedKeyUsageOID.CLIENT_AUTH,
    "controller": ExtendedKeyUsageOID.SERVER_AUTH,
    "operator": ExtendedKeyUsageOID.CLIENT_AUTH,
}

#: Everything that the library is known to raise for bytes that are not what they should be.
MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.AttributeNotFound,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

#: A certificate is valid from a little before it was made: clocks of sites differ.
CLOCK_SLACK = timedelta(minutes=10)

MAX_DAYS = 36_500

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_FILES = ("ca", "crl")  # ca.key, ca.crt and crl.pem lie beside SITE.key and SITE.crt


# ---- names ------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise IdentityError unless a site may be called this."""
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"{plain(name)!r} cannot be a name: 1 to 64 letters, digits, dots, dashes and "
            "underscores, the first a letter or digit"
        )
    if name.lower() in _FILES:
        raise IdentityError(f"{name!r} cannot be a name: files of the authority are called so")


def check_role(role: str, name: str) -> Role:
    """Return the role. A role's own name is for that role: no learner is called controller."""
    if role not in ROLES:
        raise IdentityError(unknown("role", role, ROLES))
    if name.lower() in ROLES and name.lower() != role:
        raise IdentityError(
            f"the name {name!r} is reserved for {a(name.lower())}; it cannot be {a(role)}"
        )
    return role


def a(role: str) -> str:
    """Return a role with its article, for a message."""
    return f"an {role}" if role.startswith("o") else f"a {role}"


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def plain(text: object) -> str:
    """Return foreign text fit for a message: short, and nothing in it that moves a cursor."""
    shown = str(text)
    shown = shown if shown.isprintable() else ascii(shown)[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def host(text: str) -> x509.GeneralName:
    """Return a host as certificates write it: an address, or a name without wildcards."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        labels = text.removesuffix(".").split(".")
    numeric = labels[-1].isdigit()  # 10.0.0.300 is an address gone wrong
    if len(text) > 253 or numeric or not all(_LABEL.fullmatch(label) for label in labels):
        raise IdentityError(
            f"{plain(text)!r} is no host: give a name such as hub.example.org or an address such "
            "as 10.0.0.5, without a port"
        )
    return x509.DNSName(text.removesuffix(".").lower())


def moment(when: datetime) -> str:
    """Return a moment as messages show it."""
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _second(when: datetime) -> datetime:
    """Return a moment as certificates write it, in whole seconds."""
    return when.replace(microsecond=0)


# ---- keys -------------------------------------------------------------------------------------


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a file holds it. For the file alone: never print it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return a private key. The error tells nothing of what the bytes are."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except MALFORMED:
        raise IdentityError("holds no private key that can be read") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.curve):
        raise IdentityError("holds a private key that is not ECDSA P-256")
    return key


def public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    """Return a public key's own bytes: two keys are the same if these are."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(key: CertificatePublicKeyTypes) -> str:
    """Return what two people compare by phone: half of the SHA-256 of a public key.

    128 bits, so that it is read to the end: to find another key with the same ones would take
    2^128 attempts.
    """
    digest = hashlib.sha256(public_bytes(key)).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are the same, however they are spaced."""
    return _digits(one) == _digits(other)


def _digits(text: str) -> str:
    return re.sub(r"[\s:-]", "", text).lower()


def _is_p256(curve: ec.EllipticCurve) -> bool:
    return curve.name == ec.SECP256R1.name


# ---- requests ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """What a site asks to be certified: its name, its public key, and where it can be dialled."""

    name: str
    key: ec.EllipticCurvePublicKey
    hosts: tuple[x509.GeneralName, ...]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


def new_request(name: str, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str] = ()) -> bytes:
    """Return a signed request (CSR, PEM) for this name."""
    check_name(name)
    asked = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    if hosts:
        names = dict.fromkeys(host(text) for text in hosts)
        asked = asked.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return asked.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def load_request(pem: bytes) -> Request:
    """Return what a CSR asks for. Its signature is right: the asker has the private key."""
    try:
        asked = x509.load_pem_x509_csr(pem)
        key, signed = asked.public_key(), asked.is_signature_valid
        subject = list(asked.subject)
        extensions = list(asked.extensions)
    except MALFORMED:
        raise IdentityError("is no certificate request (CSR)") from None
    if not signed:
        raise IdentityError("has a wrong signature: it was damaged or changed on the way")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key.curve):
        raise IdentityError("is for a key that is not ECDSA P-256: see metis certs request")
    if len(subject) != 1 or subject[0].oid != NameOID.COMMON_NAME:
        raise IdentityError("asks for more than a common name (CN): see metis certs request")
    hosts: list[x509.GeneralName] = []
    for extension in extensions:
        if not isinstance(extension.value, x509.SubjectAlternativeName):
            raise IdentityError(f"asks for an extension ({extension.oid.dotted_string})")
        hosts += (host(_host_text(name)) for name in extension.value)
    return Request(str(subject[0].value), key, tuple(hosts))


def _host_text(name: x509.GeneralName) -> str:
    if not isinstance(name, x509.DNSName | x509.IPAddress):
        raise IdentityError("asks for an alternative name that is neither a host nor an address")
    return str(name.value)


# ---- certificates -----------------------------------------------------------------------------


def new_authority(
    name: str, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.Certificate:
    """Return the certificate with which an authority vouches for itself, and no other one."""
    if not 1 <= len(name) <= 64 or not name.isprintable() or not name.strip():
        raise IdentityError(f"{plain(name)!r} cannot be an authority's name: 1 to 64 characters")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        _certificate(subject, subject, key.public_key(), new_serial(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(_own_mark(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def new_certificate(
    request: Request,
    role: Role,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    serial: int,
    now: datetime,
    days: int,
) -> x509.Certificate:
    """Return a certificate of one role for the name, key and hosts of a request."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, common_name(ca.subject)),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, request.name),
        ]
    )
    made = (
        _certificate(subject, ca.subject, request.key, serial, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGE[role]]), critical=False)
        .add_extension(_own_mark(request.key), critical=False)
        .add_extension(_mark_of(ca), critical=False)
    )
    if request.hosts:
        made = made.add_extension(x509.SubjectAlternativeName(request.hosts), critical=False)
    return made.sign(ca_key, hashes.SHA256())


def new_serial() -> int:
    """Return a number that nobody can guess, of 16 hexadecimal digits."""
    return secrets.randbits(62) | 1 << 62


def serial_text(serial: int) -> str:
    return f"{serial:016x}"


def load_certificate(pem: bytes | str) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(pem.encode() if isinstance(pem, str) else pem)
        # Lazily read parts are read here, so that nothing later meets a damaged one.
        _ = found.subject, found.issuer, found.extensions, found.public_key()
    except MALFORMED:
        raise IdentityError("is no certificate") from None
    return found


def load_authority(pem: bytes) -> x509.Certificate:
    """Return an authority's certificate: it may sign others, and has signed itself."""
    found = load_certificate(pem)
    constraints = [e.value for e in found.extensions if isinstance(e.value, x509.BasicConstraints)]
    if not constraints or not constraints[0].ca or not is_signed_by(found, found):
        raise IdentityError("is not the certificate of an authority")
    if not isinstance(found.public_key(), ec.EllipticCurvePublicKey):
        raise IdentityError("is the certificate of an authority whose key is not ECDSA P-256")
    return found


def is_signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, *MALFORMED):
        return False
    return True


def common_name(subject: x509.Name) -> str:
    """Return the one common name of a subject; empty if it has none or several."""
    return _only(subject, NameOID.COMMON_NAME)


def unit_name(subject: x509.Name) -> str:
    """Return the one organizational unit of a subject; empty if it has none or several."""
    return _only(subject, NameOID.ORGANIZATIONAL_UNIT_NAME)


def _only(subject: x509.Name, oid: x509.ObjectIdentifier) -> str:
    found = subject.get_attributes_for_oid(oid)
    return str(found[0].value) if len(found) == 1 else ""


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            return tuple(plain(name.value) for name in extension.value)
    return ()


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    if not 1 <= days <= MAX_DAYS:
        raise IdentityError(f"a certificate is valid for 1 to {MAX_DAYS} days, not {days}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(_second(now) - CLOCK_SLACK)
        .not_valid_after(_second(now) + timedelta(days=days))
    )


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _own_mark(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _mark_of(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    key = ca.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


# ---- revocation lists -------------------------------------------------------------------------


def new_crl(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    number: int,
    revoked: Iterable[tuple[int, datetime]],
    now: datetime,
) -> x509.CertificateRevocationList:
    """Return a signed list of revoked serials and when each was revoked.

    It is good until the authority itself ends: a federation does not stop because nobody signed
    the same list again. That a newer one exists is known by its number.
    """
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(_second(now) - CLOCK_SLACK)
        .next_update(ca.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_mark_of(ca), critical=False)
    )
    for serial, when in revoked:
        made = made.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(serial)
            .revocation_date(_second(when))
            .build()
        )
    return made.sign(ca_key, hashes.SHA256())


def load_crl(pem: bytes, ca: x509.Certificate) -> x509.CertificateRevocationList:
    """Return a revocation list that this authority signed."""
    try:
        found = x509.load_pem_x509_crl(pem)
        crl_number(found)
        _ = revoked_in(found)
    except MALFORMED:
        raise IdentityError("is no revocation list (CRL)") from None
    check_crl(found, ca)
    return found


def check_crl(crl: x509.CertificateRevocationList, ca: x509.Certificate) -> None:
    """Raise IdentityError unless this authority signed the list."""
    key = ca.public_key()
    try:
        signed = (
            isinstance(key, ec.EllipticCurvePublicKey)
            and crl.issuer == ca.subject
            and crl.is_signature_valid(key)
        )
    except MALFORMED:
        signed = False
    if not signed:
        raise IdentityError(
            f"is a revocation list that {plain(common_name(ca.subject))} did not sign, or that "
            "was changed since"
        )


def crl_number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def revoked_in(crl: x509.CertificateRevocationList) -> dict[int, datetime]:
    """Return all revoked serials and when each was revoked."""
    return {entry.serial_number: entry.revocation_date_utc for entry in crl}
