"""A learner as a process: it dials the controller, learns what is wanted, and attends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc

from metis.certs.credentials import Credentials
from metis.config import Config
from metis.core.errors import HandshakeError, IdentityError, Interrupted, LineError
from metis.core.types import LearnerId
from metis.federation.handshake import agreed, differences, digest_of, read_agreed
from metis.service.connection import PROTOCOL, EndOfOrders, FederationInfo
from metis.service.grpc.client import GrpcConnection, channel_credentials
from metis.service.malloc_tuning import keep_freed_memory
from metis.service.site import News, Site

_LONGEST_WAIT_SECONDS = 30.0
Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class Call:
    """Whom to dial, and as whom."""

    controller: str
    name: str | None
    certs: Path | None  # None: plain text, on this machine only


@dataclass(frozen=True, slots=True)
class Work:
    """What a site brings: a config that names its data, or a function of its own."""

    config: Config | None
    app: str | None
    device: str | None = None


def credentials_for(call: Call) -> tuple[LearnerId, grpc.ChannelCredentials | None]:
    """Return the caller's name and what proves it."""
    if call.certs is None:
        if call.name is None:
            raise IdentityError("--name: without certificates a site must say who it is")
        return LearnerId(call.name), None
    found = Credentials(call.certs, datetime.now(UTC), name=call.name)
    if call.name not in (None, found.identity.name):
        raise IdentityError(f"--name {call.name}: the certificate is of {found.identity.name}")
    made = channel_credentials(found.key_pem, found.certificate_pem, found.ca_pem)
    return LearnerId(found.identity.name), made


def run_learner(
    call: Call,
    work: Work,
    directory: Path,
    stop: threading.Event,
    news: News = lambda sentence: None,
    share_tracebacks: bool = False,
) -> EndOfOrders | None:
    """Attend until the federation is over or `stop` is set; return its last words, if any."""
    keep_freed_memory()
    name, credentials = credentials_for(call)
    line = GrpcConnection(call.controller, name, credentials)
    try:
        charter = _insisting(line.charter, stop, news)
        config = _agreement(charter, work)
        site = _site(line, charter, config, work, name, directory, news, share_tracebacks)
        threading.Thread(target=_stop_when, args=(stop, site), daemon=True).start()
        return site.attend()
    finally:
        line.close()


def leave_for_good(call: Call, withdraw: bool) -> LearnerId:
    """Tell the controller not to wait for this site any more; return its name."""
    name, credentials = credentials_for(call)
    line = GrpcConnection(call.controller, name, credentials)
    try:
        line.leave(withdraw)
    finally:
        line.close()
    return name


def _agreement(charter: FederationInfo, work: Work) -> Config:
    """Return the config to work by. HandshakeError if ours and the controller's differ."""
    if charter.protocol != PROTOCOL:
        raise HandshakeError(
            f"this site speaks protocol {PROTOCOL}, the controller {charter.protocol}: "
            "install the same version of metis-fl on both"
        )
    if work.config is None:
        return read_agreed(charter.config)
    differing = differences(agreed(work.config), charter.config)
    if differing:
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise HandshakeError(f"the configs differ: {differing[0]}{more}")
    return work.config


def _site(
    line: GrpcConnection,
    charter: FederationInfo,
    config: Config,
    work: Work,
    name: LearnerId,
    directory: Path,
    news: News,
    share_tracebacks: bool,
) -> Site:
    # Here and not above: these need torch, which takes seconds to load.
    from metis.service.initial_model import own_learner
    from metis.service.site_memory import MemoryFile
    from metis.service.site_setup import equip, equip_own
    from metis.simulation.build import lay_out

    if work.app is not None:
        own = own_learner(work.app, name)
        equipment, mirror = equip_own(config, name, own, work.device or "cpu")
    else:
        equipment, mirror = equip(lay_out(config), name, digest_of(charter.config))
    ours = mirror.snapshot.layout.digest
    if ours != charter.layout:
        raise HandshakeError(
            f"this site's model has layout {ours}, the federation's {charter.layout}: "
            "they must have the same tensors, by name, shape and order"
        )
    memory = MemoryFile(directory, charter.federation, name)
    return Site(equipment, line, mirror, memory.read(), memory.keep, news, share_tracebacks)


def _stop_when(stop: threading.Event, site: Site) -> None:
    stop.wait()
    site.stop()


def _insisting(say: Callable[[], Said], stop: threading.Event, news: News) -> Said:
    wait = 0.5
    while True:
        try:
            return say()
        except LineError as error:
            news(f"trying again in {wait:.1f} s: {error}")
        if stop.wait(wait):
            raise Interrupted("stopped before the controller could be reached")
        wait = min(_LONGEST_WAIT_SECONDS, 2 * wait)
