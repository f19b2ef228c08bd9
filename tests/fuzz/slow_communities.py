"""Community models the slow, obvious way: keep every fold in plain lists, add all up each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

Values: TypeAlias = Sequence[float]


class SlowCommunity(Protocol):
    """What `metis.core.community.Community` promises, on plain lists."""

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None: ...

    def drop(self, learner: str) -> bool: ...

    def model(self, current: Values) -> Values: ...

    def reject(self) -> None:
        """The model just made was none."""
        ...


def mean(terms: Sequence[tuple[float, Values]]) -> list[float]:
    mass = math.fsum(weight for weight, _ in terms)
    return [sum(w * v for w, v in column) / mass for column in columns(terms)]


def columns(terms: Sequence[tuple[float, Values]]) -> list[list[tuple[float, float]]]:
    size = len(terms[0][1])
    return [[(weight, values[i]) for weight, values in terms] for i in range(size)]


@dataclass(slots=True)
class SlowRound:
    """Mean of this round's models, in sorted order of their learners."""

    round: dict[str, tuple[float, Values]] = field(default_factory=dict)

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None:
        assert learner not in self.round, f"{learner} was folded twice in one round"
        if weight > 0:
            self.round[learner] = (weight, values)

    def drop(self, learner: str) -> bool:
        return self.round.pop(learner, None) is not None

    def model(self, current: Values) -> Values:
        terms = [self.round[learner] for learner in sorted(self.round)]
        self.round = {}
        return mean(terms) if terms else current

    def reject(self) -> None:
        raise AssertionError("a mean of finite models is finite")


@dataclass(slots=True)
class SlowCache:
    """Mean of everybody's latest model."""

    latest: dict[str, tuple[float, Values]] = field(default_factory=dict)

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None:
        self.latest[learner] = (weight, values)

    def drop(self, learner: str) -> bool:
        return self.latest.pop(learner, (0.0,))[0] > 0

    def model(self, current: Values) -> Values:
        terms = [term for _, term in sorted(self.latest.items()) if term[0] > 0]
        return mean(terms) if terms else current

    def reject(self) -> None:
        raise AssertionError("a mean of finite models is finite")


@dataclass(slots=True)
class SlowMixing:
    """Every model ever mixed in, from the first on."""

    folds: list[tuple[float, Values]] = field(default_factory=list)

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None:
        self.folds.append((weight, values))

    def drop(self, learner: str) -> bool:
        return False

    def model(self, current: Values) -> Values:
        mixture = list(self.folds[0][1])
        for rate, values in self.folds[1:]:
            mixture = [(1 - rate) * m + rate * v for m, v in zip(mixture, values, strict=True)]
        return mixture

    def reject(self) -> None:
        raise AssertionError("a mean of finite models is finite")


@dataclass(slots=True)
class SlowBuffer:
    """FedBuff's step from the current model."""

    server_rate: float
    folds: list[tuple[str, float, Values, Values]] = field(default_factory=list)

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None:
        self.folds.append((learner, weight, values, base))

    def drop(self, learner: str) -> bool:
        before = len(self.folds)
        self.folds = [fold for fold in self.folds if fold[0] != learner]
        return len(self.folds) < before

    def model(self, current: Values) -> Values:
        folds, self.folds = self.folds, []
        return [
            here
            + self.server_rate
            * sum(weight * (values[i] - base[i]) for _, weight, values, base in folds)
            / len(folds)
            for i, here in enumerate(current)
        ]

    def reject(self) -> None:
        pass


@dataclass(slots=True)
class SlowMomentum:
    """FedAvgM on top of a round's mean: every step so far, discounted by its age."""

    rate: float
    momentum: float
    round: SlowRound = field(default_factory=SlowRound)
    steps: list[list[float]] = field(default_factory=list)

    def fold(self, learner: str, weight: float, values: Values, base: Values) -> None:
        self.round.fold(learner, weight, values, base)

    def drop(self, learner: str) -> bool:
        return self.round.drop(learner)

    def model(self, current: Values) -> Values:
        average = self.round.model(current)
        if average is current:
            return current
        # A community's model is float32, also the average that is only half of the way to one.
        rounded = np.array(average, np.float32).tolist()
        self.steps.append([a - c for a, c in zip(rounded, current, strict=True)])
        ages = range(len(self.steps) - 1, -1, -1)
        return [
            here
            + self.rate
            * sum(self.momentum**age * step[i] for age, step in zip(ages, self.steps, strict=True))
            for i, here in enumerate(current)
        ]

    def reject(self) -> None:
        self.steps = []
