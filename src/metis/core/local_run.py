"""One learner's task under way: train epoch by epoch, and ask the trigger after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from metis.core.triggers import Progress, Trigger
from metis.core.types import Task


@dataclass(slots=True)
class LocalRun:
    """A task under way. Both shells drive it: `next_steps`, train that many, `after_steps`.

    Owns no weights: those belong to the trainer. `cycles` is the learner's own history and
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
        """Return how many steps in all the task will surely have, unless it is abandoned.

        A trigger that needs the loss of every epoch makes only the next epoch certain.
        """
        soon = self.num_steps + self.next_steps()
        if self.trigger.needs_loss:
            return soon
        if self.task.max_steps is not None:
            return self.task.max_steps
        return max(soon, self.trigger.certain_epochs * self.steps_per_epoch)

    def after_steps(self, num_steps: int, losses: Sequence[float], committed_steps: int) -> bool:
        """Record trained steps; return True when it is time to offer the model.

        `losses` are the validation losses not recorded yet; the first is the received model's.
        `committed_steps` is the federation's S_c now, not at the start of the epoch.
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
