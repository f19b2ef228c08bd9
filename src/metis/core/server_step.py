"""Server optimizers: the round's average taken as a direction to step in, not as the next model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from metis.core.community import Community
from metis.core.kernels import Sum
from metis.core.types import LearnerId, Update, Vector, frozen


class ServerStep(Protocol):
    """Makes the next model of the current one and of what the learners' average would be."""

    def __call__(self, current: Vector, average: Vector) -> Vector: ...


@dataclass(slots=True)
class FedAvgM:
    """Server momentum (Hsu et al. 2019): m = momentum * m + delta; w_c += rate * m.

    delta = average - current. With momentum 0 and rate 1 the average is the next model.
    """

    rate: float = 1.0
    momentum: float = 0.9
    velocity: Sum | None = None

    def __call__(self, current: Vector, average: Vector) -> Vector:
        delta = _delta(current, average)
        self.velocity = delta if self.velocity is None else self.momentum * self.velocity + delta
        return frozen(current + self.rate * self.velocity)


@dataclass(slots=True)
class FedAdam:
    """Adaptive server step (Reddi et al. 2021, algorithm 2): w_c += rate * m / (sqrt(v) + tau).

    m = beta1 m + (1 - beta1) delta and v = beta2 v + (1 - beta2) delta^2, with delta = average -
    current, without bias correction, as in the paper. It asks for v >= tau^2 at the start; we take
    tau^2, and m = 0. Every element is stepped alike, batch-norm statistics included.
    """

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    first: Sum | None = None  # m
    second: Sum | None = None  # v

    def __call__(self, current: Vector, average: Vector) -> Vector:
        delta = _delta(current, average)
        first = np.zeros_like(delta) if self.first is None else self.first
        second = np.full_like(delta, self.tau**2) if self.second is None else self.second
        self.first = self.beta1 * first + (1.0 - self.beta1) * delta
        self.second = self.beta2 * second + (1.0 - self.beta2) * delta * delta
        return frozen(current + self.rate * self.first / (np.sqrt(self.second) + self.tau))


@dataclass(slots=True)
class Stepped:
    """A community whose averages go through a server step. No mass, no step."""

    community: Community
    step: ServerStep

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        self.community.fold(update, weight, base)

    def drop(self, learner: LearnerId) -> bool:
        return self.community.drop(learner)

    def model(self, current: Vector) -> Vector:
        average = self.community.model(current)
        return current if average is current else self.step(current, average)

    @property
    def drift(self) -> float | None:
        return self.community.drift


def _delta(current: Vector, average: Vector) -> Sum:
    return np.subtract(average, current, dtype=np.float64)
