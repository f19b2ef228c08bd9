"""One run from start to end: its directory, its checkpoints, its interruption and its result."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metis.config import Config, Incident, dump, load
from metis.core import community, events, local_run, pacing, server_step, triggers, types, weighting
from metis.core.controller import Controller, Ticket
from metis.core.errors import Interrupted, RunError
from metis.core.types import Layout, Snapshot, Vector
from metis.data.dataset import Dataset
from metis.learn.flat import load_into
from metis.learn.threads import num_threads
from metis.report.summary import Tally
from metis.runtime import agenda
from metis.runtime.assemble import Federation, assemble
from metis.runtime.files import (
    BEST,
    CHECKPOINT,
    CONFIG,
    FINAL,
    INITIAL,
    JOURNAL,
    SUMMARY,
    UPDATES,
    update_path,
)
from metis.runtime.journal import Journal, Listener, Record, read_journal
from metis.runtime.simulate import Simulation
from metis.store.atomic import partial, put_in_place
from metis.store.pack import read_packed, write_packed
from metis.store.weights import save_safetensors

if TYPE_CHECKING:
    from torch import nn

_MODULES = (agenda, community, events, local_run, pacing, server_step, triggers, types, weighting)
#: All that a checkpoint may hold; nothing else is ever made from one.
_CLASSES = [Controller, Ticket, Incident] + [
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, type) and hasattr(value, "__dataclass_fields__")
]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    config: Config
    summary: dict[str, Any]
    records: list[Record]  # the journal; empty when it is on disk: see `directory`
    layout: Layout
    weights: Vector
    best_weights: Vector
    directory: Path | None

    @property
    def final_accuracy(self) -> float:
        """Accuracy of the last community model (R2 for a regression); NaN if it has none."""
        return _number(self.summary["final_score"])

    @property
    def best_accuracy(self) -> float:
        return _number(self.summary["best_score"])

    @property
    def curve(self) -> list[tuple[float, int, float]]:
        """Virtual seconds, version and accuracy of each test."""
        return [tuple(point) for point in self.summary["curve"]]

    def load_into(self, module: nn.Module, best: bool = False) -> None:
        """Put the community model into a module of the same architecture."""
        load_into(module, self.best_weights if best else self.weights)

    def plot(self, path: str | Path | None = None) -> Any:
        """Return accuracy over virtual time as a matplotlib figure; write it if a path is given."""
        from metis.report.plots import accuracy_over_time
        from metis.report.runs import Run

        records = self.records
        if self.directory is not None:
            records = list(read_journal(self.directory / JOURNAL))
        run = Run(self.config.policy, self.directory or Path(), records, self.summary)
        figure = accuracy_over_time([run])
        if path is not None:
            try:
                figure.savefig(path)
            except (OSError, ValueError) as error:
                raise RunError(f"cannot write {path}: {error}") from None
        return figure


def run(
    config: Config,
    out: Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Result:
    """Run a federation in virtual time; write it to `out` if given, which must hold no run yet."""
    federation = assemble(config, model, data)
    if out is not None:
        _claim(out, federation)
    return _Session(federation, out, listeners).run(resumed=False)


def resume(
    directory: Path,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Result:
    """Go on with an interrupted run; the end is the one it would have had."""
    if not (directory / CONFIG).is_file():
        raise RunError(f"{directory} holds no run: there is no {CONFIG} in it")
    if (directory / SUMMARY).exists():
        raise RunError(f"the run in {directory} is finished; see {directory / SUMMARY}")
    return _go_on(assemble(load(directory / CONFIG), model, data), directory, listeners)


def run_or_resume(
    config: Config, out: Path, listeners: tuple[Listener, ...] = ()
) -> dict[str, Any]:
    """Return a run's summary: as it is there, or after going on with it, or from the start.

    What is there must have been made by the same config.
    """
    if not (out / CONFIG).is_file():
        return run(config, out, listeners=listeners).summary
    federation = assemble(config)
    if load(out / CONFIG) != federation.config:
        raise RunError(f"{out} holds a run of another config; choose another directory")
    if (out / SUMMARY).is_file():
        summary: dict[str, Any] = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
        return summary
    return _go_on(federation, out, listeners).summary


def _go_on(federation: Federation, directory: Path, listeners: tuple[Listener, ...]) -> Result:
    header = json.loads(json.dumps(federation.header))
    began = header
    if (directory / JOURNAL).exists():  # not if it was killed before the first record
        began = next(read_journal(directory / JOURNAL), header)
    for what, now in header.items():
        if began.get(what) != now:
            raise RunError(
                f"{directory} was begun with another {what}: "
                "pass the same model and data as then, and leave its config as it is"
            )
    return _Session(federation, directory, listeners).run(resumed=True)


def _claim(out: Path, federation: Federation) -> None:
    if (out / JOURNAL).exists():
        raise RunError(
            f"{out} already holds a run; choose another directory, or go on with it: "
            f"metis run --resume {out}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if federation.config.output.keep_updates:
            (out / UPDATES).mkdir(exist_ok=True)
            start = federation.controller.current.weights
            save_safetensors(out / INITIAL, start, federation.layout)
        # Last and whole: a directory with a config can be resumed.
        partial(out / CONFIG).write_text(dump(federation.config), encoding="utf-8")
        put_in_place(out / CONFIG)
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror}") from None


class _Session:
    """A run under way. With a directory it is durable; without, all stays in memory."""

    def __init__(
        self, federation: Federation, out: Path | None, listeners: tuple[Listener, ...]
    ) -> None:
        self._federation = federation
        self._out = out
        self._tally = Tally()
        self._records: list[Record] = []
        self._listeners = (self._tally.add, *listeners)
        if out is None:
            self._listeners += (self._records.append,)
        self._journal = Journal(None if out is None else out / JOURNAL, self._listeners)
        keep = federation.config.output.keep_updates and out is not None
        self._simulation = Simulation(
            federation.plan,
            federation.controller,
            federation.learners,
            self._journal,
            keep=self._keep if keep else None,
            tested=self._tested,
        )
        self._best = federation.controller.current.weights
        self._checkpointed = time.monotonic()

    def run(self, resumed: bool) -> Result:
        try:
            with _stop_requests() as stop, num_threads(self._federation.config.threads or 1):
                if not (resumed and self._restore()):
                    self._journal.rewind((0, 0.0))
                    self._journal.write("run", 0.0, **self._federation.header)
                    self._simulation.start()
                while self._simulation.step():
                    if stop.is_set():
                        raise self._interrupted()
                    self._checkpoint_if_due()
        finally:
            self._journal.close()
        return self._finish()

    def _keep(self, task: int, weights: Vector) -> None:
        assert self._out is not None
        path = update_path(self._out, task)
        save_safetensors(path, weights, self._federation.layout)

    def _tested(self, snapshot: Snapshot, best: bool) -> None:
        if best:
            self._best = snapshot.weights
            if self._out is not None:
                save_safetensors(self._out / BEST, snapshot.weights, self._federation.layout)

    def _interrupted(self) -> Interrupted:
        version = self._simulation.controller.current.version
        if self._out is None:
            return Interrupted(f"stopped at version {version}")
        self._checkpoint()
        return Interrupted(
            f"stopped at version {version}; go on with: metis run --resume {self._out}"
        )

    def _checkpoint_if_due(self) -> None:
        every = self._federation.config.output.checkpoint_seconds
        if self._out is None or every == 0:
            return
        if time.monotonic() - self._checkpointed > every:
            self._checkpoint()

    def _checkpoint(self) -> None:
        assert self._out is not None
        state = {
            "controller": self._simulation.controller,
            "world": self._simulation.world,
            "learners": self._federation.learners.state(),
            "best": self._best,
            "journal": self._journal.position(),
        }
        write_packed(self._out / CHECKPOINT, state)
        self._checkpointed = time.monotonic()

    def _restore(self) -> bool:
        """Take up the last checkpoint; False if there is none and the run starts anew."""
        assert self._out is not None
        path = self._out / CHECKPOINT
        if not path.exists():
            return False
        state = read_packed(path, _CLASSES)
        self._simulation.controller = state["controller"]
        self._simulation.world = state["world"]
        self._federation.learners.restore(state["learners"])
        self._best = state["best"]
        self._journal.rewind(state["journal"])
        for record in read_journal(self._out / JOURNAL):
            for listener in self._listeners:
                listener(record)
        return True

    def _finish(self) -> Result:
        current = self._simulation.controller.current
        summary = self._tally.summary()
        if self._out is not None:
            save_safetensors(self._out / FINAL, current.weights, self._federation.layout)
            text = json.dumps(summary, indent=2) + "\n"
            partial(self._out / SUMMARY).write_text(text, encoding="utf-8")
            put_in_place(self._out / SUMMARY)
            (self._out / CHECKPOINT).unlink(missing_ok=True)
        return Result(
            config=self._federation.config,
            summary=summary,
            records=self._records,
            layout=self._federation.layout,
            weights=current.weights,
            best_weights=self._best,
            directory=self._out,
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a flag; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may catch signals
        return

    def request(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
