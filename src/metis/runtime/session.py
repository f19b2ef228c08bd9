"""One run from its first record to its result: its journal, its checkpoints, its interruption."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metis.config import Config
from metis.core.errors import Interrupted, RunError
from metis.core.local_run import Learners
from metis.core.types import Layout, Snapshot, Vector
from metis.learn.flat import load_into
from metis.report.summary import Tally
from metis.runtime.assemble import Federation
from metis.runtime.checkpoint import drop_latest, place_latest, save
from metis.runtime.files import BEST, CHECKPOINT, FINAL, JOURNAL, LATEST, SUMMARY, update_path
from metis.runtime.journal import Journal, Listener, Record, read_journal
from metis.runtime.simulate import Simulation
from metis.store.atomic import write_bytes
from metis.store.claim import claimed
from metis.store.pack import read_packed, write_packed
from metis.store.weights import save_safetensors

if TYPE_CHECKING:
    from torch import nn


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
        run = Run(self.config.policy_label, self.directory or Path(), records, self.summary)
        figure = accuracy_over_time([run])
        if path is not None:
            try:
                figure.savefig(path)
            except (OSError, ValueError) as error:
                raise RunError(f"cannot write {path}: {error}") from None
        return figure


class Session:
    """A run under way. With a directory it is durable; without, all stays in memory."""

    def __init__(
        self, federation: Federation, out: Path | None, listeners: tuple[Listener, ...]
    ) -> None:
        self._held = ExitStack()
        if out is not None:  # two processes would write one journal
            try:
                self._held.enter_context(claimed(out))
            except RunError:
                federation.learners.close()
                raise
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

    def open(self, resumed: bool) -> None:
        """Take up the last checkpoint, if there is one and it is wanted, or begin."""
        if not (resumed and self._restore()):
            self._place_latest()
            self._journal.rewind((0, 0.0))
            self._journal.write("run", 0.0, **self._federation.header)
            self._simulation.start()

    def step(self) -> bool:
        """Do what is due next; return False when the run is over."""
        going = self._simulation.step()
        if going:
            self._checkpoint_if_due()
        return going

    @property
    def config(self) -> Config:
        return self._federation.config

    @property
    def learners(self) -> Learners:
        return self._federation.learners

    def is_waiting(self) -> bool:
        """Whether the next step waits for something that is yet to be computed."""
        return self._simulation.is_waiting()

    def close(self) -> None:
        """Give back files and processes; afterwards there is a result, if the run is over."""
        self._journal.close()
        self._federation.learners.close()
        self._held.close()

    def _keep(self, task: int, packet: bytes) -> None:
        assert self._out is not None
        write_bytes(update_path(self._out, task), packet)

    def _tested(self, snapshot: Snapshot, best: bool) -> None:
        if best:
            self._best = snapshot.weights
            if self._out is not None:
                save_safetensors(self._out / BEST, snapshot.weights, self._federation.layout)

    def interrupted(self) -> Interrupted:
        """Save what there is; return what to tell the user."""
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
        path = self._out / CHECKPOINT
        save(self._simulation.controller, lambda: write_packed(path, state, self._federation.names))
        self._checkpointed = time.monotonic()

    def _place_latest(self) -> None:
        where = self._federation.config.output.latest_models
        directory = None if self._out is None else self._out / LATEST
        place_latest(self._simulation.controller, where, directory)

    def _restore(self) -> bool:
        """Take up the last checkpoint; False if there is none and the run starts anew."""
        assert self._out is not None
        path = self._out / CHECKPOINT
        if not path.exists():
            return False
        state = read_packed(path, self._federation.names)
        self._simulation.controller = state["controller"]
        self._place_latest()
        self._simulation.world = state["world"]
        self._federation.learners.restore(state["learners"])
        self._best = state["best"]
        self._journal.rewind(state["journal"])
        for record in read_journal(self._out / JOURNAL):
            for listener in self._listeners:
                listener(record)
        return True

    def result(self) -> Result:
        """Return what came of a run that is over; write it down if it has a directory."""
        current = self._simulation.controller.current
        summary = self._tally.summary()
        if self._out is not None:
            save_safetensors(self._out / FINAL, current.weights, self._federation.layout)
            text = json.dumps(summary, indent=2) + "\n"
            write_bytes(self._out / SUMMARY, text.encode())
            (self._out / CHECKPOINT).unlink(missing_ok=True)
            drop_latest(self._simulation.controller)
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
