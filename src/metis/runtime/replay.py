"""Recompute all that follows in a run's journal, and compare it field by field. No torch.

A simulation is simulated again with learners that report what the journal says
(`runtime.replay_simulated`); the events of a federation in real time go to a new controller
(`runtime.replay_live`). `runtime.records` says which fields follow, and which are taken for true:
what learners reported, test results, and in real time when something happened. The models that a
run leaves behind must be the versions that the journal says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metis.codecs.choose import codec_of
from metis.config import Config, load
from metis.core.errors import JournalError
from metis.core.recipes import Recipe
from metis.core.types import Layout, Snapshot, digest
from metis.report.summary import Tally
from metis.runtime.compose import controller_of, known_of, learner_groups, recipe_of
from metis.runtime.files import BEST, CONFIG, FINAL, INITIAL, JOURNAL, SUMMARY
from metis.runtime.journal import EVENTS, Record
from metis.runtime.original import Original
from metis.runtime.records import FIELDS, KINDS
from metis.runtime.replay_live import replay_live
from metis.runtime.replay_simulated import SimulatedReplay, replay_simulated
from metis.store.weights import read_safetensors

#: What values that no run could have written lead to.
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay verified: every derived field of so many records, and these files."""

    num_events: int
    num_versions: int
    last_digest: str
    records: Mapping[str, int]  # by kind
    reported: Mapping[str, Sequence[str]]  # the fields that nothing else determines, by kind
    files: Sequence[str]
    unwritten: str | None  # the record that comes next, if the journal is not at its end


def replay(
    directory: Path,
    on_version: Callable[[int], None] = lambda version: None,
    recipe: Recipe | None = None,
) -> Replayed:
    """Verify a run whose updates were kept; JournalError at the first thing that differs.

    `recipe` is the one that was passed in Python, if it was.
    """
    config = load(directory / CONFIG)
    remains = Remains(directory, on_version)
    original = Original(directory / JOURNAL, remains.add)
    try:
        return _replay(config, original, remains, recipe_of(config, recipe))
    except _DAMAGED as error:
        raise original.ahead(f"the record is damaged: {error!r}") from error


def _replay(config: Config, original: Original, remains: Remains, chosen: Recipe) -> Replayed:
    directory, header = remains.directory, original.peek()
    if header is None or header["kind"] != "run":
        raise JournalError(f"{directory / JOURNAL}: does not begin with a `run` record")
    if not config.output.keep_updates:
        raise JournalError(
            f"{directory} kept no updates to replay; run it with --set output.keep_updates=true"
        )
    original.live = "live" in header
    layout = Layout.of_rows(header["tensors"])
    start = Snapshot(0, read_safetensors(directory / INITIAL, layout))
    original.compare(_header(header, config, layout, digest(start.weights), chosen))
    controller = controller_of(config, start, layout, header["num_classes"], chosen)
    if original.live:
        remains.look_for(layout, start)
        unwritten = replay_live(
            original, codec_of(config.upload, layout), controller, layout, directory
        )
        files = remains.check_live(controller.current)
    else:
        made = replay_simulated(original, header, config, controller, layout, directory, chosen)
        unwritten, files = made.missing, []
        if unwritten is None:
            files = remains.check_simulated(layout, made)
        elif (directory / SUMMARY).exists() or (directory / FINAL).exists():
            raise original.ahead(
                f"the journal ends where the replay makes {unwritten}, but the run is finished"
            )
    return Replayed(
        num_events=sum(original.counts[kind] for kind in EVENTS),
        num_versions=controller.current.version,
        last_digest=digest(controller.current.weights),
        records=original.counts,
        reported=_reported(original),
        files=files,
        unwritten=unwritten,
    )


def _reported(original: Original) -> dict[str, list[str]]:
    """Return the fields of a journal that are taken for true."""
    live = original.live
    found: dict[str, list[str]] = {"every record": ["at"]} if live else {}
    for kind, present in original.present.items():
        there = [one for one in FIELDS[KINDS[kind]] if one.name in present]
        rows = [inner for one in there if one.rows is not None for inner in FIELDS[one.rows]]
        facts = [one for one in (*there, *rows) if one.mark != "clock"]
        names = [one.name for one in facts if not one.is_derived(live)]
        if names:
            found[kind] = names
    return found


def _header(header: Record, config: Config, layout: Layout, initial: str, chosen: Recipe) -> Record:
    """Return the first record as it should be, given what in it is a fact."""
    made = {**header, "at": 0.0, **known_of(config, layout, header["num_classes"], initial, chosen)}
    if "live" in header:
        return {**made, "live": True, "learners": []}
    names = zip(config.learner_names(), learner_groups(config), strict=True)
    told = {row["learner"]: row for row in header["learners"]}
    rows = [{**told.get(name, {}), "learner": name, "group": group} for name, group in names]
    return {**made, "engine": config.engine, "learners": rows}


class Remains:
    """What a run leaves behind beside its journal: models, and a summary of a simulation."""

    def __init__(self, directory: Path, on_version: Callable[[int], None]) -> None:
        self.directory = directory
        self._on_version = on_version
        self._tally = Tally()
        self._final: str | None = None  # the digest to look for
        self._found: int | None = None  # the latest version that has it
        self._ended = False

    def add(self, record: Record) -> None:
        """Note a record that was verified."""
        kind = record["kind"]
        self._tally.add(record)
        if kind == "version":
            if record["digest"] == self._final:
                self._found = record["version"]
            self._on_version(record["version"])
        if kind == "end" or kind in EVENTS:
            self._ended = kind == "end"

    def look_for(self, layout: Layout, start: Snapshot) -> None:
        """Say from now on which version the model of a live federation is."""
        path = self.directory / FINAL
        if path.exists():
            self._final = digest(read_safetensors(path, layout))
            self._found = 0 if self._final == digest(start.weights) else None

    def check_live(self, last: Snapshot) -> list[str]:
        """The model is written when a controller stops, so it may be older than the journal, but
        for a federation that is over."""
        if self._final is None:
            return []
        if self._found is None:
            raise JournalError(f"{self.directory / FINAL} is no version of this journal")
        if self._ended and self._final != digest(last.weights):
            raise JournalError(
                f"{self.directory / FINAL} is version {self._found}, but the federation ended "
                f"with version {last.version}; start its controller once more to write that"
            )
        return [f"{FINAL} (version {self._found})"]

    def check_simulated(self, layout: Layout, made: SimulatedReplay) -> list[str]:
        """A finished run left its last model, the best one that was tested, and its summary."""
        files = []
        finished = (self.directory / SUMMARY).exists()
        for name, right in ((FINAL, made.last), (BEST, made.best)):
            path = self.directory / name
            if right is None or not (finished or path.exists()):
                continue
            if digest(read_safetensors(path, layout)) != digest(right.weights):
                raise JournalError(f"{path} is not version {right.version}, which it should be")
            files.append(f"{name} (version {right.version})")
        if finished:
            self._check_summary()
            files.append(SUMMARY)
        return files

    def _check_summary(self) -> None:
        path = self.directory / SUMMARY
        told, made = json.loads(path.read_text(encoding="utf-8")), self._tally.summary()
        for name in {**made, **told}:
            one, other = json.dumps(told.get(name)), json.dumps(made.get(name))
            if one != other:
                raise JournalError(f"{path}: {name} is {one}, the journal gives {other}")
