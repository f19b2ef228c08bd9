"""One process of a simulation's learners: a cohort that receives its orders through a pipe."""

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

from metis.core.types import LearnerId, Snapshot, read_only
from metis.training.cohort import Cohort
from metis.training.learner_data import LearnerData
from metis.training.module import ModuleOnDevice

NO_WEIGHTS = read_only(np.empty(0))


class Worker:
    """The other end of `Processes`. Scores before it trains, and trains an epoch at a time."""

    def __init__(
        self,
        module: ModuleOnDevice,
        data: LearnerData,
        cohort: Cohort,
        pipe: Connection,
        rows: NDArray[np.float32],
        part: tuple[int, int],
    ) -> None:
        """`part`: the number of this process, and how many processes there are."""
        self._module = module
        self._data = data
        self._cohort = cohort
        self._pipe = pipe
        self._rows = rows
        self._part = part
        self._row_of: dict[LearnerId, tuple[int, int]] = {}
        self._start = NO_WEIGHTS  # the model that tasks begin from
        self._to_train: dict[LearnerId, None] = {}  # in the order of their announcements
        self._inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()

    def serve(self) -> NoReturn:
        """Obey orders. Ends the process when the parent is gone."""
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
                    self._start = read_only(self._rows[start].copy())
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
                (counts,) = self._data.counts([(self._rows[row], list(asked.values()))])
                self._pipe.send(("scored", row, dict(zip(asked, counts, strict=True))))
            case "test", [row]:
                self._pipe.send(("tested", self._data.test_parts(self._rows[row], *self._part)))
            case "state", []:
                self._pipe.send(("state", self._cohort.cohort_state()))
            case "restore", [state, rows]:
                self._cohort.take_up(state)
                self._row_of = rows
                for learner in rows:
                    steps = self._cohort.run_of(learner).steps
                    if not steps.reaches(steps.announced):
                        self._to_train[learner] = None

    def _train(self, learner: LearnerId) -> None:
        """Train to the end of the epoch or of the announced steps; leave the model in its row."""
        run = self._cohort.run_of(learner)
        steps = run.steps
        per_epoch = self._data.epochs_of(run.all_examples).num_steps(learner)
        goal = min(steps.announced, (steps.computed // per_epoch + 1) * per_epoch)
        losses: tuple[float, ...] = ()
        with suppress(FloatingPointError):  # it is in `steps.failure`
            losses = self._cohort.advance(learner, goal - steps.computed)
        row, number = self._row_of[learner]
        self._module.flat.write_vector(run.offered, self._rows[row])
        if not steps.reaches(steps.announced):
            self._to_train[learner] = None  # again, behind the others
        self._pipe.send(("trained", learner, number, replace(steps, losses=list(losses))))


def serve(worker: Worker) -> NoReturn:
    """Make this process a worker for the rest of its life."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        worker.serve()
    finally:
        os._exit(1)
