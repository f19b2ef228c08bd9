"""Every learner of a simulation in this process: what is open, what is computed, what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from metis.core.learners import TestResult
from metis.core.types import Counts, LearnerId, Task, Vector
from metis.training.jobs import Engine, Job, Steps, TrainingRun
from metis.training.learner_data import JudgeWithStatistics, LearnerData, test_result
from metis.training.module import ModuleOnDevice
from metis.training.optimizer_state import from_plain, to_plain
from metis.training.statistics import Statistics, statistics_of


@dataclass(frozen=True, slots=True)
class CohortState:
    """All of a cohort that must outlive a crash.

    `Processes` have the same, so either can continue what the other began.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)  # see `plain_run`
    kept: dict[LearnerId, Any] = field(default_factory=dict)  # optimizers, for the next tasks
    statistics: dict[str, Any] = field(default_factory=lambda: {"last": {}, "begun": {}})
    num_requests: int = 0
    open: dict[int, tuple[Vector, LearnerId, Vector | None]] = field(default_factory=dict)
    counts: dict[int, Counts | None] = field(default_factory=dict)  # not taken yet

    def plain(self) -> dict[str, Any]:
        """Return the state in types that `storage.pack` can write."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, plain: object) -> CohortState:
        """Undo `plain`."""
        assert isinstance(plain, dict)
        return cls(**plain)


def plain_run(run: TrainingRun, optimizer: object) -> dict[str, Any]:
    """Return a run as plain values by name. `optimizer` is the state of its optimizer."""
    values = {each.name: getattr(run, each.name) for each in fields(run)}
    return dict(to_plain(values | {"optimizer": optimizer, "steps": plain_steps(run.steps)}))


def plain_steps(steps: Steps) -> dict[str, Any]:
    """Return how far a task is as plain values by name."""
    values = {each.name: getattr(steps, each.name) for each in fields(steps)}
    return values | {"losses": list(steps.losses)}


class Cohort:
    """Trains, judges and stores the state of all learners of a simulation, or of one site.

    Results do not depend on the order of calls for different learners, nor on how a task is cut
    into calls. Whether they depend on which learners are computed together is the engine's
    promise; that set follows from the order of calls alone, and outlives a crash.
    """

    def __init__(
        self,
        module: ModuleOnDevice,
        data: LearnerData,
        engine: Engine,
        statistics: Statistics | None = None,
    ) -> None:
        """`statistics`: those of another cohort, which has the same learners."""
        self._module = module
        self._data = data
        self.statistics = statistics or statistics_of(module.training, module.layout)
        self.engine = engine
        self._runs: dict[LearnerId, TrainingRun] = {}
        self._kept: dict[LearnerId, Any] = {}
        self._start: tuple[Vector, Tensor] | None = None
        self._num_requests = 0
        self._open: dict[int, tuple[Vector, LearnerId, Vector | None]] = {}
        self._counts: dict[int, Counts | None] = {}

    # ---- training -----------------------------------------------------------------------------

    def begin(self, task: Task, with_loss: bool) -> None:
        if with_loss:
            self._data.validation_of(task.learner)  # must not be empty
        weights = self._started(task.start.weights)
        own = self.statistics.begin(task.learner)
        if own is not None:
            self._module.put_statistics(weights, own)
        self._runs[task.learner] = TrainingRun(
            learner=task.learner,
            rate_factor=task.rate_factor,
            ordinal=task.ordinal,
            with_loss=with_loss,
            weights=weights,
            counters=[counter.clone() for counter in self._module.initial_counters],
            all_examples=task.all_examples,
            start=weights.clone() if self._module.training.proximal else None,
            offers_best=with_loss and self._module.training.offers_best,
            optimizer=self.engine.new_optimizer(task.rate_factor, self._kept.get(task.learner)),
        )

    def _started(self, weights: Vector) -> Tensor:
        """Return new values of a start model. The last one is kept, since many begin from it."""
        if self._start is None or self._start[0] is not weights:
            self._start = (weights, self._module.flat.arranged(weights))
        return self._start[1].clone()

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        steps = self._runs[learner].steps
        steps.announced = max(steps.announced, num_steps)

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        run = self._runs[learner]
        run.steps.fetch(num_steps)
        if not run.steps.reaches(run.steps.fetched):
            alone = [Job(run, run.steps.fetched - run.steps.computed, self._data)]
            self.engine.train(self.open_jobs() if self.engine.together else alone)
        return run.steps.take_losses()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        steps = self._runs[learner].steps
        return steps.reaches(steps.fetched + num_steps)

    def open_jobs(self) -> list[Job]:
        """Return all that was announced and is not computed yet."""
        return [
            Job(run, run.steps.announced - run.steps.computed, self._data)
            for run in self._runs.values()
            if not run.steps.reaches(run.steps.announced)
        ]

    def finish(self, learner: LearnerId) -> Vector:
        trained = self._module.trained_vector(self.release(learner).offered)
        self.statistics.finish(learner, trained)
        return trained

    def release(self, learner: LearnerId) -> TrainingRun:
        """Forget a finished task, but for what is kept for the next; return it."""
        run = self._runs.pop(learner)
        assert run.steps.computed == run.steps.fetched, "computed further than fetched"
        if self._module.training.keep_momentum:
            self._kept[learner] = self.engine.state_of(run.optimizer)
        return run

    def abandon(self, learner: LearnerId) -> None:
        self._runs.pop(learner, None)

    def run_of(self, learner: LearnerId) -> TrainingRun:
        """Return a learner's task as it stands."""
        return self._runs[learner]

    # ---- scoring ------------------------------------------------------------------------------

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        first = self._num_requests
        self._num_requests += len(judges)
        numbers = list(range(first, self._num_requests))
        # The statistics as they are now: the judge may have others when it is computed.
        self._open.update(
            (number, (weights, judge, self.statistics.begun.get(judge)))
            for number, judge in zip(numbers, judges, strict=True)
        )
        return numbers

    def take_counts(self, request: int) -> Counts | None:
        if request in self._open:
            wanted = self._open[request][0]
            models: dict[int, tuple[Vector, dict[int, JudgeWithStatistics]]] = {}
            for number, (weights, judge, own) in self._open.items():
                if weights is wanted or self.engine.together:
                    models.setdefault(id(weights), (weights, {}))[1][number] = (judge, own)
            asked = [(weights, list(judges.values())) for weights, judges in models.values()]
            counts = self._data.counts(asked)
            for (_, judges), found in zip(models.values(), counts, strict=True):
                self._counts.update(zip(judges, found, strict=True))
                for number in judges:
                    del self._open[number]
        return self._counts.pop(request)

    def forget(self, judge: LearnerId) -> None:
        for number in [n for n, (_, asked, _) in self._open.items() if asked == judge]:
            del self._open[number]

    def test(self, weights: Vector) -> TestResult:
        return test_result(self._data.test_parts(weights, 0, 1))

    # ---- what outlives a crash ----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return self.cohort_state().plain()

    def cohort_state(self) -> CohortState:
        """Return all that must outlive a crash."""
        state_of = self.engine.state_of
        return CohortState(
            runs=[plain_run(run, state_of(run.optimizer)) for run in self._runs.values()],
            kept={learner: to_plain(kept) for learner, kept in self._kept.items()},
            statistics=self.statistics.state(),
            num_requests=self._num_requests,
            open=dict(self._open),
            counts=dict(self._counts),
        )

    def restore(self, state: object) -> None:
        self.take_up(CohortState.of(state))

    def take_up(self, state: CohortState) -> None:
        """Continue from a state."""
        device = self._module.device
        self._runs = {}
        for saved in state.runs:
            values = from_plain(saved, device)
            kept = values["optimizer"]
            values["optimizer"] = self.engine.new_optimizer(values["rate_factor"], kept)
            values["steps"] = Steps(**values["steps"])
            self._runs[values["learner"]] = TrainingRun(**values)
        self._kept = {name: from_plain(kept, device) for name, kept in state.kept.items()}
        self.statistics.restore(state.statistics)
        self._num_requests = state.num_requests
        self._open = dict(state.open)
        self._counts = dict(state.counts)

    def close(self) -> None:
        """Release nothing: a cohort has no processes."""
