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

    @property
    def certain_epochs(self) -> int:
        """How many epochs a task takes at least, whatever happens in them."""
        ...

    def __call__(self, progress: Progress) -> bool: ...


def steps_of_epoch(num_examples: int, batch_size: int, last_batch: str) -> int:
    """Return the number of mini-batches in an epoch over so many examples.

    Without a full one the last is never dropped: see `train.last_batch`.
    """
    num_full, rest = divmod(num_examples, batch_size)
    is_left_out = last_batch == "drop" and num_full > 0
    return num_full if rest == 0 or is_left_out else num_full + 1


def places_of_epoch(num_examples: int, batch_size: int, last_batch: str, no_single: bool) -> int:
    """Return how many examples the mini-batches of an epoch hold together.

    `no_single`: a mini-batch of one example is made one of two, as batch-norm needs it.
    """
    if num_examples >= batch_size and last_batch != "short":
        return steps_of_epoch(num_examples, batch_size, last_batch) * batch_size
    is_single = no_single and batch_size > 1 and num_examples % batch_size == 1
    return num_examples + is_single


def samples_of_epoch(num_examples: int, batch_size: int, last_batch: str, no_single: bool) -> int:
    """Return how many examples an epoch counts as trained on, filled places included."""
    if last_batch == "short":
        return num_examples
    return places_of_epoch(num_examples, batch_size, last_batch, no_single)


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

    def certain_steps(self) -> int:
        """Return how many steps in all the task will surely come to, if nothing cuts it short.

        Where a loss is wanted after every epoch that is the next epoch only.
        """
        soon = self.num_steps + self.next_steps()
        if self.trigger.needs_loss:
            return soon
        if self.task.max_steps is not None:
            return self.task.max_steps
        return max(soon, self.trigger.certain_epochs * self.steps_per_epoch)

    def after_steps(self, num_steps: int, losses: Sequence[float], committed_steps: int) -> bool:
        """Record trained steps; return True when it is time to offer the model.

        `losses` are the validation losses not recorded yet: at first that of the received model.

        `committed_steps` is the federation's S_c at this moment, not at the start of the epoch.
        """
        self.num_steps += num_steps
        self.epochs += num_steps == self.steps_per_epoch
        self.losses.extend(losses)
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

    The simulator decides *when* something is due, this decides when and how it is computed. What
    will be wanted is told beforehand (`expect`, `ask`) and fetched when its moment has come
    (`advance`, `answer`), so an implementation may compute each thing alone when it is fetched,
    all that is open together, or in other processes meanwhile. Results must not depend on the
    order of calls for different learners.
    """

    def profiles(self) -> Sequence[Profile]: ...

    def begin(self, task: Task, with_loss: bool) -> None:
        """Take a task on. `with_loss`: the validation loss is wanted, at first and after steps."""
        ...

    def expect(self, learner: LearnerId, num_steps: int) -> None:
        """Promise that the task will come to so many steps in all, unless it is abandoned."""
        ...

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        """Bring the learner's model so many expected mini-batches further.

        Returns the validation losses not told yet, if the task was begun with them: the received
        model's the first time, then the present one's. Raises FloatingPointError when a training
        loss or the validation loss is not finite.
        """
        ...

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        """Whether `advance` by so many steps would return at once."""
        ...

    def finish(self, learner: LearnerId) -> Vector:
        """Return the trained model and forget the task. All that was expected is done by now.

        That is the latest, or by config the one of least validation loss.
        """
        ...

    def abandon(self, learner: LearnerId) -> None:
        """Forget the task, if there is one. What was kept for the learner's next task stays."""
        ...

    def depart(self, learner: LearnerId) -> None:
        """Forget the task, and what the learner was asked as a judge: it is gone."""
        ...

    def ask(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        """Have judges score one model on their own validation sets; return a number for each."""
        ...

    def answer(self, question: int) -> Counts | None:
        """Return a judge's counts, once. None if it has no validation examples."""
        ...

    def test(self, weights: Vector) -> TestResult:
        """Return how a model does on the common test set."""
        ...

    def state(self) -> object:
        """Return all that must outlive a crash, in types that `storage.pack` can write."""
        ...

    def restore(self, state: object) -> None: ...

    def close(self) -> None:
        """Give back what was taken from the machine; nothing can be computed afterwards."""
        ...
