"""When a learner offers its model: rules asked after every local epoch.

A trigger is a value and a pure function of `Progress`; the learner's history is in there.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from metis.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Progress:
    """All a trigger may look at. A trigger is a pure function of this."""

    epochs: int  # whole local epochs done in this task
    losses: tuple[float, ...]  # validation loss of the received model, then after each epoch
    steps_behind: int  # effective staleness now: S_c(now) - S_c(received) + own steps
    cycles: tuple[int, ...]  # effective staleness at the end of each earlier cycle


class Trigger(Protocol):
    """Decides after an epoch whether the learner offers its model now."""

    @property
    def needs_loss(self) -> bool: ...

    @property
    def certain_epochs(self) -> int:
        """The least number of epochs of a task, whatever the losses."""
        ...

    def __call__(self, progress: Progress) -> bool: ...


@dataclass(frozen=True, slots=True)
class AfterEpochs:
    """Fixed update frequency: offer after a number of whole epochs, the paper's uf."""

    epochs: int

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)

    @property
    def needs_loss(self) -> bool:
        return False

    @property
    def certain_epochs(self) -> int:
        return self.epochs

    def __call__(self, progress: Progress) -> bool:
        return progress.epochs >= self.epochs


@dataclass(frozen=True, slots=True)
class ValidationCycle:
    """Adaptive update frequency: offer when more than `vc_tomb` epochs hardly helped.

    After epoch i, Vpct = 100 (loss_i - loss_{i-1}) / loss_{i-1}, where loss_0 is the received
    model's. The epoch is a tombstone when Vpct >= 0 (C1), or when it is negative but at most
    `vc_loss` in size (C2). The first `burn_in` epochs of a cycle cannot be tombstones (authors'
    constant 2). A loss that is not finite fires at once, lest the learner train for ever.
    """

    vc_loss: float  # percent
    vc_tomb: int
    burn_in: int = 2  # epochs

    def __post_init__(self) -> None:
        _at_least("vc_loss", self.vc_loss, 0)
        _at_least("vc_tomb", self.vc_tomb, 0)
        _at_least("burn_in", self.burn_in, 0)

    @property
    def needs_loss(self) -> bool:
        return True

    @property
    def certain_epochs(self) -> int:
        return 1

    def __call__(self, progress: Progress) -> bool:
        if not all(map(math.isfinite, progress.losses)):
            return True
        compared = list(pairwise(progress.losses))[self.burn_in :]
        return sum(self._is_tombstone(before, after) for before, after in compared) > self.vc_tomb

    def _is_tombstone(self, before: float, after: float) -> bool:
        # Multiplied out: a loss of zero is then no special case, and 0 -> 0 is C1.
        return after >= before or 100.0 * (before - after) <= self.vc_loss * abs(before)


@dataclass(frozen=True, slots=True)
class WhenStale:
    """C3: offer when effective staleness exceeds its median over the learner's first cycles.

    Off until `num_cycles` cycles are recorded; later cycles do not move the median.
    """

    num_cycles: int = 20

    def __post_init__(self) -> None:
        _at_least("num_cycles", self.num_cycles, 1)

    @property
    def needs_loss(self) -> bool:
        return False

    @property
    def certain_epochs(self) -> int:
        return 1

    def __call__(self, progress: Progress) -> bool:
        if len(progress.cycles) < self.num_cycles:
            return False
        return progress.steps_behind > statistics.median(progress.cycles[: self.num_cycles])


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Offer as soon as one of these triggers fires."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        if not self.triggers:
            raise ConfigError("any_of needs at least one trigger: a learner would train for ever")

    @property
    def needs_loss(self) -> bool:
        return any(trigger.needs_loss for trigger in self.triggers)

    @property
    def certain_epochs(self) -> int:
        return min(trigger.certain_epochs for trigger in self.triggers)

    def __call__(self, progress: Progress) -> bool:
        return any(trigger(progress) for trigger in self.triggers)


def _at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{name} is {value}; it must be at least {least}")
