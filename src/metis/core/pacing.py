"""Who runs next, and when a new version is due. One question each, asked after every event."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from metis.core.types import LearnerId, Profile


class Pacing(Protocol):
    """Says when idle learners are released and when a version is made."""

    @property
    def rounds(self) -> bool:
        """Whether a release starts a round whose roster judges and waits for one another."""
        ...

    @property
    def sample(self) -> int | None:
        """How many learners may be at work at once; None: all of them."""
        ...

    @property
    def epochs_of_slowest(self) -> float | None:
        """Time budget of a task (see `step_budgets`); None: the learner's trigger decides."""
        ...

    def publishes(self, num_folds: int, num_active: int) -> bool:
        """Whether so many folds make a version while so many learners are still at work."""
        ...

    def release(self, idle: Set[LearnerId], num_active: int, draw: int) -> Sequence[LearnerId]:
        """Return whom of the idle to release, in order. `draw` differs from call to call."""
        ...


@dataclass(frozen=True, slots=True)
class Rounds:
    """A barrier: the next round starts when no learner of this one is at work any more."""

    sample: int | None = None  # learners per round
    seed: int = 0
    epochs_of_slowest: float | None = None
    rounds: bool = True

    @property
    def name(self) -> str:
        """The function that makes such rounds."""
        return Sync.__name__ if self.epochs_of_slowest is None else SemiSync.__name__

    def publishes(self, num_folds: int, num_active: int) -> bool:
        return num_active == 0

    def release(self, idle: Set[LearnerId], num_active: int, draw: int) -> Sequence[LearnerId]:
        return choose(idle, self.sample, self.seed, draw) if num_active == 0 else ()


@dataclass(frozen=True, slots=True)
class Continuous:
    """No barrier: learners go on at once, and every `size` folds make a version."""

    size: int = 1
    sample: int | None = None  # learners at work at once
    seed: int = 0
    epochs_of_slowest: float | None = None
    rounds: bool = False

    @property
    def name(self) -> str:
        """The function that makes such a pacing."""
        return Async.__name__ if self.size == 1 else Buffered.__name__

    def publishes(self, num_folds: int, num_active: int) -> bool:
        return num_folds >= self.size

    def release(self, idle: Set[LearnerId], num_active: int, draw: int) -> Sequence[LearnerId]:
        return choose(idle, vacancies(self.sample, num_active), self.seed, draw)


def Sync(sample: int | None = None, seed: int = 0) -> Rounds:
    """Return rounds in which every learner trains its own number of epochs."""
    return Rounds(sample, seed)


def SemiSync(epochs_of_slowest: float = 1.0, sample: int | None = None, seed: int = 0) -> Rounds:
    """Return rounds of equal time: a learner gets the mini-batches it can do in it (lambda)."""
    return Rounds(sample, seed, epochs_of_slowest)


def Async(sample: int | None = None, seed: int = 0) -> Continuous:
    """Return each alone: every fold makes a version, and its learner goes on at once."""
    return Continuous(1, sample, seed)


def Buffered(size: int = 5, sample: int | None = None, seed: int = 0) -> Continuous:
    """Return FedBuff's pacing: only every `size` folds (K) make a version."""
    return Continuous(size, sample, seed)


def choose(idle: Set[LearnerId], count: int | None, seed: int, draw: int) -> list[LearnerId]:
    """Return `count` of the idle, drawn without replacement, in sorted order; all if None."""
    if count == 0:
        return []
    names = sorted(idle)
    if count is None or count >= len(names):
        return names
    picks = np.random.default_rng([seed, draw]).choice(len(names), count, replace=False)
    return [names[i] for i in sorted(picks)]


def vacancies(sample: int | None, num_active: int) -> int | None:
    """Return how many more may start while so many are at work; None: no limit."""
    return None if sample is None else max(0, sample - num_active)


def step_budgets(
    epochs_of_slowest: float,
    roster: Sequence[Profile],
    step_seconds: Mapping[LearnerId, float],
    all_examples: bool = False,
) -> dict[LearnerId, int]:
    """Return the mini-batches each can do in `epochs_of_slowest` x the slowest epoch.

    A learner whose speed is not known yet does one epoch, which measures it. `all_examples`:
    epochs are over those held out, too.
    """
    epoch = {p.learner: p.epoch_steps(all_examples) for p in roster}
    known = {p.learner: step_seconds.get(p.learner, 0.0) for p in roster}
    seconds = epochs_of_slowest * max(known[p.learner] * epoch[p.learner] for p in roster)
    return {
        # The slack keeps 3.0000000001 steps, which is 3 rounded badly, from becoming 4.
        p.learner: max(1, math.ceil(seconds / known[p.learner] - 1e-9))
        if known[p.learner] > 0.0
        else epoch[p.learner]
        for p in roster
    }
