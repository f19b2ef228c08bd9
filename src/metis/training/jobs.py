"""Tasks under way, the jobs they are cut into, and what computes jobs: an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from metis.core.types import LearnerId
from metis.training.epochs import Stretch
from metis.training.learner_data import LearnerData


@dataclass(slots=True)
class Steps:
    """How far a task is: its announced, computed and fetched steps, and what they resulted in."""

    announced: int = 0  # in all
    computed: int = 0
    fetched: int = 0
    losses: list[float] = field(default_factory=list)  # on the validation set, not fetched yet
    failure: tuple[int, str] | None = None  # the step whose loss was not finite, and the message

    def fetch(self, num_steps: int) -> None:
        """Count steps as fetched. They must have been announced."""
        self.fetched += num_steps
        assert self.fetched <= self.announced, "more steps than were announced"

    def take_losses(self) -> tuple[float, ...]:
        """Return the losses not fetched yet. Raises FloatingPointError if a fetched step failed."""
        if self.failure is not None and self.failure[0] < self.fetched:
            raise FloatingPointError(self.failure[1])
        losses = tuple(self.losses)
        self.losses.clear()
        return losses

    def reaches(self, num_steps: int) -> bool:
        """Whether that many steps are computed, or never will be since one before them failed."""
        return self.computed >= num_steps or self.failure is not None


@dataclass(slots=True)
class TrainingRun:
    """A learner's task under way: all that the next mini-batch depends on, but the data."""

    learner: LearnerId
    rate_factor: float  # of its learning rate
    ordinal: int  # its chance follows from this
    with_loss: bool
    weights: Tensor
    counters: list[Tensor]  # buffers that are not float, such as batch-norm's step counters
    all_examples: bool  # those held out are trained on, too
    start: Tensor | None  # kept for the proximal term only
    optimizer: Any  # the engine's
    steps: Steps = field(default_factory=Steps)
    offers_best: bool = False  # the weights of least validation loss, and not the latest
    best: Tensor | None = None  # these weights so far
    best_loss: float = 0.0  # theirs, if there are any

    @property
    def offered(self) -> Tensor:
        """The weights that would be sent now."""
        return self.weights if self.best is None else self.best


@dataclass(frozen=True, slots=True)
class Job:
    """The next `num_steps` steps of one run, to be computed now, with the data of its learner."""

    run: TrainingRun
    num_steps: int
    data: LearnerData

    def stretches(self) -> Iterator[Stretch]:
        """Give the mini-batches, epoch by epoch."""
        run = self.run
        epochs = self.data.epochs_of(run.all_examples)
        return epochs.stretches(run.learner, run.ordinal, run.steps.computed, self.num_steps)

    def steps_per_epoch(self) -> int:
        return self.data.epochs_of(self.run.all_examples).num_steps(self.run.learner)


class Engine(Protocol):
    """Computes jobs: one after another, or all of them as one batched computation."""

    @property
    def together(self) -> bool:
        """Whether it pays to compute everything that is open at once."""
        ...

    def new_optimizer(self, rate_factor: float, kept: object | None) -> Any:
        """Return the optimizer of a task with this factor of the learning rate.

        `kept` is the state of the learner's last optimizer, if that is carried over; the engine
        does not change it.
        """
        ...

    def state_of(self, optimizer: Any) -> object:
        """Return an optimizer's state as a tree of tensors and plain values."""
        ...

    def train(self, jobs: Sequence[Job]) -> None:
        """Train every job's run for its steps, then compute the validation losses it needs.

        See `settle` and `settle_validation`.
        """
        ...


def settle(run: TrainingRun, losses: NDArray[np.float32], steps_per_epoch: int) -> None:
    """Record the training losses of a run's next steps. From a bad one on, nothing is computed."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        failed = run.steps.computed + int(bad[0])
        epoch, step = divmod(failed, steps_per_epoch)
        run.steps.failure = (
            failed,
            f"{run.learner}: training loss is {losses[bad[0]]} "
            f"in epoch {epoch + 1}, step {step + 1} of its task",
        )
    run.steps.computed += len(losses)


def settle_validation(run: TrainingRun, loss: float) -> None:
    """Record the validation loss of a run's present weights, at first of the received ones.

    A loss that is not finite makes the steps before it fail. Of equal losses the first counts as
    best.
    """
    run.steps.losses.append(loss)
    computed = run.steps.computed
    if not computed or run.steps.failure is not None:
        return
    if not np.isfinite(loss):
        message = f"{run.learner}: validation loss is {loss} after step {computed} of its task"
        run.steps.failure = (computed - 1, message)
    elif run.offers_best and (run.best is None or loss < run.best_loss):
        run.best, run.best_loss = run.weights.clone(), loss
