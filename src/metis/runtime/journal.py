"""The only record of a run: one JSON object a line. Tables, plots and views read nothing else.

Fields that depend on the real clock are top-level and have `wall` in their name; all others are
the same in every run of one config and seed. `runtime.records` declares the kinds of record, and
docs/journal.md describes them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from metis.core.errors import JournalError, RunError
from metis.core.events import (
    Arrived,
    Evaluate,
    EvaluationExpired,
    Event,
    Failed,
    Fold,
    Joined,
    Left,
    Publish,
    Refuse,
    Scored,
    TaskExpired,
)
from metis.core.types import (
    ClassCounts,
    Counts,
    ErrorSums,
    LearnerId,
    Model,
    Profile,
    Task,
    Update,
    digest,
)
from metis.runtime.records import (
    ArriveRecord,
    EvaluateRecord,
    EvaluationExpiredRecord,
    FailRecord,
    FoldRow,
    JoinRecord,
    LeaveRecord,
    RefuseRecord,
    ScoreRecord,
    TaskExpiredRecord,
    TaskRecord,
    VersionRecord,
    as_fields,
    kind_of,
    read,
)
from metis.runtime.records import Record as Record

Listener: TypeAlias = Callable[[Record], None]

#: The records that are events: all that the controller is told.
EVENTS = {"join", "leave", "arrive", "fail", "score", "task-expired", "evaluation-expired"}

_FLUSH_SECONDS = 1.0
_AS_JSON = json.JSONEncoder(separators=(",", ":")).encode


class Journal:
    """Appends records to a file, and tells listeners of each.

    A killed process loses at most the last second and may leave half a line, which readers
    ignore. Without a path nothing is written and listeners are told all the same.
    """

    def __init__(self, path: Path | None, listeners: tuple[Listener, ...] = ()) -> None:
        self._listeners = listeners
        self._started = time.monotonic()
        self._flushed = 0.0
        self._path = path
        self.on_sync: Callable[[float], None] | None = None  # told the seconds that a sync took
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                self._file = open(path, "ab")  # noqa: SIM115 (closed by close)
            except OSError as error:
                raise RunError(f"cannot write {path}: {error.strerror}") from None

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._started

    def put(self, at: float, record: object) -> None:
        """Append one of the records that `runtime.records` declares."""
        self.write(kind_of(record), at, **as_fields(record))

    def write(self, kind: str, at: float, **fields: Any) -> None:
        wall = round(self.wall_seconds, 3)
        record: Record = {"kind": kind, "at": at, **fields, "wall_seconds": wall}
        if self._file is not None:
            with self._as_ours():
                self._file.write(_AS_JSON(record).encode() + b"\n")
                if wall - self._flushed > _FLUSH_SECONDS:
                    self._file.flush()
                    self._flushed = wall
        for listener in self._listeners:
            listener(record)

    def flush(self) -> None:
        """Let readers see all that was written; it outlives this process, if not a power cut."""
        if self._file is not None:
            with self._as_ours():
                self._file.flush()

    def sync(self) -> None:
        """Return when all that was written is on disk."""
        if self._file is not None:
            began = time.monotonic()
            with self._as_ours():
                self._file.flush()
                os.fsync(self._file.fileno())
            if self.on_sync is not None:
                self.on_sync(time.monotonic() - began)

    @contextmanager
    def _as_ours(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from None

    def position(self) -> tuple[int, float]:
        """Return where the file ends and the seconds worked, for a checkpoint to remember."""
        if self._file is None:
            return 0, self.wall_seconds
        self.sync()  # a checkpoint must not outlive the records it counts on
        return self._file.tell(), self.wall_seconds

    def rewind(self, position: tuple[int, float]) -> None:
        """Cut the file back to a remembered position, and count seconds on from there."""
        num_bytes, wall_seconds = position
        if self._file is not None:
            if self._file.seek(0, os.SEEK_END) < num_bytes:
                raise JournalError(
                    f"{self._file.name} is shorter than the {num_bytes} bytes its checkpoint "
                    "knows of; records are lost, so the run must start anew"
                )
            self._file.truncate(num_bytes)
            self._file.seek(num_bytes)
        self._started = time.monotonic() - wall_seconds

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with self._as_ours():
                file.close()


def read_journal(path: Path, start: int = 0) -> Iterator[Record]:
    """Yield the records of a journal. Half a last line, as a crash leaves it, is not one.

    `start` is a position that a checkpoint remembered.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None
    with file:
        file.seek(start)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                record["kind"]
            except (ValueError, TypeError, KeyError):
                raise JournalError(f"{path}:{number}: not a journal record") from None
            yield record


# ---- events as records ------------------------------------------------------------------------


def event_record(event: Event, **more: Any) -> Any:
    """Return an event as a record; `more` are those of its fields that are not the event's own.

    `record_event` is its inverse.
    """
    match event:
        case Joined(p):
            return JoinRecord(
                learner=p.learner,
                num_examples=p.num_examples,
                steps_per_epoch=p.steps_per_epoch,
                group=p.group,
                num_held_out=p.num_held_out,
                steps_per_full_epoch=p.steps_per_full_epoch,
                **more,
            )
        case Left(learner, withdraw):
            return LeaveRecord(learner=learner, withdraw=withdraw, **more)
        case Arrived(u):
            return ArriveRecord(
                learner=u.learner,
                task=u.task,
                base_version=u.base_version,
                num_examples=u.num_examples,
                num_steps=u.num_steps,
                seconds=u.seconds,
                counts=counts_record(u.counts),
                **more,
            )
        case Failed(learner, task, reason):
            return FailRecord(learner=learner, task=task, reason=reason, **more)
        case Scored(evaluation, counts):
            return ScoreRecord(evaluation=evaluation, counts=counts_record(counts), **more)
        case TaskExpired(task):
            return TaskExpiredRecord(task=task, **more)
        case EvaluationExpired(evaluation):
            return EvaluationExpiredRecord(evaluation=evaluation, **more)


def record_event(record: Record, model: Callable[[ArriveRecord], Model]) -> Event | None:
    """Return the event a record tells of, or None if it tells of something else.

    `model` returns the stored model of an update by its record.
    """
    if record["kind"] not in EVENTS:
        return None
    try:
        return _event(read(record), model)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise JournalError(f"{record['kind']!r} record is damaged: {error!r}") from None


def _event(told: Any, model: Callable[[ArriveRecord], Model]) -> Event:
    match told:
        case JoinRecord():
            profile = Profile(
                LearnerId(told.learner),
                told.num_examples,
                told.steps_per_epoch,
                told.group,
                told.num_held_out,
                told.steps_per_full_epoch,
            )
            return Joined(profile)
        case LeaveRecord():
            return Left(LearnerId(told.learner), told.withdraw)
        case ArriveRecord():
            return Arrived(
                Update(
                    learner=LearnerId(told.learner),
                    task=told.task,
                    weights=model(told),
                    base_version=told.base_version,
                    num_examples=told.num_examples,
                    num_steps=told.num_steps,
                    seconds=told.seconds,
                    counts=record_counts(told.counts),
                )
            )
        case FailRecord():
            return Failed(LearnerId(told.learner), told.task, told.reason)
        case ScoreRecord():
            return Scored(told.evaluation, record_counts(told.counts))
        case TaskExpiredRecord():
            return TaskExpired(told.task)
        case EvaluationExpiredRecord():
            return EvaluationExpired(told.evaluation)
        case _:
            raise TypeError(f"{type(told).__name__} is no event")


def version_record(command: Publish) -> VersionRecord:
    """Return the record of a version."""
    return VersionRecord(
        version=command.snapshot.version,
        digest=digest(command.snapshot.weights),
        committed_steps=command.committed_steps,
        drift=command.drift,
        packet_bytes=None if command.packet is None else len(command.packet),
        folds=[_fold_row(fold) for fold in command.folds],
    )


def task_record(task: Task, num_bytes: int) -> TaskRecord:
    """Return the record of a task that is handed out."""
    return TaskRecord(
        task=task.number,
        learner=task.learner,
        version=task.start.version,
        committed_steps=task.committed_steps,
        max_steps=task.max_steps,
        rate_factor=task.rate_factor,
        all_examples=task.all_examples,
        bytes_down=num_bytes,
    )


def evaluate_record(command: Evaluate, num_bytes: int) -> EvaluateRecord:
    """Return the record of a judge that is asked."""
    return EvaluateRecord(
        evaluation=command.evaluation,
        judge=command.judge,
        learner=command.learner,
        task=command.task,
        bytes_down=num_bytes,
    )


def refuse_record(command: Refuse) -> RefuseRecord:
    """Return the record of an answer that is not taken."""
    return RefuseRecord(learner=command.learner, task=command.task, reason=command.reason)


def _fold_row(fold: Fold) -> FoldRow:
    return FoldRow(
        learner=fold.learner,
        task=fold.task,
        weight=fold.weight,
        score=fold.score,
        num_steps=fold.num_steps,
        versions_behind=fold.versions_behind,
        steps_behind=fold.steps_behind,
        judges=len(fold.judges),
        missing=list(fold.missing),
    )


def counts_record(counts: Counts | None) -> Record | None:
    """Return counts as JSON. A confusion matrix lists its non-zero cells only: few of 62 x 62."""
    if counts is None:
        return None
    if isinstance(counts, ClassCounts):
        flat = counts.matrix.ravel()
        cells = np.flatnonzero(flat)
        return {
            "classes": len(counts.matrix),
            "cells": cells.tolist(),
            "counts": flat[cells].tolist(),
        }
    return {
        "num_examples": counts.num_examples,
        "squared_error": counts.squared_error,
        "absolute_error": counts.absolute_error,
        "target": counts.target,
        "target_squared": counts.target_squared,
    }


def record_counts(record: Record | None) -> Counts | None:
    if record is None:
        return None
    if "classes" in record:
        flat = np.zeros(record["classes"] ** 2, dtype=np.int64)
        flat[record["cells"]] = record["counts"]
        return ClassCounts(flat.reshape(record["classes"], record["classes"]))
    return ErrorSums(**record)
