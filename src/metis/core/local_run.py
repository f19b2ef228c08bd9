"""One learner's side of a task: train epoch by epoch, and ask its trigger after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metis.core.types import Counts, LearnerId, Profile, Task, Vector


@dataclass(frozen=True, slots=True)
class Progress:
    """All a trigger may look at. A trigger is a pure function of this."""

    epochs: int  # whole local epochs done in this task
    losses: tuple[float, ...]  # validation loss of the received model, then after each epoch
    steps_behind: int  # effective staleness now: S_c(now) - S_c(received) + own steps
    cycles: tuple[int, ...]  # effective staleness at the end of each earlier cycle


class Trigger(Protocol):
    """Says after an epoch whether the learner should offer its model now."""

    @property
    def needs_loss(self) -> bool: ...

    def __call__(self, progress: Progress) -> bool: ...


@dataclass(slots=True)
class LocalRun:
    """A task under way. Both shells drive it: `next_steps`, train that many, `after_steps`.

    Owns no weights: those belong to whoever trains. `cycles` is the learner's own history and
    outlives the task; the run appends to it when the trigger fires.
    """

    task: Task
    steps_per_epoch: int
    trigger: Trigger
    cycles: list[int]
    epochs: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)

    def next_steps(self) -> int:
        """Return how many mini-batches come next: an epoch, or what the budget leaves of one."""
        if self.task.max_steps is None:
            return self.steps_per_epoch
        return min(self.steps_per_epoch, self.task.max_steps - self.num_steps)

    def after_steps(self, num_steps: int, loss: float | None, committed_steps: int) -> bool:
        """Record trained steps; return True when it is time to offer the model.

        `committed_steps` is the federation's S_c at this moment, not at the start of the epoch.
        """
        self.num_steps += num_steps
        self.epochs += num_steps == self.steps_per_epoch
        if loss is not None:
            self.losses.append(loss)
        steps_behind = committed_steps - self.task.committed_steps + self.num_steps
        if self.task.max_steps is not None:
            done = self.num_steps >= self.task.max_steps
        else:
            done = self.trigger(
                Progress(self.epochs, tuple(self.losses), steps_behind, tuple(self.cycles))
            )
        if done:
            self.cycles.append(steps_behind)
        return done


@dataclass(frozen=True, slots=True)
class TestResult:
    """How a community model does on the common test set."""

    __test__ = False  # the name is the domain's; pytest should not collect it

    score: float  # accuracy for classification, R2 for regression
    loss: float


class Learners(Protocol):
    """Every learner of a simulation, seen as one thing that computes.

    The simulator decides *when* something is due; this decides how it is computed. An
    implementation may train one learner at a time, or all that are in flight in one batched
    program: results must not depend on the order of calls for different learners.
    """

    def profiles(self) -> Sequence[Profile]: ...

    def begin(self, task: Task, with_loss: bool) -> float | None:
        """Load the task's start model; return its validation loss if asked for."""
        ...

    def advance(self, learner: LearnerId, num_steps: int, with_loss: bool) -> float | None:
        """Train the learner's model by so many mini-batches; return its validation loss if asked.

        Raises FloatingPointError when the training loss is not finite.
        """
        ...

    def finish(self, learner: LearnerId) -> Vector:
        """Return the trained model and forget the task."""
        ...

    def abandon(self, learner: LearnerId) -> None:
        """Forget the task, if there is one. What was kept for the next task stays."""
        ...

    def evaluate(self, weights: Vector, judges: Sequence[LearnerId]) -> list[Counts | None]:
        """Return each judge's counts of one model on its own validation set."""
        ...

    def test(self, weights: Vector) -> TestResult:
        """Return how a model does on the common test set."""
        ...

    def state(self) -> object:
        """Return all that must outlive a crash, in types that `store.pack` can write."""
        ...

    def restore(self, state: object) -> None: ...
