"""Recompute every community model of a run from its journal and its kept updates. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metis.codecs.choose import codec_of
from metis.config import load
from metis.core.errors import JournalError
from metis.core.events import Publish
from metis.core.types import Layout, Model, Snapshot, digest
from metis.runtime.compose import controller_of
from metis.runtime.files import CONFIG, INITIAL, JOURNAL, update_path
from metis.runtime.journal import Record, read_journal, record_event
from metis.runtime.post import packet_digest
from metis.store.atomic import read_bytes
from metis.store.weights import read_safetensors


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found: that many versions, each with the digest the journal gives."""

    num_events: int
    num_versions: int
    last_digest: str


def replay(directory: Path, on_version: Callable[[int], None] = lambda version: None) -> Replayed:
    """Feed a run's events to a new controller; JournalError at the first thing that differs."""
    try:
        return _replay(directory, on_version)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{directory / JOURNAL}: a record is damaged: {error!r}") from error


def _replay(directory: Path, on_version: Callable[[int], None]) -> Replayed:
    config = load(directory / CONFIG)
    records = read_journal(directory / JOURNAL)
    header = next(records, None)
    if header is None or header["kind"] != "run":
        raise JournalError(f"{directory / JOURNAL}: does not begin with a `run` record")
    if not config.output.keep_updates:
        raise JournalError(
            f"{directory} kept no updates to replay; run it with --set output.keep_updates=true"
        )
    layout = Layout.of_rows(header["tensors"])
    start = Snapshot(0, read_safetensors(directory / INITIAL, layout))
    _compare("version 0", digest(start.weights), header["initial"])
    controller = controller_of(config, start, layout, header["num_classes"])
    upload = codec_of(config.upload, layout)

    def update(record: Record) -> Model:
        task = controller.tasks.get(record["task"])
        base = start.weights if task is None else task.start.weights  # if not, it is refused
        path = update_path(directory, record["task"])
        packet = read_bytes(path)
        _compare(f"digest of {path}", packet_digest(packet), record["digest"])
        return upload.decode(packet, base)

    published: deque[Publish] = deque()
    num_events = 0
    for record in records:
        event = record_event(record, update)
        if event is not None:
            num_events += 1
            commands = controller.handle(event)
            published += [command for command in commands if isinstance(command, Publish)]
        elif record["kind"] == "version":
            if not published:
                raise JournalError(f"the replay made no version {record['version']}")
            _verify(published.popleft(), record)
            on_version(record["version"])
    return Replayed(num_events, controller.current.version, digest(controller.current.weights))


def _verify(made: Publish, record: Record) -> None:
    name = f"version {record['version']}"
    _compare(f"number of {name}", made.snapshot.version, record["version"])
    _compare(f"{name}: number of folds", len(made.folds), len(record["folds"]))
    for fold, told in zip(made.folds, record["folds"], strict=True):
        _compare(f"{name}: learner of task {fold.task}", fold.learner, told["learner"])
        _compare(f"{name}: weight of {fold.learner}", fold.weight, told["weight"])
    _compare(f"digest of {name}", digest(made.snapshot.weights), record["digest"])


def _compare(what: str, replayed: object, told: object) -> None:
    if replayed != told:
        raise JournalError(f"{what}: the replay gives {replayed}, the journal says {told}")
