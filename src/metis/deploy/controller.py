"""The controller as a process: it listens until it is stopped, or the federation is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from metis.config import Config
from metis.core.errors import ConfigError
from metis.deploy.allocator import keep_freed_memory
from metis.live.host import Clockwork, conclude
from metis.live.service import Service
from metis.runtime.records import AuditRecord
from metis.security.credentials import Credentials, CrlChange
from metis.transport.gate import Gate, Identify, by_certificate, by_name
from metis.transport.rpc import Opening, serve, server_credentials

_DRAIN_SECONDS = 30.0  # for what is under way when it is stopped
_CRL_SECONDS = 5.0  # between looks at the revocation list when nobody calls


@dataclass(frozen=True, slots=True)
class Front:
    """How a controller shows itself to the network."""

    listen: str
    certs: Path | None  # None: plain text, on this machine only
    reflection: bool = False
    linger_seconds: float = 60.0  # at the end, for learners that are away to hear of it


def run_controller(
    directory: Path,
    service: Service,
    config: Config,
    front: Front,
    stop: threading.Event,
    ready: Callable[[int], None] = lambda port: None,
) -> str:
    """Serve until the federation is over, somebody stops it, or `stop` is set; return why.

    `ready` is told the port. Raises what made it impossible to go on.
    """
    keep_freed_memory()
    reasons: list[str] = []

    def stop_for(reason: str) -> None:
        reasons.append(reason)
        stop.set()

    credentials, identify, look = _security(service, front)
    opening = Opening(
        front.listen, config.learners, credentials, front.reflection, config.live.calls_at_once
    )
    server, port = serve(service, opening, Gate(identify, config.live, service.audit), stop_for)
    clockwork = Clockwork(service, look)
    try:
        ready(port)
        while not stop.wait(0.1) and service.over is None and service.broken is None:
            pass
        until = time.monotonic() + front.linger_seconds
        while service.over is not None and not stop.is_set() and time.monotonic() < until:
            if service.everybody_knows():
                break
            time.sleep(0.05)
    finally:
        clockwork.stop()
        service.end("the controller is being stopped", over=False)
        server.stop(grace=_DRAIN_SECONDS).wait()
    if service.broken is not None:
        raise service.broken
    conclude(directory, service)
    service.journal.close()
    return service.over or (reasons[0] if reasons else "stopped")


def check_certificates(certs: Path) -> None:
    """Raise what is wrong with a controller's certificates, before anything is founded."""
    _credentials(certs, 0, lambda change: None)


def _credentials(
    certs: Path, minimum_crl_number: int, changed: Callable[[CrlChange], None]
) -> Credentials:
    found = Credentials(
        certs, datetime.now(UTC), minimum_crl_number=minimum_crl_number, on_crl=changed
    )
    if found.identity.role != "controller":
        raise ConfigError(
            f"--certs: {found.identity.name} is certified as {found.identity.role}; "
            "a controller needs `metis certs issue ... --role controller`"
        )
    return found


def _security(
    service: Service, front: Front
) -> tuple[grpc.ServerCredentials | None, Identify, Callable[[], None]]:
    """Return what to prove ourselves by, how to know callers, and what to look at now and then."""
    if front.certs is None:
        return None, by_name, lambda: None

    ledger = service.ledger

    def changed(change: CrlChange) -> None:
        what = "revocation list taken" if change.taken else "revocation list refused"
        number = ledger.crl_number = max(ledger.crl_number, change.number or 0)
        # With the number: a restart takes it from here, if no checkpoint was made since.
        service.note(
            AuditRecord(what=what, who="controller", reason=change.message, crl_number=number)
        )

    credentials = _credentials(front.certs, ledger.crl_number, changed)
    number = credentials.crl_number or 0
    if number > ledger.crl_number:
        changed(CrlChange(True, number, f"revocation list number {number} at the start"))
    looked = time.monotonic()

    def look() -> None:
        nonlocal looked
        if time.monotonic() - looked > _CRL_SECONDS:
            looked = time.monotonic()
            credentials.refresh()

    made = server_credentials(credentials.key_pem, credentials.certificate_pem, credentials.ca_pem)
    return made, by_certificate(credentials.identity_of), look
