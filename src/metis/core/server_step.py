"""Server optimizers: the round's average taken as a direction to step in, not as the next model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np

from metis.core.community import Community, NextModel
from metis.core.kernels import Sum
from metis.core.types import LearnerId, Spans, Update, Vector, frozen, gather, scatter


class ServerStep(Protocol):
    """Makes the next step of the way from the current model to the learners' average."""

    def __call__(self, delta: Sum) -> Sum:
        """Return what is to be added to the current model; `delta` is average - current."""
        ...

    def reset(self) -> None:
        """Begin again, as if no step had been made."""
        ...


@dataclass(slots=True)
class FedAvgM:
    """Server momentum (Hsu et al. 2019): m = momentum * m + delta; the step is rate * m.

    With momentum 0 and rate 1 the average is the next model.
    """

    rate: float = 1.0
    momentum: float = 0.9
    velocity: Sum | None = None

    def __call__(self, delta: Sum) -> Sum:
        self.velocity = delta if self.velocity is None else self.momentum * self.velocity + delta
        return self.rate * self.velocity

    def reset(self) -> None:
        self.velocity = None


#: How v follows delta^2: summed up; as a running mean; or towards it by a step of its own size.
SecondMoment: TypeAlias = Literal["adagrad", "adam", "yogi"]


@dataclass(slots=True)
class Adaptive:
    """FedAdagrad, FedAdam and FedYogi (Reddi et al. 2021, algorithm 2): rate * m / (sqrt(v) + tau).

    m = beta1 m + (1 - beta1) delta for all three. Without bias correction, as in the paper. It asks
    for v >= tau^2 at the start; we take tau^2, and m = 0.
    """

    kind: SecondMoment = "adam"
    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99  # not of FedAdagrad
    tau: float = 1e-3
    first: Sum | None = None  # m
    second: Sum | None = None  # v

    def __call__(self, delta: Sum) -> Sum:
        first = np.zeros_like(delta) if self.first is None else self.first
        second = np.full_like(delta, self.tau**2) if self.second is None else self.second
        self.first = self.beta1 * first + (1.0 - self.beta1) * delta
        self.second = self._second(second, delta)
        return self.rate * self.first / (np.sqrt(self.second) + self.tau)

    def reset(self) -> None:
        self.first, self.second = None, None

    def _second(self, second: Sum, delta: Sum) -> Sum:
        match self.kind:
            case "adagrad":
                return second + delta * delta
            case "adam":
                return self.beta2 * second + (1.0 - self.beta2) * delta * delta
            case "yogi":
                square = delta * delta
                return second - (1.0 - self.beta2) * square * np.sign(second - square)


@dataclass(slots=True)
class Stepped:
    """A community whose averages go through a server step. No mass, no step.

    `buffers` are the parts of the vector that nobody trains, such as batch-norm statistics. They
    are averaged and never stepped: a step goes past the average, and a variance below zero.
    """

    community: Community
    step: ServerStep
    buffers: Spans = ()

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        self.community.fold(update, weight, base)

    def drop(self, learner: LearnerId) -> bool:
        return self.community.drop(learner)

    def model(self, current: Vector) -> NextModel:
        made = self.community.model(current)
        average = made.weights
        if average is current:
            return made
        delta: Sum = np.subtract(average, current, dtype=np.float64)
        for start, stop in self.buffers:
            delta[start:stop] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # a controller looks at what comes out
            stepped = (current + self.step(delta)).astype(np.float32)
        scatter(stepped, gather(average, self.buffers), self.buffers)
        return replace(made, weights=frozen(stepped))

    def reject(self, current: Vector) -> None:
        self.community.reject(current)
        self.step.reset()  # what carried this model over the edge would carry over the next one too
