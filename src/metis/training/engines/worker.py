"""One process of a simulation's learners: a cohort that is told what to do through a pipe."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from metis.core.types import LearnerId, Snapshot, frozen
from metis.training.cohort import Cohort
from metis.training.workbench import Workbench

NO_WEIGHTS = frozen(np.empty(0))


class Worker:
    """The other end of `Processes`. Scores before it trains, and trains an epoch at a time."""

    def __init__(
        self,
        bench: Workbench,
        cohort: Cohort,
        pipe: Connection,
        rows: NDArray[np.float32],
        part: tuple[int, int],
    ) -> None:
        """`part`: which one of how many this is."""
        self._bench = bench
        self._cohort = cohort
        self._pipe = pipe
        self._rows = rows
        self._part = part
        self._row_of: dict[LearnerId, tuple[int, int]] = {}
        self._start = NO_WEIGHTS  # the model that tasks begin from
        self._to_train: dict[LearnerId, None] = {}  # in the order they were asked for
        self._inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def serve(self) -> NoReturn:
        """Do what is asked. Ends the process when the parent is gone."""
        # A thread that always listens: so the parent never waits for a message to be taken.
        Thread(target=self._listen, daemon=True).start()
        try:
            while True:
                while not self._to_train or not self._inbox.empty():
                    kind, *values = self._inbox.get()
                    self._obey(kind, values)
                learner = next(iter(self._to_train))
                del self._to_train[learner]
                self._train(learner)
        except BaseException as error:  # whatever the user's own module raises
            self._pipe.send(("error", f"{type(error).__name__}: {error}"))
            os._exit(1)

    def _listen(self) -> None:
        try:
            while True:
                self._inbox.put(self._pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    def _obey(self, kind: str, values: list[Any]) -> None:
        match kind, values:
            case "begin", [task, with_loss, start, row, number, own]:
                if start is not None:
                    self._start = frozen(self._rows[start].copy())
                    self._pipe.send(("freed", start))
                if own is not None:
                    self._cohort.statistics.last[task.learner] = own
                snapshot = Snapshot(task.start.version, self._start)
                self._cohort.begin(replace(task, start=snapshot), with_loss)
                self._row_of[task.learner] = row, number
            case "announce", [learner, num_steps]:
                self._cohort.announce(learner, num_steps)
                self._to_train[learner] = None
            case "finish", [learner]:
                self._cohort.release(learner)
            case "abandon", [learner]:
                self._to_train.pop(learner, None)
                self._cohort.abandon(learner)
                self._pipe.send(("freed", self._row_of[learner][0]))
            case "score", [row, asked]:
                (counts,) = self._bench.counts([(self._rows[row], list(asked.values()))])
                self._pipe.send(("scored", row, dict(zip(asked, counts, strict=True))))
            case "test", [row]:
                self._pipe.send(("tested", self._bench.test_parts(self._rows[row], *self._part)))
            case "state", []:
                self._pipe.send(("state", self._cohort.state()))
            case "restore", [state, rows]:
                self._cohort.restore(state)
                self._row_of = rows
                for learner in rows:
                    run = self._cohort.run_of(learner)
                    if run.num_done < run.num_expected and run.failure is None:
                        self._to_train[learner] = None

    def _train(self, learner: LearnerId) -> None:
        """Train to the end of the epoch, or as far as is wanted, and leave the model in its row."""
        run = self._cohort.run_of(learner)
        per_epoch = self._bench.epochs_of(run.all_examples).num_steps(learner)
        goal = min(run.num_expected, (run.num_done // per_epoch + 1) * per_epoch)
        losses: tuple[float, ...] = ()
        with suppress(FloatingPointError):  # the run knows of it
            losses = self._cohort.advance(learner, goal - run.num_done)
        row, number = self._row_of[learner]
        self._bench.flat.write_vector(run.offered, self._rows[row])
        if run.num_done < run.num_expected and run.failure is None:
            self._to_train[learner] = None  # again, behind the others
        self._pipe.send(("trained", learner, number, run.num_done, losses, run.failure))


def serve(worker: Worker) -> NoReturn:
    """Make this process a worker for the rest of its life."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        worker.serve()
    finally:
        os._exit(1)
