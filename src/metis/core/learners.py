"""What a federation asks of its learners: to train, to judge, and to outlive a crash.

The simulator and a learner's site both work through these protocols. One object may be all three
at once, for one learner or for many (`training.cohort`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from metis.core.types import Counts, LearnerId, Task, Vector


@dataclass(frozen=True, slots=True)
class TestResult:
    """How a community model does on the common test set."""

    __test__ = False  # the name is the domain's; pytest should not collect it

    score: float  # accuracy for classification, R2 for regression
    loss: float


class Trainer(Protocol):
    """Trains learners' models, each for one task at a time.

    The caller decides *when* mini-batches are due, the trainer when and how it computes them. Steps
    are announced first (`announce`) and fetched at their moment (`advance`), so a trainer may
    compute each learner alone when its steps are fetched, all learners together, or in other
    processes meanwhile. Results must not depend on the order of calls for different learners.
    """

    def begin(self, task: Task, with_loss: bool) -> None:
        """Take a task on. `with_loss`: `advance` returns validation losses."""
        ...

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        """Promise that the task will have `num_steps` steps in all, unless it is abandoned."""
        ...

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        """Train the learner's model for the next `num_steps` announced mini-batches.

        Returns the validation losses not returned yet, if the task was begun with them: that of
        the received model the first time, then that of the present model. Raises
        FloatingPointError when a training loss or the validation loss is not finite.
        """
        ...

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        """Whether `advance` by `num_steps` would return at once."""
        ...

    def finish(self, learner: LearnerId) -> Vector:
        """Return the trained model and forget the task. All announced steps are done by now.

        The model is the latest or, if the config says so, the one of least validation loss.
        """
        ...

    def abandon(self, learner: LearnerId) -> None:
        """Forget the task, if there is one. State for the learner's next task stays."""
        ...


class Judge(Protocol):
    """Scores models on the learners' validation sets and on the common test set.

    Counts are requested first (`request_counts`) and taken later (`take_counts`), so that a judge
    may compute many requests together.
    """

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        """Have learners score one model on their own validation sets.

        Returns the number of a request for each learner.
        """
        ...

    def take_counts(self, request: int) -> Counts | None:
        """Return the counts of a request, once. None if the learner has no validation examples."""
        ...

    def forget(self, judge: LearnerId) -> None:
        """Drop the open requests to a learner that has left."""
        ...

    def test(self, weights: Vector) -> TestResult:
        """Score a model on the common test set."""
        ...


class Durable(Protocol):
    """State that outlives the process."""

    def state(self) -> object:
        """Return all that must outlive a crash, in types that `store.pack` can write."""
        ...

    def restore(self, state: object) -> None:
        """Continue from a state."""
        ...
