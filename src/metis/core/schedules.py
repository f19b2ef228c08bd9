"""What a task's learning rate is multiplied by. The controller asks when it gives the task.

A learner knows the rate that it multiplies, and nothing of versions or scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from metis.core.types import LearnerId

#: The factor at a version, given the two numbers of the settings.
SHAPES: Mapping[str, Callable[[int, int, float], float]] = {
    "constant": lambda version, versions, factor: 1.0,
    "step": lambda version, versions, factor: factor ** (version // versions),
    "exponential": lambda version, versions, factor: factor ** (version / versions),
    "cosine": lambda version, versions, factor: (
        factor + (1 - factor) * (1 + math.cos(math.pi * min(version / versions, 1.0))) / 2
    ),
}


class Schedule(Protocol):
    """Gives each task its factor. One that learns from scores has one owner: the controller."""

    def factor_at(self, version: int) -> float:
        """Return the factor of a task that starts from this version, the newest there is."""
        ...

    def published(self, scores: Sequence[tuple[LearnerId, float]]) -> None:
        """Take in what the folds of a new version scored; empty if none of them was judged."""
        ...


@dataclass(frozen=True, slots=True)
class ByVersion:
    """The factor follows from the version alone.

    Constant; `step`, times `factor` every `versions`; `exponential`, the same without the jumps;
    `cosine`, down to `factor` after `versions`.
    """

    shape: str = "constant"
    versions: int = 100
    factor: float = 0.1

    def factor_at(self, version: int) -> float:
        return SHAPES[self.shape](version, self.versions, self.factor)

    def published(self, scores: Sequence[tuple[LearnerId, float]]) -> None:
        pass


@dataclass(slots=True)
class Plateau:
    """The factor falls when the distributed validation score has stopped rising.

    A federation's score is the mean of its learners' latest scores, each counted once however
    often it updates: those of the last `num_learners` that were heard of, which is a whole round,
    or everybody of an asynchronous federation. A version improves if that mean passes the best
    one by more than `improvement` of it. After `versions` in a row that do not, the factor is
    multiplied by `factor`, down to `floor`, and counting begins again. While learners are scored
    for the first time, the mean is of more and more of them, and nothing is compared.
    """

    versions: int
    factor: float
    improvement: float
    floor: float
    num_learners: int  # that work at once
    latest: dict[LearnerId, float] = field(default_factory=dict)  # the one heard of last at the end
    best: float = 0.0
    num_since: int = 0  # versions without improvement
    reached: float = 1.0

    def factor_at(self, version: int) -> float:
        return self.reached

    def published(self, scores: Sequence[tuple[LearnerId, float]]) -> None:
        if not scores:
            return
        num_known = len(self.latest)
        for learner, score in scores:
            self.latest.pop(learner, None)
            self.latest[learner] = score
        while len(self.latest) > self.num_learners:
            del self.latest[next(iter(self.latest))]
        mean = math.fsum(self.latest.values()) / len(self.latest)
        if len(self.latest) > num_known or mean > self.best * (1.0 + self.improvement):
            self.best, self.num_since = mean, 0
            return
        self.num_since += 1
        if self.num_since >= self.versions:
            self.reached = max(self.floor, self.reached * self.factor)
            self.num_since = 0
