"""Learners trained side by side: one process for each core, one thread in each.

Two one-threaded processes do more than two threads inside every operation, which wait for each
other dozens of times in a mini-batch. Every process holds a whole `Cohort`; a task stays in the
process it began in. Models cross in shared memory, everything else in a pipe. Since a learner is
always computed alone and by one thread, results do not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import torch

from metis.core.errors import RunError
from metis.core.learners import TestResult
from metis.core.types import Counts, LearnerId, Snapshot, Task, Vector, read_only
from metis.training.cohort import Cohort, CohortState, plain_steps
from metis.training.engines.pool import Pool
from metis.training.engines.shared_rows import SharedRows
from metis.training.engines.worker import NO_WEIGHTS, Worker, serve
from metis.training.jobs import Engine, Steps
from metis.training.learner_data import LearnerData, test_result
from metis.training.module import ModuleOnDevice
from metis.training.optimizer_state import from_plain
from metis.training.statistics import statistics_of


@dataclass(slots=True)
class Remote:
    """A task, and the steps that its process has reported."""

    number: int  # of all that were begun here: an abandoned task may be begun again
    task: Task
    with_loss: bool
    steps: Steps = field(default_factory=Steps)
    worker: int = -1  # none yet
    row: int = -1  # of the shared memory, for the model as far as it is computed


@dataclass(slots=True)
class OpenRequest:
    """A request to a judge, the process that computes it, and the counts when they are there."""

    judge: LearnerId
    worker: int
    is_counted: bool = False
    counts: Counts | None = None


@dataclass(slots=True)
class OpenRequests:
    """Counts that were requested and not taken yet."""

    num_made: int = 0
    open: dict[int, OpenRequest] = field(default_factory=dict)
    scoring: dict[int, int] = field(default_factory=dict)  # row of a model -> counts to come

    def make(self, count: int) -> list[int]:
        """Return the numbers of new requests."""
        first, self.num_made = self.num_made, self.num_made + count
        return list(range(first, self.num_made))

    def scored(self, row: int, counts: dict[int, Counts | None]) -> bool:
        """Record counts; return whether all counts of the model in the row have come."""
        for number, found in counts.items():
            request = self.open.get(number)
            if request is not None:  # else the judge has gone meanwhile
                request.is_counted, request.counts = True, found
        self.scoring[row] -= len(counts)
        if self.scoring[row]:
            return False
        del self.scoring[row]
        return True


class Processes:
    """Trains, judges and stores the state of all learners of a simulation, in several processes."""

    def __init__(
        self,
        module: ModuleOnDevice,
        data: LearnerData,
        engine: Engine,
        num_workers: int,
        max_at_work: int,
    ) -> None:
        """`max_at_work`: how many learners can be at work at once."""
        self._module = module
        self._data = data
        self._engine = engine
        self._positions = {learner: n for n, learner in enumerate(data.shares)}
        self._shared = SharedRows(3 * max_at_work + 2 * num_workers, module.layout.size)
        self._pool = Pool(num_workers, self._serve)
        self._remotes: dict[LearnerId, Remote] = {}
        self._num_begun = 0
        self._waiting: list[LearnerId] = []  # begun, and not yet in any process
        self._sent: dict[int, Vector] = {}  # the start model that each process has received last
        self._load = [0] * num_workers  # steps announced and not reported
        self._statistics = statistics_of(module.training, module.layout)
        self._requests = OpenRequests()
        self._tests: dict[int, list[Any]] = {}
        self._states: list[CohortState] = []

    def start(self) -> None:
        """Start the processes, unless they run already. Done when there is work for them."""
        self._pool.start()

    def _serve(self, number: int, pipe: Connection) -> NoReturn:
        """Be a worker. Called in each process after the fork."""
        cohort = Cohort(self._module, self._data, self._engine)
        part = (number, self._pool.size)
        rows = self._shared.rows
        serve(Worker(self._module, self._data, cohort, pipe, rows, part))

    # ---- training -----------------------------------------------------------------------------

    def begin(self, task: Task, with_loss: bool) -> None:
        if with_loss:
            self._data.validation_of(task.learner)  # must not be empty
        self._shared.check(task.start.weights)
        self._statistics.begin(task.learner)
        self._num_begun += 1
        self._remotes[task.learner] = Remote(self._num_begun, task, with_loss)
        self._waiting.append(task.learner)

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        remote = self._remotes[learner]
        if num_steps > remote.steps.announced:
            added = num_steps - remote.steps.announced
            remote.steps.announced = num_steps
            if remote.worker >= 0:
                self._load[remote.worker] += added
                self._pool.send(remote.worker, "announce", learner, num_steps)

    def _deal(self) -> None:
        """Hand out the tasks begun since the last time, the longest first.

        Each goes to the process that has least to do. So tasks that begin together, as in a round,
        are shared out evenly: the processes are done at about the same time.
        """
        waiting = [self._remotes[learner] for learner in self._waiting]
        self._waiting.clear()
        for remote in sorted(waiting, key=lambda remote: -remote.steps.announced):
            task = remote.task
            worker = self._load.index(min(self._load))
            if self._module.training.keep_momentum:  # what is kept lies in one process
                worker = self._positions[task.learner] % self._pool.size
            # Many begin from the same model: it goes to each process once.
            start = None
            if self._sent.get(worker) is not task.start.weights:
                start = self._row_with(task.start.weights)
                self._sent[worker] = task.start.weights
            remote.worker, remote.row = worker, self._free_row()
            self._load[worker] += remote.steps.announced
            bare = replace(task, start=Snapshot(task.start.version, NO_WEIGHTS))
            own = self._statistics.begun.get(task.learner)
            values = (bare, remote.with_loss, start, remote.row, remote.number, own)
            self._pool.send(worker, "begin", *values)
            self._pool.send(worker, "announce", task.learner, remote.steps.announced)

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        self._deal()
        remote = self._remotes[learner]
        remote.steps.fetch(num_steps)
        while not remote.steps.reaches(remote.steps.fetched):
            self._receive(remote.worker)
        return remote.steps.take_losses()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        steps = self._remotes[learner].steps
        return steps.reaches(steps.fetched + num_steps)

    def finish(self, learner: LearnerId) -> Vector:
        remote = self._remotes.pop(learner)
        weights = read_only(self._shared.rows[remote.row].copy())
        self._statistics.finish(learner, weights)
        self._shared.give_back(remote.row)
        self._pool.send(remote.worker, "finish", learner)
        return weights

    def abandon(self, learner: LearnerId) -> None:
        remote = self._remotes.pop(learner, None)
        if learner in self._waiting:
            self._waiting.remove(learner)
        elif remote is not None:
            self._load[remote.worker] -= remote.steps.announced - remote.steps.computed
            # The process may write to the row until it reads this message; then it frees the row.
            self._pool.send(remote.worker, "abandon", learner)

    # ---- scoring ------------------------------------------------------------------------------

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        self._deal()
        numbers = self._requests.make(len(judges))
        if not numbers:
            return numbers
        row = self._row_with(weights)
        self._requests.scoring[row] = len(numbers)
        sizes = [len(self._data.shares[judge].validation) for judge in judges]
        for worker, part in enumerate(shared_out(sizes, self._load)):
            asked = {numbers[i]: (judges[i], self._statistics.begun.get(judges[i])) for i in part}
            for number, (judge, _) in asked.items():
                self._requests.open[number] = OpenRequest(judge, worker)
            if asked:
                self._pool.send(worker, "score", row, asked)
        return numbers

    def take_counts(self, request: int) -> Counts | None:
        asked = self._requests.open[request]
        while not asked.is_counted:
            self._receive(asked.worker)
        del self._requests.open[request]
        return asked.counts

    def forget(self, judge: LearnerId) -> None:
        asked = self._requests.open
        for number in [number for number, one in asked.items() if one.judge == judge]:
            del asked[number]

    def test(self, weights: Vector) -> TestResult:
        self._deal()
        row = self._row_with(weights)
        self._tests.clear()
        for worker in range(len(self._pool)):
            self._pool.send(worker, "test", row)
        for worker in range(len(self._pool)):
            while worker not in self._tests:
                self._receive(worker)
        self._shared.give_back(row)
        return test_result(
            [scores for worker in range(len(self._pool)) for scores in self._tests[worker]]
        )

    # ---- what outlives a crash ----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The same as a `Cohort`'s, so either can go on with what the other began."""
        self._deal()
        runs: dict[LearnerId, Any] = {}
        kept: dict[LearnerId, Any] = {}
        for worker in range(len(self._pool)):
            self._states.clear()
            self._pool.send(worker, "state")
            while not self._states:
                self._receive(worker)
            runs.update((run["learner"], run) for run in self._states[0].runs)
            kept.update(self._states[0].kept)
        for request in self._requests.open.values():
            while not request.is_counted:
                self._receive(request.worker)
        return CohortState(
            # What is fetched is known here, not in the process.
            runs=[
                runs[learner] | {"steps": plain_steps(remote.steps)}
                for learner, remote in self._remotes.items()
            ],
            kept=kept,
            statistics=self._statistics.state(),
            num_requests=self._requests.num_made,
            counts={number: one.counts for number, one in self._requests.open.items()},
        ).plain()

    def restore(self, state: object) -> None:
        saved = CohortState.of(state)
        self.start()
        parts = [CohortState() for _ in range(len(self._pool))]
        rows: list[dict[LearnerId, tuple[int, int]]] = [{} for _ in parts]
        for learner, kept in saved.kept.items():
            parts[self._positions[learner] % len(parts)].kept[learner] = kept
        for run in saved.runs:
            learner, steps = run["learner"], Steps(**from_plain(run["steps"], torch.device("cpu")))
            worker = self._positions[learner] % len(parts)
            offered = run["weights"] if run["best"] is None else run["best"]
            values = from_plain(offered, torch.device("cpu"))
            row = self._row_with(self._module.flat.as_vector(values))
            self._num_begun += 1
            rows[worker][learner] = (row, self._num_begun)
            bare = Task(0, learner, Snapshot(0, NO_WEIGHTS), 0)
            self._remotes[learner] = Remote(
                self._num_begun, bare, run["with_loss"], steps, worker, row
            )
            self._load[worker] += steps.announced - steps.computed
            unfetched = replace(steps, fetched=steps.computed, losses=[])
            parts[worker].runs.append(run | {"steps": plain_steps(unfetched)})
        for worker, part in enumerate(parts):
            self._pool.send(worker, "restore", part, rows[worker])
        self._statistics.restore(saved.statistics)
        self._requests.num_made = saved.num_requests
        for number, counts in saved.counts.items():
            self._requests.open[number] = OpenRequest(LearnerId(""), 0, True, counts)
        for number, (weights, judge, own) in saved.open.items():  # a `Cohort` left these open
            row = self._row_with(weights)
            self._requests.scoring[row] = 1
            self._requests.open[number] = OpenRequest(judge, 0)
            self._pool.send(0, "score", row, {number: (judge, own)})

    def close(self) -> None:
        """Kill the processes; nothing can be computed afterwards."""
        self._pool.close()

    # ---- talking to the processes -------------------------------------------------------------

    def _row_with(self, weights: Vector) -> int:
        """Return a row of the shared memory with a model in it."""
        self._shared.check(weights)
        row = self._free_row()
        np.copyto(self._shared.rows[row], weights)
        return row

    def _free_row(self) -> int:
        """Return a free row; wait for the processes to free one if all are taken."""
        self.start()
        while (row := self._shared.take()) is None:
            for worker in self._pool.ready():
                self._receive(worker)
        return row

    def _receive(self, worker: int) -> None:
        """Take in one report of a process, in the order they were sent."""
        kind, values = self._pool.receive(worker)
        match kind:
            case "trained":
                self._trained(*values)
            case "scored":
                row, counts = values
                if self._requests.scored(row, counts):
                    self._shared.give_back(row)
            case "freed":
                self._shared.give_back(values[0])
            case "tested":
                self._tests[worker] = values[0]
            case "state":
                self._states.append(values[0])
            case "error":
                raise RunError(f"a learner's process failed: {values[0]}")

    def _trained(self, learner: LearnerId, number: int, new: Steps) -> None:
        """Add the steps that a process has computed since its last report."""
        remote = self._remotes.get(learner)
        if remote is None or remote.number != number:
            return  # of a task that was abandoned meanwhile
        self._load[remote.worker] -= new.computed - remote.steps.computed
        remote.steps.computed = new.computed
        remote.steps.losses.extend(new.losses)
        remote.steps.failure = new.failure


def shared_out(sizes: Sequence[int], load: Sequence[int]) -> list[list[int]]:
    """Deal positions out so that each process has about as many examples to score.

    A single one goes to the process of least load.
    """
    parts: list[list[int]] = [[] for _ in load]
    loads = [(0, steps, worker) for worker, steps in enumerate(load)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        scored, steps, worker = min(loads)
        loads[loads.index((scored, steps, worker))] = (scored + sizes[i], steps, worker)
        parts[worker].append(i)
    return parts
