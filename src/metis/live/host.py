"""A service with a directory: begun, taken up again after a crash, kept going, concluded."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from metis.core.controller import Controller
from metis.core.errors import JournalError, MetisError, RunError
from metis.live.desk import NOTES, Terms
from metis.live.ledger import STORED, Ledger
from metis.live.service import Service
from metis.runtime.checkpoint import NAMES, place_latest
from metis.runtime.checkpoint import save as save_checkpoint
from metis.runtime.files import CHECKPOINT, FINAL, JOURNAL, LATEST, UPDATES
from metis.runtime.journal import EVENTS, Journal, Listener, Record, read_journal
from metis.runtime.records import StartRecord
from metis.store.atomic import sync_directory
from metis.store.pack import Names, read_packed, write_packed
from metis.store.packets import OnDisk
from metis.store.weights import save_safetensors

_LOOK_SECONDS = 0.2
_NAMES = NAMES | Names(STORED)


@dataclass(frozen=True, slots=True)
class Past:
    """What a directory holds of a federation."""

    ledger: Ledger
    records: list[Record]  # that followed the ledger
    journal: tuple[int, float]  # where the journal is to go on, and the seconds worked
    federation: str  # its name among all that were ever begun


def begin_or_go_on(
    directory: Path,
    terms: Terms,
    controller: Controller,
    header: Record,
    listeners: tuple[Listener, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Service:
    """Return a service that has all that was ever acknowledged in this directory.

    `controller` is a fresh one. `header` is the first record of a new journal; an old one must
    have begun with the same.
    """
    began = time.perf_counter()
    path = directory / JOURNAL
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}") from None
    past = _past(directory, controller, header)
    place_latest(past.ledger.controller, terms.latest_models, directory / LATEST)
    journal = Journal(path, listeners)
    journal.rewind(past.journal)

    def save(ledger: Ledger) -> None:
        state = {"ledger": ledger, "journal": journal.position()}

        def write() -> None:
            write_packed(directory / CHECKPOINT, state, _NAMES)
            sync_directory(directory)  # before anything is dropped that it makes needless

        save_checkpoint(ledger.controller, write)

    packets = OnDisk(directory / UPDATES)
    service = Service(terms, past.ledger, packets, journal, clock, save, past.federation)
    if past.journal[0] == 0:
        journal.write("run", 0.0, **header, federation=past.federation)
        journal.sync()
        sync_directory(directory)
    try:
        num_events = service.recover(past.records)
    except BaseException:
        journal.close()
        raise
    now = service.ledger.controller
    note = StartRecord(
        recovered_events=num_events,
        version=now.current.version,
        members=sorted(now.members),
        tasks=sorted((number, task.learner) for number, task in now.tasks.items()),
        evaluations=sorted(
            (number, ticket.waiting_for[number], ticket.update.task)
            for number, ticket in now.evaluations.items()
        ),
        wall_recovery_seconds=round(time.perf_counter() - began, 3),
        wall_time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    service.note(note)
    return service


def _past(directory: Path, controller: Controller, header: Record) -> Past:
    path = directory / JOURNAL
    began = next(read_journal(path), None) if path.exists() else None
    if began is None and (directory / CHECKPOINT).exists():
        raise JournalError(f"{path} is missing or empty, but there is a checkpoint: it was lost")
    if began is None:
        return Past(Ledger(controller), [], (0, 0.0), secrets.token_hex(8))
    for what, now in header.items():
        if began.get(what) != now:
            raise RunError(f"{directory} was begun with another {what}: {began.get(what)}")
    ledger, position = Ledger(controller), (0, 0.0)
    if (directory / CHECKPOINT).exists():
        state = read_packed(directory / CHECKPOINT, _NAMES)
        ledger, position = state["ledger"], state["journal"]
    start = position[0]
    if path.stat().st_size < start:
        raise JournalError(f"{path} is shorter than its checkpoint says: records are lost")
    records, length, wall_seconds = _since(path, start)
    if records:
        ledger.seconds = max(ledger.seconds, records[-1]["at"])
    worked = max(position[1], wall_seconds)
    return Past(ledger, records, (length, worked), began["federation"])


def _since(path: Path, start: int) -> tuple[list[Record], int, float]:
    """Return the records from a position up to the last that is kept, where that ends, and when.

    What follows the last event follows from it, and is written again; unless there is a note after
    it, which was written when all of it was.
    """
    records: list[Record] = []
    kept, length, position, seconds = 0, start, start, 0.0
    with open(path, "rb") as file:
        file.seek(start)
        for record, line in zip(read_journal(path, start), file, strict=False):
            records.append(record)
            position += len(line)
            if record["kind"] in EVENTS or record["kind"] in NOTES or record["kind"] == "run":
                kept, length, seconds = len(records), position, record["wall_seconds"]
    return records[:kept], length, seconds


def conclude(directory: Path, service: Service) -> None:
    """Leave all in order: a checkpoint, and the community model as a file of its own."""
    service.checkpoint()
    current = service.ledger.controller.current
    save_safetensors(directory / FINAL, current.weights, service.terms.layout)


class Clockwork:
    """Calls a service now and then, until it is stopped."""

    def __init__(self, service: Service, also: Callable[[], None] = lambda: None) -> None:
        self._service = service
        self._also = also
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="clockwork")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS) and self._service.broken is None:
            try:
                self._service.look_at_the_clock()
                self._also()
            except MetisError:
                if self._service.broken is None:  # else whoever keeps the service will see it
                    raise
