"""Random schedules: what can happen to a federation, in any order, any number of times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from metis.core.events import (
    Arrived,
    EvaluationExpired,
    Event,
    Failed,
    Joined,
    Left,
    Scored,
    TaskExpired,
)
from metis.core.types import (
    ClassCounts,
    LearnerId,
    Model,
    Profile,
    Sparse,
    Task,
    Update,
    Vector,
    as_vector,
    read_only,
)
from tests.fuzz.account import Account

SIZE = 3  # floats in a model

_RNG = np.random.default_rng(1990)
MODELS: list[Vector] = [
    read_only(_RNG.normal(size=SIZE) * 10.0 ** _RNG.integers(-2, 3)) for _ in range(200)
]
#: Finite, and near the largest float32: whoever steps beyond them makes no model.
HUGE: list[Vector] = [read_only(_RNG.uniform(-3.4e38, 3.4e38, SIZE)) for _ in range(20)]
UNFIT: list[Vector] = [
    read_only(np.array([1, math.nan, 1])),
    read_only(np.array([1, 1, -math.inf])),
    read_only(np.ones(SIZE + 1)),
]
COUNTS: list[ClassCounts | None] = [
    *(ClassCounts(_RNG.integers(0, 9, (2, 2))) for _ in range(12)),
    ClassCounts(np.array([[0, 5], [7, 0]])),  # a score of zero
    ClassCounts(np.array([[0, 3], [0, 0]])),
    ClassCounts(np.zeros((2, 2), np.int64)),
    None,
]
ODD_COUNTS = [ClassCounts(np.eye(3, dtype=np.int64)), ClassCounts(np.ones((2, 3), np.int64))]
NAMES = [LearnerId(name) for name in "abcdef"]
STRANGER = LearnerId("eve")


def _sparse(base: Vector, model: Model, rng: Random) -> Sparse:
    """Return a model that differs from its base in one weight or two, its last value sent whole."""
    values = as_vector(model)
    at = np.array(sorted(rng.sample((0, 1), rng.randint(1, 2))))
    return Sparse(base, at, values[at], ((2, 3),), values[2:3])


@dataclass(slots=True)
class Schedule:
    """Draws one event after another, looking at what is open so that most of them matter."""

    rng: Random
    account: Account
    num_learners: int
    share_sparse: float  # of the updates: what a codec like STC makes of them
    share_huge: float
    sent: list[Update] = field(default_factory=list)
    unheard: list[Task] = field(default_factory=list)  # taken from their learners unanswered

    def draw(self) -> Event:
        account, chance = self.account, self.rng.random()
        if not account.started and chance < 0.8:
            return self._join()
        if account.asked and chance < 0.45:
            return self._judge(self.rng.choice(list(account.asked)))
        if account.open and chance < 0.70:
            return self._answer()
        if chance < 0.80:
            return self._join()
        if chance < 0.86:
            return Left(self._anybody(), withdraw=self.rng.random() < 0.4)
        if account.open and chance < 0.91:
            task = self.rng.choice(list(account.open.values()))
            if self.rng.random() < 0.6:
                self.unheard.append(task)
                return TaskExpired(task.number)
            return Failed(task.learner, task.number, "its loss is not a number")
        return self._noise()

    def _anybody(self) -> LearnerId:
        return NAMES[self.rng.randrange(self.num_learners)]

    def _join(self) -> Event:
        rng = self.rng
        held_out, steps = rng.randint(0, 9), rng.randint(1, 6)
        full = steps + rng.randint(0, 2) if held_out else None
        profile = Profile(self._anybody(), rng.randint(1, 50), steps, "default", held_out, full)
        return Joined(profile)

    def _judge(self, evaluation: int) -> Event:
        chance = self.rng.random()
        if chance < 0.1:
            return EvaluationExpired(evaluation)
        return Scored(evaluation, self.rng.choice(ODD_COUNTS if chance < 0.13 else COUNTS))

    def _answer(self) -> Event:
        update = self._update(self.rng.choice(list(self.account.open.values())))
        self.sent.append(update)
        return Arrived(update)

    def _update(self, task: Task) -> Update:
        rng = self.rng
        weights: Model = rng.choice(HUGE if rng.random() < self.share_huge else MODELS)
        if rng.random() < self.share_sparse:
            weights = _sparse(task.start.weights, weights, rng)
        update = Update(
            learner=task.learner,
            task=task.number,
            weights=weights,
            base_version=task.start.version,
            num_examples=rng.randint(1, 50),
            num_steps=rng.randint(1, 9),
            seconds=rng.choice((0.0, 0.5, 1.0, 7.0, math.inf)),
            counts=rng.choice(ODD_COUNTS if rng.random() < 0.03 else COUNTS),
        )
        if rng.random() < 0.08:
            faults = (
                {"weights": rng.choice(UNFIT)},
                {"weights": _sparse(task.start.weights, rng.choice(UNFIT[:2]), rng)},
                {"base_version": task.start.version + rng.choice((-1, 1))},
                {"num_steps": 0},
                {"num_examples": 0},
            )
            update = replace(update, **rng.choice(faults))
        return update

    def _noise(self) -> Event:
        """What should change nothing: duplicates, strangers, answers to nothing; and late ones."""
        rng, account = self.rng, self.account
        kind = rng.randrange(8)
        if kind == 0 and self.sent:
            return Arrived(rng.choice(self.sent))
        if kind <= 2 and self.unheard:
            late = self.unheard.pop(rng.randrange(len(self.unheard)))
            return Arrived(self._update(late))
        if kind == 3 and account.open:
            task = rng.choice(list(account.open.values()))
            return Arrived(replace(self._update(task), learner=STRANGER))
        if kind == 4 and account.open:
            task = rng.choice(list(account.open.values()))
            return Arrived(replace(self._update(task), learner=self._anybody()))
        number = rng.randint(0, account.num_tasks + 1)
        if kind == 5:
            return Failed(self._anybody(), number, "out of memory")
        if kind == 6:
            return self._judge(rng.randint(0, account.num_evaluations + 1))
        return TaskExpired(number)
