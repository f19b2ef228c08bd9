"""A service with a directory: begun, taken up again after a crash, and kept going."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from metis.core.controller import Controller
from metis.core.errors import RunError
from metis.live.service import EVENTS, Service, Terms
from metis.runtime.files import JOURNAL, UPDATES
from metis.runtime.journal import Journal, Listener, Record, read_journal
from metis.store.atomic import sync_directory
from metis.store.packets import OnDisk

_LOOK_SECONDS = 0.2


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
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / JOURNAL
    past, length = _past(path)
    if past:
        _check_same(directory, past[0], header)
    journal = Journal(path, listeners)
    journal.rewind((length, past[-1]["wall_seconds"] if past else 0.0))
    service = Service(terms, controller, OnDisk(directory / UPDATES), journal, clock)
    if past:
        service.recover(past)
    else:
        journal.write("run", 0.0, **header)
        journal.sync()
        sync_directory(directory)
    return service


def _past(path: Path) -> tuple[list[Record], int]:
    """Return the records up to the last event, and how many bytes of the file they take.

    What follows the last event follows from it, and is written again.
    """
    if not path.exists():
        return [], 0
    records: list[Record] = []
    kept, length, position = 0, 0, 0
    with open(path, "rb") as file:
        for record, line in zip(read_journal(path), file, strict=False):
            records.append(record)
            position += len(line)
            if record["kind"] in EVENTS or record["kind"] == "run":
                kept, length = len(records), position
    return records[:kept], length


def _check_same(directory: Path, began: Record, header: Record) -> None:
    for what, now in header.items():
        if began.get(what) != now:
            raise RunError(f"{directory} was begun with another {what}: {began.get(what)}")


class Clockwork:
    """Calls a service now and then, until it is stopped."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="clockwork")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self._service.look_at_the_clock()
