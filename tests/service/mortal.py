"""A controller that dies where it is told, inside the process of the test."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from metis.config import Config, dump, load
from metis.core.errors import LineError, RunError
from metis.core.types import LearnerId
from metis.federation.transfers import packet_digest
from metis.journal.file import Journal, Listener, read_journal
from metis.service.connection import ModelRef, Order, Receipt
from metis.service.in_process import InProcessConnection
from metis.service.open_federation import found
from metis.service.service import Service
from tests.journal.linking import write_linked


class Killed(BaseException):
    """What a process notices of `kill -9`: nothing. Raised where it would have been killed."""


class Fuse:
    """Counts the moments at which a process can die, and ends its life at those given.

    A moment is a record written, or the time before and after a file is renamed, dropped or made
    safe. The dead do nothing more, in whatever thread: each moment after is Killed for them too.
    """

    def __init__(self, *at: int) -> None:
        self._at = set(at)
        self._turn = threading.Lock()
        self._thread = threading.local()
        self.count = 0
        self.life = 1
        self.at_death: Callable[[], None] = lambda: None

    def enter(self, life: int | None) -> None:
        """From now on this thread works for that life of the process; None: for somebody else."""
        self._thread.life = life

    def moment(self) -> None:
        life = getattr(self._thread, "life", None)
        if life is None:
            return
        with self._turn:
            if life == self.life:
                self.count += 1
                if self.count not in self._at:
                    return
                self.at_death()  # before anybody can begin the next life
                self.life += 1
            raise Killed


#: What is lost with a process: what it had not handed to the system yet, or had not made safe.
Loss = Literal["buffer", "unsynced"]


@dataclass
class Disk:
    """The directory of a mortal controller, and what is done to it."""

    fuse: Fuse
    directory: Path
    journals: list[Journal] = field(default_factory=list)
    num_synced: int = 0  # bytes of the journal that a power cut leaves

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replace, unlink = os.replace, os.unlink
        self.directory.mkdir(parents=True, exist_ok=True)
        grave = self.directory.with_name(f"{self.directory.name}-grave")

        def mortal_replace(source: Any, target: Any) -> None:
            self.fuse.moment()
            replace(source, target)
            self.fuse.moment()

        def mortal_fsync(descriptor: int) -> None:  # not for real, which would take most of a run
            self.fuse.moment()
            journal = self.directory / "journal.jsonl"
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(journal):
                self.num_synced = journal.stat().st_size
            self.fuse.moment()

        def mortal_unlink(path: Any, **more: Any) -> None:
            self.fuse.moment()
            if Path(path).suffix == ".packet":
                grave.mkdir(exist_ok=True)
                if Path(path).exists():  # kept so that the run can be replayed
                    (grave / Path(path).name).write_bytes(Path(path).read_bytes())
            unlink(path, **more)

        def opened(path: Path | None, listeners: tuple[Listener, ...] = ()) -> Journal:
            self.journals.append(Journal(path, (*listeners, lambda record: self.fuse.moment())))
            return self.journals[-1]

        self.fuse.at_death = self.let_go
        monkeypatch.setattr(os, "replace", mortal_replace)
        monkeypatch.setattr(os, "fsync", mortal_fsync)
        monkeypatch.setattr(os, "unlink", mortal_unlink)
        monkeypatch.setattr("metis.service.recovery.Journal", opened)

    def let_go(self) -> None:
        """Whatever a dead process had not handed to the system yet goes nowhere."""
        for journal in self.journals:
            file = journal._file
            if file is not None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, file.fileno())
                os.close(nowhere)

    def lose(self, loss: Loss) -> None:
        """Take from the disk what was not safe there."""
        path = self.directory / "journal.jsonl"
        if loss == "unsynced" and path.exists():
            os.truncate(path, min(self.num_synced, path.stat().st_size))

    def make_replayable(self) -> None:
        """Put back every packet that was dropped, and what only those who keep them note."""
        updates = self.directory / "updates"
        for dropped in self.directory.with_name(f"{self.directory.name}-grave").glob("task-*"):
            (updates / dropped.name).write_bytes(dropped.read_bytes())
        journal, config = self.directory / "journal.jsonl", self.directory / "config.toml"
        records = list(read_journal(journal))
        for record in records:
            if record["kind"] == "arrive" and "digest" not in record:
                packet = (updates / f"task-{record['task']}.packet").read_bytes()
                record["digest"] = packet_digest(packet)
        write_linked(journal, records)
        config.write_text(dump(load(config, output={"keep_updates": True})), encoding="utf-8")

    def close(self) -> None:
        for journal in self.journals:
            journal.close()


class Host:
    """A controller that is started again whenever it dies."""

    def __init__(
        self,
        disk: Disk,
        config: Config,
        initial: Path,
        loss: Loss = "buffer",
        checkpoint_every: int | None = None,  # calls
    ) -> None:
        self._disk = disk
        self._config = config
        self._initial = initial
        self._loss = loss
        self._checkpoint_every = checkpoint_every
        self._num_calls = 0
        self._turn = threading.Lock()
        self._life = disk.fuse.life
        self.receipts: list[tuple[LearnerId, int]] = []  # of all that a site was told is taken
        self.service = self._started()

    @property
    def directory(self) -> Path:
        return self._disk.directory

    @property
    def num_kills(self) -> int:
        return self._disk.fuse.life - 1

    @property
    def num_moments(self) -> int:
        return self._disk.fuse.count

    def _started(self) -> Service:
        fuse = self._disk.fuse
        while True:
            self._life = fuse.life
            fuse.enter(self._life)
            try:
                return found(self._disk.directory, self._config, self._initial)
            except Killed:
                self._disk.lose(self._loss)
            finally:
                fuse.enter(None)

    def call(self, name: str, *arguments: Any) -> Any:
        with self._turn:
            service, life = self.service, self._life
        fuse = self._disk.fuse
        fuse.enter(life)
        try:
            answer = getattr(service, name)(*arguments)
            if name == "fetch":
                answer = list(answer)
            self._num_calls += 1
            if self._checkpoint_every and self._num_calls % self._checkpoint_every == 0:
                service.checkpoint()
        except Killed:
            pass
        except RunError:
            if fuse.life == life:
                raise
        finally:
            fuse.enter(None)
        with self._turn:
            if self._life != fuse.life:
                self._disk.lose(self._loss)
                self.service = self._started()
            if self._life != life:
                raise LineError("the controller was killed")  # nobody heard its answer
        return answer

    def is_alive(self, service: Service) -> bool:
        return service is self.service


class MortalLine(InProcessConnection):
    """A line that goes down with the controller, and comes back with it."""

    def __init__(self, host: Host, learner: LearnerId) -> None:
        self._host = host
        self._me = learner

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in ("orders", "deliver", "fetch"):
            return object.__getattribute__(self, name)
        return lambda *arguments: self._host.call(name, self._me, *arguments)

    def fetch(self, item: ModelRef) -> Any:
        return iter(self._host.call("fetch", self._me, item))

    def deliver(self, delivery: Any, packet: Any) -> Receipt:
        receipt: Receipt = self._host.call("deliver", self._me, delivery, packet)
        if receipt.taken:
            self._host.receipts.append((self._me, delivery.task))
        return receipt

    def orders(self) -> Iterator[Order]:
        service = self._host.service
        for order in service.orders(self._me, wait_seconds=0.005):
            if not self._host.is_alive(service):
                raise LineError("the controller was killed")
            if order is not None:
                yield order
