"""Who may call what, and how often. Every call passes here first.

With certificates a caller is who its certificate says, looked at anew for every call, so that a
revocation counts at once. Without them only this very machine can call, and names are believed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import unquote

import grpc

from metis.core.errors import GoneError, HandshakeError, IdentityError, LineError
from metis.live.complaints import Audit, Complaints
from metis.live.settings import CallLimits

NAME = "metis-name"  # metadata of a caller without a certificate
_NAME_CHARACTERS = 64
_MANY = 10_000  # callers that are remembered


class Identified(Protocol):
    """A caller: what `security` says of its certificate."""

    @property
    def name(self) -> str: ...

    def require(self, *roles: str) -> None: ...


#: Returns who calls. Raises IdentityError for strangers.
Identify = Callable[[grpc.ServicerContext], Identified]


@dataclass(frozen=True, slots=True)
class Trusted:
    """Somebody on this very machine; all roles are theirs."""

    name: str

    def require(self, *roles: str) -> None:
        pass


@dataclass(slots=True)
class Account:
    """How one caller has used what it may."""

    allowance: float
    at: float
    at_once: int = 0


class Gate:
    """Lets calls through, or not. Any thread may ask."""

    def __init__(
        self,
        identify: Identify,
        limits: CallLimits = CallLimits(),  # noqa: B008 (frozen)
        audit: Audit = lambda what, who, reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identify = identify
        self._limits = limits
        self._clock = clock
        self._turn = threading.Lock()
        self._accounts: dict[str, Account] = {}
        self._complaints = Complaints(audit, clock)

    @contextmanager
    def open(self, context: grpc.ServicerContext, *roles: str) -> Iterator[str]:
        """Give the caller's name for as long as its call lasts.

        Raises IdentityError if it may not call this, LineError if it calls too often.
        """
        who = self.check(context, *roles)
        account = self._admit(who)
        try:
            yield who
        finally:
            with self._turn:
                account.at_once -= 1

    def check(self, context: grpc.ServicerContext, *roles: str) -> str:
        """Return who calls. IdentityError if it may not call what these roles may."""
        who = context.peer()
        try:
            caller = self._identify(context)
            who = caller.name
            caller.require(*roles)
        except IdentityError as error:
            self._refused("call refused", who, str(error))
            raise
        return who

    def _admit(self, who: str) -> Account:
        limits, now = self._limits, self._clock()
        with self._turn:
            if len(self._accounts) > _MANY:  # and so can names, where they are believed
                self._accounts = {n: a for n, a in self._accounts.items() if a.at_once}
            account = self._accounts.setdefault(who, Account(2 * limits.calls_per_second, now))
            refill = (now - account.at) * limits.calls_per_second
            account.allowance = min(2 * limits.calls_per_second, account.allowance + refill)
            account.at = now
            reason = ""
            if account.at_once >= limits.calls_at_once:
                reason = f"has {account.at_once} calls under way, which is all it may have"
            elif account.allowance < 1.0:
                reason = f"calls more than {limits.calls_per_second:g} times a second"
            else:
                account.allowance -= 1.0
                account.at_once += 1
        if reason:
            self._refused("call put off", who, f"{who} {reason}")
            raise LineError(f"{who} {reason}; try again later")
        return account

    def _refused(self, what: str, who: str, reason: str) -> None:
        """Say so for good, but not so often that it fills the disk."""
        # Of an address without its port, which is new every time. Behind it there may be several;
        # their reasons differ.
        self._complaints.add(what, _host(who), reason, kind=reason)


def _host(who: str) -> str:
    """Return an address such as `ipv6:%5B::1%5D:4711` without kind and port; a name as it is."""
    kind, _, address = unquote(who).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return who
    return address.rpartition(":")[0].strip("[]")


def by_name(context: grpc.ServicerContext) -> Identified:
    """Believe what a caller on this machine says its name is."""
    names = [value for key, value in context.invocation_metadata() if key == NAME]
    name = names[0] if names else ""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARACTERS or not name.isprintable():
        raise IdentityError("a caller without a certificate must say its name")
    return Trusted(name)


def by_certificate(look: Callable[[bytes, datetime], Identified]) -> Identify:
    """Return a way to know callers by `look`, which reads a certificate and vouches for it."""

    def identify(context: grpc.ServicerContext) -> Identified:
        certificates = context.auth_context().get("x509_pem_cert") or []
        if not certificates:
            raise IdentityError("a caller without a certificate is nobody here")
        return look(certificates[0], datetime.now(UTC))

    return identify


def reason_code(error: Exception) -> grpc.StatusCode:
    """Return the status that a caller is told for one of our errors."""
    if isinstance(error, IdentityError):
        return grpc.StatusCode.PERMISSION_DENIED
    if isinstance(error, HandshakeError):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, LineError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if isinstance(error, GoneError):
        return grpc.StatusCode.NOT_FOUND
    return grpc.StatusCode.INVALID_ARGUMENT
