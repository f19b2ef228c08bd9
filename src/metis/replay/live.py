"""The journal of a federation in real time, whose events go to a new controller once more.

Its events are facts: who said what, and when. All else follows from them, what each site was
sent included, but for one thing. A controller hands out nothing more once the federation has
lasted its time; how long that is may change from start to start, so it is no part of the config
that a directory keeps. So tasks and evaluations may be missing if the federation is over before
there are any others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from metis.codecs.dense import Dense
from metis.codecs.packet import checksum_of
from metis.core.codec import Codec
from metis.core.controller import Controller
from metis.core.errors import JournalError, ModelError
from metis.core.events import Command, Evaluate, Publish, Refuse, Train
from metis.core.types import Layout, Model, Snapshot
from metis.federation.transfers import Transfers, TransferState, packet_digest
from metis.journal.file import (
    EVENTS,
    Record,
    evaluate_record,
    record_event,
    refuse_record,
    task_record,
    version_record,
)
from metis.journal.paths import update_path
from metis.journal.records import ArriveRecord, as_fields, kind_of
from metis.replay.original import Original
from metis.storage.atomic import read_bytes

#: The kinds of record that follow from the last event.
_FOLLOWING = {"version", "task", "evaluate", "refuse"}
_OVER = {"versions", "seconds"}


@dataclass(slots=True)
class LiveReplay:
    """A live federation as far as its journal has been read."""

    original: Original
    controller: Controller
    upload: Codec
    post: Transfers
    directory: Path
    mail: TransferState = field(default_factory=TransferState)
    arrived: dict[int, int] = field(default_factory=dict)  # task -> bytes; neither folded nor not
    pending: deque[Command] = field(default_factory=deque)  # that no record was found of yet
    skipped: JournalError | None = None  # the first order that is missing
    skipped_at: int = 0  # version
    over: bool = False  # an `end` was found, and no `start` since

    def take(self) -> None:
        """Verify the next record."""
        record = self.original.peek()
        assert record is not None
        kind = record["kind"]
        if kind in _FOLLOWING:
            self._follow(kind)
            return
        self._settle()
        if kind in EVENTS:
            self._tell(record)
        elif kind == "start":
            self.original.compare({**record, **_standing(self.controller)})
            self.over = False
        elif kind == "end":
            self._end(record)
        elif kind == "audit":
            self.original.compare(record)
        else:
            raise self.original.ahead("there is no such record in real time, or only once")

    def end(self) -> str | None:
        """Return the first record that a controller which was killed had not written yet.

        Orders since the last version may be missing: the controller may have been at its end.
        """
        if self.skipped is not None:
            if self.skipped_at < self.controller.current.version:
                raise self.skipped
            return "end"
        return _name(self.pending[0]) if self.pending else None

    def _end(self, record: Record) -> None:
        """Orders may be missing if this is why, and only since the version that was the last."""
        reason, version = record["reason"], self.controller.current.version
        if self.skipped is not None and (
            reason not in _OVER or (reason == "versions" and self.skipped_at < version)
        ):
            raise self.skipped
        self.original.compare(record)
        self.skipped, self.over = None, True

    def _tell(self, record: Record) -> None:
        if self.over:
            raise self.original.ahead("nothing happens after the end")
        made = dict(record)
        kind = record["kind"]
        if kind == "score":
            ticket = self.controller.evaluations.get(record["evaluation"])
            if ticket is None:
                raise self.original.ahead("evaluation is not open")
            made["judge"] = ticket.waiting_for[record["evaluation"]]
        packet = b""
        if kind == "arrive":
            packet = read_bytes(update_path(self.directory, record["task"]))
            self.arrived[record["task"]] = len(packet)
            made["bytes_up"], made["checksum"] = len(packet), checksum_of(packet)
            made["digest"] = packet_digest(packet)
        told = self.original.compare(made)
        if kind == "join":
            self.mail.hold(told["learner"], told["holds"])
        try:
            event = record_event(told, lambda update: self._model(update, packet))
        except JournalError as error:
            raise self.original.fault(str(error)) from None
        assert event is not None
        self.pending.extend(self.controller.handle(event))

    def _model(self, update: ArriveRecord, packet: bytes) -> Model:
        task = self.controller.tasks.get(update.task)
        start = self.controller.current if task is None else task.start  # if not, it is refused
        try:
            return self.upload.decode(packet, start.weights)
        except ModelError as error:
            path = update_path(self.directory, update.task)
            raise JournalError(f"{path} is damaged: {error}") from None

    def _follow(self, kind: str) -> None:
        while self.pending:
            command = self.pending.popleft()
            if isinstance(command, Train | Evaluate):
                if kind not in ("task", "evaluate"):
                    self._skip(command)
                    continue
                if self.skipped is not None:
                    raise self.skipped
            made = self._made(command)
            self.original.compare(
                {"kind": kind_of(made), "at": 0.0, "wall_seconds": 0.0, **as_fields(made)}
            )
            return
        raise self.original.ahead("where the replay makes nothing more")

    def _settle(self) -> None:
        """Nothing more follows from the last event."""
        while self.pending:
            command = self.pending.popleft()
            if not isinstance(command, Train | Evaluate):
                raise self.original.ahead(f"where the replay makes {_name(command)}")
            self._skip(command)

    def _skip(self, command: Train | Evaluate) -> None:
        if self.skipped is None:
            self.skipped = self.original.ahead(f"where the replay makes {_name(command)}")
            self.skipped_at = self.controller.current.version

    def _made(self, command: Command) -> object:
        match command:
            case Publish(snapshot):
                self.post.publish(self.mail, snapshot.version, command.packet)
                for fold in command.folds:
                    self.arrived.pop(fold.task, None)
                return version_record(command)
            case Train(task):
                route = self.post.to_learner(self.mail, task.learner, task.start.version)
                return task_record(task, route.num_bytes)
            case Evaluate():
                packet_bytes = self.arrived[command.task]
                route = self.post.to_judge(
                    self.mail, command.judge, command.base_version, packet_bytes
                )
                return evaluate_record(command, route.num_bytes)
            case Refuse():
                self.arrived.pop(command.task, None)
                return refuse_record(command)


def replay_live(
    original: Original,
    upload: Codec,
    controller: Controller,
    layout: Layout,
    directory: Path,
) -> str | None:
    """Verify all records but the first; return the one that follows and is not written yet."""
    post = Transfers(upload, Dense(layout).num_bytes)
    live = LiveReplay(original, controller, upload, post, directory)
    while original.peek() is not None:
        live.take()
    return live.end()


def _standing(controller: Controller) -> Record:
    """Return what a controller says of itself when its process has begun."""
    return {
        "version": controller.current.version,
        "members": sorted(controller.members),
        "tasks": sorted((number, task.learner) for number, task in controller.tasks.items()),
        "evaluations": sorted(
            (number, ticket.waiting_for[number], ticket.update.task)
            for number, ticket in controller.evaluations.items()
        ),
    }


def _name(command: Command) -> str:
    match command:
        case Publish(Snapshot(version)):
            return f"version {version}"
        case Train(task):
            return f"task {task.number}"
        case Evaluate(number):
            return f"evaluation {number}"
        case Refuse(_, task):
            return f"refuse of task {task}"
