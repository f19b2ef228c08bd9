"""Learners trained side by side: one process for each core, one thread in each.

Two one-threaded processes do more than two threads inside every operation, which wait for each
other dozens of times in a mini-batch. Every process holds a whole `Cohort`; a task stays in the
process it began in. Models cross in shared memory, everything else in a pipe. Since a learner is
always computed alone and by one thread, results do not depend on the number of processes.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray

from metis.core.errors import ModelError, RunError
from metis.core.learners import TestResult
from metis.core.types import Counts, LearnerId, Snapshot, Task, Vector, frozen
from metis.training.cohort import Cohort, Trainer
from metis.training.engines.worker import NO_WEIGHTS, Worker, serve
from metis.training.optimizer_state import from_plain
from metis.training.statistics import statistics_of
from metis.training.workbench import Workbench


def can_fork() -> bool:
    """Whether this system can give a process all that its parent holds, at no cost."""
    return sys.platform == "linux"


@dataclass(slots=True)
class Remote:
    """A task as its process has reported it so far."""

    number: int  # of all that were begun here: an abandoned task may be begun again
    task: Task
    with_loss: bool
    worker: int = -1  # none yet
    row: int = -1  # of the shared memory, for the model as far as it is computed
    num_expected: int = 0
    num_done: int = 0
    num_told: int = 0
    losses: list[float] = field(default_factory=list)
    failure: tuple[int, str] | None = None


@dataclass(slots=True)
class Question:
    """A judge's counts, once they are there, and which process is to find them."""

    judge: LearnerId
    worker: int
    answered: bool = False
    counts: Counts | None = None


class Processes:
    """The `Learners` of a simulation, in so many processes."""

    def __init__(
        self, bench: Workbench, trainer: Trainer, num_workers: int, max_at_work: int
    ) -> None:
        """`max_at_work`: how many learners can be at work at once."""
        self._bench = bench
        self._positions = {learner: n for n, learner in enumerate(bench.shares)}
        # Memory is used as it is written to, so rows that are never needed cost nothing.
        self._rows = _shared_rows(3 * max_at_work + 2 * num_workers, bench.layout.size)
        self._free = deque(range(len(self._rows)))
        self._remotes: dict[LearnerId, Remote] = {}
        self._num_begun = 0
        self._waiting: list[LearnerId] = []  # begun, and not yet in any process
        self._sent: dict[int, Vector] = {}  # the start model that each process has got last
        self._load = [0] * num_workers  # steps promised and not reported
        self._statistics = statistics_of(bench.training, bench.layout)
        self._num_questions = 0
        self._questions: dict[int, Question] = {}
        self._scoring: dict[int, int] = {}  # row of a model being scored -> questions not answered
        self._tests: dict[int, list[Any]] = {}
        self._states: list[Any] = []
        self._pipes: list[Connection] = []
        self._pids: list[int] = []
        self._num_workers = num_workers
        self._trainer = trainer

    def start(self) -> None:
        """Start the processes, unless they are there. Happens when there is something to do."""
        for number in range(self._num_workers if not self._pipes else 0):
            mine, theirs = Pipe()
            pid = _fork()
            if pid == 0:
                for pipe in (*self._pipes, mine):
                    pipe.close()  # else this process would not see its parent's end
                cohort = Cohort(self._bench, self._trainer)
                part = (number, self._num_workers)
                serve(Worker(self._bench, cohort, theirs, self._rows, part))
            theirs.close()
            self._pipes.append(mine)
            self._pids.append(pid)

    # ---- training -----------------------------------------------------------------------------

    def begin(self, task: Task, with_loss: bool) -> None:
        if with_loss:
            self._bench.validation_of(task.learner)  # must not be empty
        self._check_size(task.start.weights)
        self._statistics.begin(task.learner)
        self._num_begun += 1
        self._remotes[task.learner] = Remote(self._num_begun, task, with_loss)
        self._waiting.append(task.learner)

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        remote = self._remotes[learner]
        if num_steps > remote.num_expected:
            added = num_steps - remote.num_expected
            remote.num_expected = num_steps
            if remote.worker >= 0:
                self._load[remote.worker] += added
                self._send(remote.worker, "announce", learner, num_steps)

    def _deal(self) -> None:
        """Hand out the tasks begun since the last time, the longest first.

        Each goes to the process that has least to do. What is begun together, as in a round, is so
        shared out evenly: the processes are done at about the same time.
        """
        waiting = [self._remotes[learner] for learner in self._waiting]
        self._waiting.clear()
        for remote in sorted(waiting, key=lambda remote: -remote.num_expected):
            task = remote.task
            worker = self._load.index(min(self._load))
            if self._bench.training.keep_momentum:  # what is kept lies in one process
                worker = self._positions[task.learner] % self._num_workers
            # Many begin from the same model: it goes to each process once.
            start = None
            if self._sent.get(worker) is not task.start.weights:
                start = self._take_row(task.start.weights)
                self._sent[worker] = task.start.weights
            remote.worker, remote.row = worker, self._free_row()
            self._load[worker] += remote.num_expected
            bare = replace(task, start=Snapshot(task.start.version, NO_WEIGHTS))
            own = self._statistics.begun.get(task.learner)
            values = (bare, remote.with_loss, start, remote.row, remote.number, own)
            self._send(worker, "begin", *values)
            self._send(worker, "announce", task.learner, remote.num_expected)

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        self._deal()
        remote = self._remotes[learner]
        remote.num_told += num_steps
        assert remote.num_told <= remote.num_expected, "more steps than were announced"
        while remote.num_done < remote.num_told and remote.failure is None:
            self._receive(remote.worker)
        if remote.failure is not None and remote.failure[0] < remote.num_told:
            raise FloatingPointError(remote.failure[1])
        losses = tuple(remote.losses)
        remote.losses.clear()
        return losses

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        remote = self._remotes[learner]
        return remote.num_done >= remote.num_told + num_steps or remote.failure is not None

    def finish(self, learner: LearnerId) -> Vector:
        remote = self._remotes.pop(learner)
        weights = frozen(self._rows[remote.row].copy())
        self._statistics.finish(learner, weights)
        self._free.append(remote.row)
        self._send(remote.worker, "finish", learner)
        return weights

    def abandon(self, learner: LearnerId) -> None:
        remote = self._remotes.pop(learner, None)
        if learner in self._waiting:
            self._waiting.remove(learner)
        elif remote is not None:
            self._load[remote.worker] -= remote.num_expected - remote.num_done
            # The process may be writing to the row until it has seen this; then it says so.
            self._send(remote.worker, "abandon", learner)

    # ---- scoring ------------------------------------------------------------------------------

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        self._deal()
        numbers = list(range(self._num_questions, self._num_questions + len(judges)))
        self._num_questions += len(judges)
        if not numbers:
            return numbers
        row = self._take_row(weights)
        self._scoring[row] = len(numbers)
        for worker, part in enumerate(self._parts(judges)):
            asked = {numbers[i]: (judges[i], self._statistics.begun.get(judges[i])) for i in part}
            for number, (judge, _) in asked.items():
                self._questions[number] = Question(judge, worker)
            if asked:
                self._send(worker, "score", row, asked)
        return numbers

    def _parts(self, judges: Sequence[LearnerId]) -> list[list[int]]:
        """Deal judges out so that every process has about as many examples to score."""
        sizes = [len(self._bench.shares[judge].validation) for judge in judges]
        parts: list[list[int]] = [[] for _ in self._pipes]
        # A single judge goes to the process that has least to do.
        loads = [(0, self._load[worker], worker) for worker in range(len(self._pipes))]
        for i in sorted(range(len(judges)), key=lambda i: -sizes[i]):
            scored, load, worker = min(loads)
            loads[loads.index((scored, load, worker))] = (scored + sizes[i], load, worker)
            parts[worker].append(i)
        return parts

    def take_counts(self, request: int) -> Counts | None:
        asked = self._questions[request]
        while not asked.answered:
            self._receive(asked.worker)
        del self._questions[request]
        return asked.counts

    def forget(self, judge: LearnerId) -> None:
        for number in [n for n, asked in self._questions.items() if asked.judge == judge]:
            del self._questions[number]

    def test(self, weights: Vector) -> TestResult:
        self._deal()
        row = self._take_row(weights)
        self._tests.clear()
        for worker in range(len(self._pipes)):
            self._send(worker, "test", row)
        for worker in range(len(self._pipes)):
            while worker not in self._tests:
                self._receive(worker)
        self._free.append(row)
        return self._bench.test_result(
            [scores for worker in range(len(self._pipes)) for scores in self._tests[worker]]
        )

    # ---- what outlives a crash ----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The same as a `Cohort`'s, so either can go on with what the other began."""
        self._deal()
        runs: dict[LearnerId, Any] = {}
        kept: dict[LearnerId, Any] = {}
        for worker in range(len(self._pipes)):
            self._states.clear()
            self._send(worker, "state")
            while not self._states:
                self._receive(worker)
            runs.update((run["learner"], run) for run in self._states[0]["runs"])
            kept.update(self._states[0]["kept"])
        for number in self._questions:
            while not self._questions[number].answered:
                self._receive(self._questions[number].worker)
        told = ("num_expected", "num_told", "losses", "failure")
        return {
            "runs": [
                runs[learner] | {name: getattr(remote, name) for name in told}
                for learner, remote in self._remotes.items()
            ],
            "kept": kept,
            "statistics": self._statistics.state(),
            "num_questions": self._num_questions,
            "open": {},
            "answers": {number: asked.counts for number, asked in self._questions.items()},
        }

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.start()
        nothing = {
            "num_questions": 0,
            "open": {},
            "answers": {},
            "statistics": {"last": {}, "begun": {}},
        }
        parts: list[dict[str, Any]] = [{"runs": [], "kept": {}, **nothing} for _ in self._pipes]
        rows = []
        for learner, kept in state["kept"].items():
            parts[self._positions[learner] % len(parts)]["kept"][learner] = kept
        for run in state["runs"]:
            learner = run["learner"]
            worker = self._positions[learner] % len(parts)
            offered = run["weights"] if run["best"] is None else run["best"]
            values = from_plain(offered, torch.device("cpu"))
            row = self._take_row(self._bench.flat.as_vector(values))
            self._num_begun += 1
            rows.append((worker, learner, row, self._num_begun))
            told = ("num_expected", "num_done", "num_told", "losses", "failure")
            bare = Task(0, learner, Snapshot(0, NO_WEIGHTS), 0)
            known = {name: run[name] for name in told}
            self._remotes[learner] = Remote(
                self._num_begun, bare, run["with_loss"], worker, row, **known
            )
            self._load[worker] += run["num_expected"] - run["num_done"]
            parts[worker]["runs"].append(run | {"num_told": run["num_done"], "losses": []})
        for worker, part in enumerate(parts):
            mine = {learner: (row, n) for w, learner, row, n in rows if w == worker}
            self._send(worker, "restore", part, mine)
        self._statistics.restore(state["statistics"])
        self._num_questions = state["num_questions"]
        for number, counts in state["answers"].items():
            self._questions[number] = Question(LearnerId(""), 0, True, counts)
        for number, (weights, judge, own) in state["open"].items():  # a `Cohort` left these open
            row = self._take_row(weights)
            self._scoring[row] = 1
            self._questions[number] = Question(judge, 0)
            self._send(0, "score", row, {number: (judge, own)})

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        self._pids.clear()

    # ---- talking to the processes -------------------------------------------------------------

    def _take_row(self, weights: Vector) -> int:
        """Return a row of the shared memory with a model in it."""
        self._check_size(weights)
        row = self._free_row()
        np.copyto(self._rows[row], weights)
        return row

    def _check_size(self, weights: Vector) -> None:
        size = self._bench.layout.size
        if weights.shape != (size,):
            raise ModelError(
                f"the model has {size} values, but the vector has shape {weights.shape}"
            )

    def _free_row(self) -> int:
        self.start()
        while not self._free:
            for pipe in wait(self._pipes):
                self._receive(self._pipes.index(cast(Connection, pipe)))
        return self._free.popleft()

    def _send(self, worker: int, *message: Any) -> None:
        try:
            self._pipes[worker].send(message)
        except OSError:
            self._lost(worker)

    def _receive(self, worker: int) -> None:
        """Take in one report, in the order they were sent."""
        try:
            kind, *values = self._pipes[worker].recv()
        except (EOFError, OSError):
            self._lost(worker)
        match kind:
            case "trained":
                self._trained(*values)
            case "scored":
                row, counts = values
                for number, found in counts.items():
                    asked = self._questions.get(number)
                    if asked is not None:  # else the judge has gone meanwhile
                        asked.answered, asked.counts = True, found
                self._scoring[row] -= len(counts)
                if self._scoring[row] == 0:
                    del self._scoring[row]
                    self._free.append(row)
            case "freed":
                self._free.append(values[0])
            case "tested":
                self._tests[worker] = values[0]
            case "state":
                self._states.append(values[0])
            case "error":
                raise RunError(f"a learner's process failed: {values[0]}")

    def _trained(
        self,
        learner: LearnerId,
        number: int,
        num_done: int,
        losses: Sequence[float],
        failure: tuple[int, str] | None,
    ) -> None:
        remote = self._remotes.get(learner)
        if remote is None or remote.number != number:
            return  # of a task that was abandoned meanwhile
        self._load[remote.worker] -= num_done - remote.num_done
        remote.num_done = num_done
        remote.losses.extend(losses)
        remote.failure = failure

    def _lost(self, worker: int) -> NoReturn:
        raise RunError(
            f"process {self._pids[worker]} of this run is gone; the system may have ended it for "
            "lack of memory: use fewer threads (each is a process), or engine = loop"
        )


def _shared_rows(num_rows: int, size: int) -> NDArray[np.float32]:
    memory = mmap.mmap(-1, num_rows * size * 4)
    return np.frombuffer(memory, dtype=np.float32).reshape(num_rows, size)


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of threads at this point. The child touches none of theirs: it reads
        # from its pipe, computes, and ends without cleaning up.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
