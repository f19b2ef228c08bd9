"""Every learner of a simulation in this process: what is open, what is computed, what is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metis.core.learners import TestResult
from metis.core.types import Counts, LearnerId, Task, Vector
from metis.training.epochs import Stretch
from metis.training.optimizer_state import from_plain, to_plain
from metis.training.statistics import Statistics, statistics_of
from metis.training.workbench import Judge, Workbench


@dataclass(slots=True)
class Run:
    """A learner's task under way: all that the next mini-batch depends on, but the data."""

    learner: LearnerId
    rate_factor: float  # of its learning rate
    ordinal: int  # its chance follows from this
    with_loss: bool
    weights: Tensor
    counters: list[Tensor]  # buffers that are not float, such as batch-norm's step counters
    all_examples: bool  # those held out are trained on, too
    start: Tensor | None  # kept for the proximal term only
    optimizer: Any  # the trainer's
    num_expected: int = 0  # steps in all that were promised
    num_done: int = 0  # computed
    num_told: int = 0  # and fetched
    losses: list[float] = field(default_factory=list)  # on the validation set, not fetched yet
    failure: tuple[int, str] | None = None  # the step whose loss was not finite, and what to say
    offers_best: bool = False  # the weights of least validation loss, and not the latest
    best: Tensor | None = None  # these weights so far
    best_loss: float = 0.0  # theirs, if there are any

    @property
    def offered(self) -> Tensor:
        """The weights that would be sent now."""
        return self.weights if self.best is None else self.best


@dataclass(frozen=True, slots=True)
class Job:
    """So many steps of one run, to be computed now, with the data of its own workbench."""

    run: Run
    num_steps: int
    bench: Workbench

    def stretches(self) -> Iterator[Stretch]:
        """Give the mini-batches, epoch by epoch."""
        run = self.run
        epochs = self.bench.epochs_of(run.all_examples)
        return epochs.stretches(run.learner, run.ordinal, run.num_done, self.num_steps)

    def steps_per_epoch(self) -> int:
        return self.bench.epochs_of(self.run.all_examples).num_steps(self.run.learner)


class Trainer(Protocol):
    """How jobs are computed: one after another, or all of them as one batched computation."""

    @property
    def together(self) -> bool:
        """Whether it pays to compute everything that is open at once."""
        ...

    def new_optimizer(self, rate_factor: float, kept: object | None) -> Any:
        """Return the optimizer of a task with this factor of the learning rate.

        `kept` is the state of the learner's last one, if that is carried over; it is left alone.
        """
        ...

    def state_of(self, optimizer: Any) -> object:
        """Return an optimizer's state as a tree of tensors and plain values."""
        ...

    def train(self, jobs: Sequence[Job]) -> None:
        """Bring every job's run its steps further; then see to the losses wanted. See `settle`."""
        ...


def settle(run: Run, losses: NDArray[np.float32], steps_per_epoch: int) -> None:
    """Record the training losses of a run's next steps. From a bad one on, nothing is computed."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        failed = run.num_done + int(bad[0])
        epoch, step = divmod(failed, steps_per_epoch)
        run.failure = (
            failed,
            f"{run.learner}: training loss is {losses[bad[0]]} "
            f"in epoch {epoch + 1}, step {step + 1} of its task",
        )
    run.num_done += len(losses)


def settle_validation(run: Run, loss: float) -> None:
    """Record the validation loss of a run's weights as they are now, or as they were received.

    One that is not finite makes the steps before it fail. Of equal losses the first counts as best.
    """
    run.losses.append(loss)
    if not run.num_done or run.failure is not None:
        return
    if not np.isfinite(loss):
        message = f"{run.learner}: validation loss is {loss} after step {run.num_done} of its task"
        run.failure = (run.num_done - 1, message)
    elif run.offers_best and (run.best is None or loss < run.best_loss):
        run.best, run.best_loss = run.weights.clone(), loss


class Cohort:
    """The `Learners` of a simulation.

    Results do not depend on the order of calls for different learners, nor on how a task is cut
    into calls. Whether they depend on which learners are computed together is the trainer's
    promise; that set follows from the order of calls alone, and outlives a crash.
    """

    def __init__(
        self,
        bench: Workbench,
        trainer: Trainer,
        statistics: Statistics | None = None,
    ) -> None:
        """`statistics`: those of another cohort, whose learners these are."""
        self._bench = bench
        self.statistics = statistics or statistics_of(bench.training, bench.layout)
        self.trainer = trainer
        self._runs: dict[LearnerId, Run] = {}
        self._kept: dict[LearnerId, Any] = {}
        self._start: tuple[Vector, Tensor] | None = None
        self._num_questions = 0
        self._open: dict[int, tuple[Vector, LearnerId, Vector | None]] = {}
        self._answers: dict[int, Counts | None] = {}

    # ---- training -----------------------------------------------------------------------------

    def begin(self, task: Task, with_loss: bool) -> None:
        if with_loss:
            self._bench.validation_of(task.learner)  # must not be empty
        weights = self._started(task.start.weights)
        own = self.statistics.begin(task.learner)
        if own is not None:
            self._bench.put_statistics(weights, own)
        self._runs[task.learner] = Run(
            learner=task.learner,
            rate_factor=task.rate_factor,
            ordinal=task.ordinal,
            with_loss=with_loss,
            weights=weights,
            counters=[counter.clone() for counter in self._bench.initial_counters],
            all_examples=task.all_examples,
            start=weights.clone() if self._bench.training.proximal else None,
            offers_best=with_loss and self._bench.training.offers_best,
            optimizer=self.trainer.new_optimizer(task.rate_factor, self._kept.get(task.learner)),
        )

    def _started(self, weights: Vector) -> Tensor:
        """Return new values of a start model. The last one is kept, since many begin from it."""
        if self._start is None or self._start[0] is not weights:
            self._start = (weights, self._bench.flat.arranged(weights))
        return self._start[1].clone()

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        run = self._runs[learner]
        run.num_expected = max(run.num_expected, num_steps)

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        run = self._runs[learner]
        run.num_told += num_steps
        assert run.num_told <= run.num_expected, "more steps than were announced"
        if run.num_done < run.num_told and run.failure is None:
            alone = [Job(run, run.num_told - run.num_done, self._bench)]
            self.trainer.train(self.open_jobs() if self.trainer.together else alone)
        if run.failure is not None and run.failure[0] < run.num_told:
            raise FloatingPointError(run.failure[1])
        losses = tuple(run.losses)
        run.losses.clear()
        return losses

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        run = self._runs[learner]
        return run.num_done >= run.num_told + num_steps or run.failure is not None

    def open_jobs(self) -> list[Job]:
        """Return all that was announced and is not computed yet."""
        return [
            Job(run, run.num_expected - run.num_done, self._bench)
            for run in self._runs.values()
            if run.num_done < run.num_expected and run.failure is None
        ]

    def finish(self, learner: LearnerId) -> Vector:
        trained = self._bench.trained_vector(self.release(learner).offered)
        self.statistics.finish(learner, trained)
        return trained

    def release(self, learner: LearnerId) -> Run:
        """Forget a finished task, but for what is kept for the next; return it."""
        run = self._runs.pop(learner)
        assert run.num_done == run.num_told, "the model is further than the moment"
        if self._bench.training.keep_momentum:
            self._kept[learner] = self.trainer.state_of(run.optimizer)
        return run

    def abandon(self, learner: LearnerId) -> None:
        self._runs.pop(learner, None)

    def run_of(self, learner: LearnerId) -> Run:
        """Return a learner's task as it stands."""
        return self._runs[learner]

    # ---- scoring ------------------------------------------------------------------------------

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        first = self._num_questions
        self._num_questions += len(judges)
        numbers = list(range(first, self._num_questions))
        # The statistics as they are now: the judge may have others when it is computed.
        self._open.update(
            (number, (weights, judge, self.statistics.begun.get(judge)))
            for number, judge in zip(numbers, judges, strict=True)
        )
        return numbers

    def take_counts(self, request: int) -> Counts | None:
        if request in self._open:
            wanted = self._open[request][0]
            models: dict[int, tuple[Vector, dict[int, Judge]]] = {}
            for number, (weights, judge, own) in self._open.items():
                if weights is wanted or self.trainer.together:
                    models.setdefault(id(weights), (weights, {}))[1][number] = (judge, own)
            asked = [(weights, list(judges.values())) for weights, judges in models.values()]
            counts = self._bench.counts(asked)
            for (_, judges), found in zip(models.values(), counts, strict=True):
                self._answers.update(zip(judges, found, strict=True))
                for number in judges:
                    del self._open[number]
        return self._answers.pop(request)

    def forget(self, judge: LearnerId) -> None:
        for number in [n for n, (_, asked, _) in self._open.items() if asked == judge]:
            del self._open[number]

    def test(self, weights: Vector) -> TestResult:
        return self._bench.test_result(self._bench.test_parts(weights, 0, 1))

    # ---- what outlives a crash ----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "runs": [self._plain(run) for run in self._runs.values()],
            "kept": {learner: to_plain(kept) for learner, kept in self._kept.items()},
            "statistics": self.statistics.state(),
            "num_questions": self._num_questions,
            "open": dict(self._open),
            "answers": dict(self._answers),
        }

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        device = self._bench.device
        self._runs = {}
        for saved in state["runs"]:
            values = from_plain(saved, device)
            kept = values["optimizer"]
            values["optimizer"] = self.trainer.new_optimizer(values["rate_factor"], kept)
            self._runs[values["learner"]] = Run(**values)
        self._kept = {name: from_plain(kept, device) for name, kept in state["kept"].items()}
        self.statistics.restore(state["statistics"])
        self._num_questions = state["num_questions"]
        self._open = dict(state["open"])
        self._answers = dict(state["answers"])

    def close(self) -> None:
        pass

    def _plain(self, run: Run) -> Any:
        values = {name: getattr(run, name) for name in Run.__slots__}
        values["optimizer"] = self.trainer.state_of(run.optimizer)
        return to_plain(values)
