"""What one endpoint proves itself with, and judges its peers by."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from metis.certs.authority import CA_CERTIFICATE, CA_KEY, CRL
from metis.certs.certificates import (
    crl_number,
    load_authority,
    load_certificate,
    load_crl,
    load_key,
    public_bytes,
    revoked_in,
)
from metis.certs.files import about, read, read_private
from metis.certs.identity import Identity, identity_of
from metis.core.errors import IdentityError


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the files of an endpoint lie. The revocation list may be missing at a learner."""

    key: Path
    certificate: Path
    ca: Path
    crl: Path


@dataclass(frozen=True, slots=True)
class CrlChange:
    """The revocation list's file changed: whether its content was taken, and what happened."""

    taken: bool
    number: int | None
    message: str


def find(directory: Path, name: str | None = None) -> Paths:
    """Return the files of a name in a directory; without a name, of the only key there."""
    if name is None:
        keys = sorted(path for path in directory.glob("*.key") if path.name != CA_KEY)
        if len(keys) != 1:
            held = f"keys of {', '.join(path.stem for path in keys)}" if keys else "no key"
            how = "say whose to use" if keys else "make one with metis certs request"
            raise IdentityError(f"{directory}: holds {held}; {how}")
        name = keys[0].stem
    return Paths(
        key=directory / f"{name}.key",
        certificate=directory / f"{name}.crt",
        ca=directory / CA_CERTIFICATE,
        crl=directory / CRL,
    )


class Credentials:
    """The key and certificate of an endpoint, its authority, and the newest revocation list.

    Once made, all of it belongs together: the key is the certificate's and nobody else's to read,
    the authority signed the certificate, which is valid `now` and not revoked. A controller must
    have a revocation list; others may.

    The list is read again when its file changes, at the next question. One that another authority
    signed, that is damaged, has a lower number than before (or the same and other entries), or has
    lost a revoked certificate is refused, and the one before it is kept. `on_crl` is told of each
    such change and refusal. A controller that remembers `crl_number` over a restart gives it as
    `minimum_crl_number`. Any thread may ask.
    """

    def __init__(
        self,
        where: Path | Paths,
        now: datetime,
        *,
        name: str | None = None,
        minimum_crl_number: int = 0,
        on_crl: Callable[[CrlChange], None] = lambda change: None,
    ) -> None:
        self.paths = where if isinstance(where, Paths) else find(where, name)
        self.key_pem = read_private(self.paths.key)
        self.certificate_pem = read(self.paths.certificate)
        self.ca_pem = read(self.paths.ca)
        with about(self.paths.key):
            key = load_key(self.key_pem)
        with about(self.paths.ca):
            self._ca = load_authority(self.ca_pem)
        with about(self.paths.certificate):
            certificate = load_certificate(self.certificate_pem)
            if public_bytes(certificate.public_key()) != public_bytes(key.public_key()):
                raise IdentityError(f"is not the certificate of the key in {self.paths.key}")
        self._minimum = minimum_crl_number
        self._on_crl = on_crl
        self._lock = threading.Lock()
        self._crl: x509.CertificateRevocationList | None = None
        self._seen: tuple[int, ...] | None = self._look()
        if self._seen is not None:
            self._crl = self._newer()
        with about(self.paths.certificate):
            self.identity = identity_of(self.certificate_pem, self._ca, self._crl, now)
        self.valid_until = certificate.not_valid_after_utc
        if self.identity.role == "controller" and self._crl is None:
            raise IdentityError(
                f"{self.paths.crl}: is missing; a controller refuses nobody without it: copy it "
                "from the authority"
            )

    def __repr__(self) -> str:
        return f"Credentials({self.identity.name}, {self.identity.role})"  # and never the key

    @property
    def crl_number(self) -> int | None:
        """The number of the revocation list in use; None without one."""
        crl = self._crl
        return None if crl is None else crl_number(crl)

    def identity_of(self, pem: bytes | str, now: datetime) -> Identity:
        """Return who a peer's certificate is for, by the newest list; raises IdentityError."""
        self.refresh()
        return identity_of(pem, self._ca, self._crl, now)

    def refresh(self) -> CrlChange | None:
        """Read the revocation list again if its file changed; return what came of it."""
        if self._look() == self._seen:
            return None
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return None  # another thread was faster
            change = self._take()
            self._seen = seen  # last: who finds nothing new to read has the newest list
        self._on_crl(change)
        return change

    def _take(self) -> CrlChange:
        before = self.crl_number
        try:
            self._crl = newer = self._newer()
        except IdentityError as error:
            kept = "none was there before" if before is None else f"number {before} is kept"
            return CrlChange(False, before, f"refused: {error}; {kept}")
        number = crl_number(newer)
        count = len(revoked_in(newer))
        return CrlChange(True, number, f"revocation list number {number}: {count} revoked")

    def _look(self) -> tuple[int, ...] | None:
        """Return what changes when the file does; None if there is none."""
        try:
            found = os.stat(self.paths.crl)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _newer(self) -> x509.CertificateRevocationList:
        """Return the list in the file, if it may follow the one we have."""
        content = read(self.paths.crl)
        with about(self.paths.crl):
            found = load_crl(content, self._ca)
            number, least = crl_number(found), self._minimum
            revoked = revoked_in(found)
            if self._crl is not None:
                least = max(least, crl_number(self._crl))
                known = revoked_in(self._crl)
                if number == crl_number(self._crl) and revoked != known:
                    raise IdentityError(f"differs from the revocation list of number {number}")
                if number >= least and not known.keys() <= revoked.keys():
                    raise IdentityError("has lost certificates that were revoked before")
            if number < least:
                raise IdentityError(
                    f"is an old revocation list: number {number}, but {least} is known"
                )
        return found
