"""A small consortium on disk: an authority and the certificates of some sites."""

from __future__ import annotations

import base64
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from metis.certs import authority
from metis.certs.certificates import Role, load_authority, load_crl
from metis.certs.identity import Identity, identity_of

#: The present, to the second: what TLS verifies, it verifies by the machine's own clock.
NOW = datetime.now(UTC).replace(microsecond=0)


def days(number: float) -> timedelta:
    return timedelta(days=number)


@dataclass(frozen=True, slots=True)
class Consortium:
    """An authority in `root`/ca, and one folder beside it for every site."""

    root: Path

    @property
    def directory(self) -> Path:
        return self.root / "ca"

    @property
    def ca(self) -> x509.Certificate:
        return load_authority((self.directory / "ca.crt").read_bytes())

    @property
    def crl(self) -> x509.CertificateRevocationList:
        return load_crl((self.directory / "crl.pem").read_bytes(), self.ca)

    def admit(
        self,
        name: str,
        role: Role = "learner",
        now: datetime = NOW,
        valid_days: int = 365,
    ) -> Path:
        """Let a site ask for a certificate and have it; return its folder, complete."""
        folder = self.root / name
        hosts = ("localhost", "127.0.0.1") if role == "controller" else ()
        authority.request(folder, name, hosts)
        issued = authority.issue(
            self.directory, name, folder / f"{name}.csr", now, role=role, days=valid_days
        )
        (folder / f"{name}.crt").write_bytes(issued.pem)
        for file in ("ca.crt", "crl.pem"):
            shutil.copy(self.directory / file, folder)
        return folder

    def identity(self, pem: bytes, now: datetime = NOW) -> Identity:
        return identity_of(pem, self.ca, self.crl, now)


def consortium(root: Path, name: str = "Consortium", now: datetime = NOW) -> Consortium:
    root.mkdir(parents=True, exist_ok=True)
    authority.create(root / "ca", name, now)
    return Consortium(root)


def der(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.strip().splitlines()[1:-1]))


def as_pem(content: bytes, like: bytes) -> bytes:
    """Return bytes in the armour of another PEM file."""
    lines = like.strip().splitlines()
    return b"\n".join([lines[0], base64.b64encode(content), lines[-1], b""])


def altered(pem: bytes, old: bytes, new: bytes) -> bytes:
    """Return a PEM file in whose content something was replaced by something as long."""
    content = der(pem)
    assert old in content
    assert len(old) == len(new)
    return as_pem(content.replace(old, new), pem)
