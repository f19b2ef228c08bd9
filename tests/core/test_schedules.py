"""Factors of the learning rate: by version, and by what validation scores have done so far."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from metis.core.events import Command
from metis.core.pacing import Async, Sync
from metis.core.schedules import SHAPES, ByVersion, Plateau
from metis.core.types import LearnerId
from metis.core.weighting import ByValidation
from tests.core.federation import (
    arrive,
    counted,
    evaluations,
    federation,
    published,
    score_all,
    task_of,
    tasks,
)

A, B, C = (LearnerId(name) for name in "abc")


def plateau(num_learners: int, versions: int = 2, **settings: float) -> Plateau:
    chosen: dict[str, Any] = {"factor": 0.5, "improvement": 0.1, "floor": 0.1, **settings}
    return Plateau(versions, num_learners=num_learners, **chosen)


def told(schedule: Plateau, *versions: list[tuple[LearnerId, float]]) -> list[float]:
    """Tell it of versions; return the factor after each."""
    found = []
    for number, scores in enumerate(versions, 1):
        schedule.published(scores)
        found.append(schedule.factor_at(number))
    return found


def test_schedules_by_version_follow_their_formulas() -> None:
    def factors(shape: str) -> list[float]:
        schedule = ByVersion(shape, 10, 0.1)
        schedule.published([(A, 0.0)])  # which changes nothing
        return [schedule.factor_at(version) for version in (0, 5, 10, 20)]

    assert factors("constant") == [1.0, 1.0, 1.0, 1.0]
    assert factors("step") == pytest.approx([1.0, 1.0, 0.1, 0.01])
    assert factors("exponential") == pytest.approx([1.0, math.sqrt(0.1), 0.1, 0.01])
    assert factors("cosine") == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert set(SHAPES) == {"constant", "step", "exponential", "cosine"}


def test_a_score_that_rises_enough_leaves_the_factor_alone() -> None:
    assert told(plateau(1), *[[(A, 1.11**n)] for n in range(20)]) == [1.0] * 20
    assert told(plateau(1), *[[(A, 1.09**n)] for n in range(3)]) == [1.0, 1.0, 1.0]
    assert told(plateau(1, versions=1), *[[(A, 1.09**n)] for n in range(3)]) == [1.0, 0.5, 1 / 2]


def test_each_wait_in_vain_multiplies_the_factor_down_to_its_floor() -> None:
    same = [[(A, 0.8)] for _ in range(12)]

    assert told(plateau(1), *same) == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.1, 0.1, 0.1, 0.1]


def test_what_is_compared_is_the_best_mean_and_not_the_last() -> None:
    scores = [0.5, 0.8, 0.3, 0.6, 0.7, 0.79]

    assert told(plateau(1), *[[(A, score)] for score in scores]) == [1, 1, 1, 0.5, 0.5, 0.25]


def test_a_round_is_compared_with_earlier_rounds_whoever_was_drawn() -> None:
    schedule = plateau(2)

    assert told(schedule, [(A, 0.4), (B, 0.6)], [(C, 0.5), (B, 0.5)], [(A, 0.6), (C, 0.4)]) == [
        1.0,
        1.0,
        0.5,
    ]
    assert schedule.latest == {A: 0.6, C: 0.4}


def test_who_updates_ten_times_as_often_counts_once() -> None:
    schedule = plateau(2, versions=3)
    told(schedule, [(A, 0.9)], [(B, 0.1)])
    assert schedule.best == 0.5

    assert told(schedule, [(A, 0.9)], [(A, 0.9)], [(A, 0.9)]) == [1.0, 1.0, 0.5]
    assert schedule.best == 0.5
    told(schedule, [(B, 0.3)])
    assert schedule.best == pytest.approx(0.6)


def test_nothing_is_compared_while_learners_are_scored_for_the_first_time() -> None:
    schedule = plateau(3, versions=1)

    assert told(schedule, [(A, 0.9)], [(B, 0.1)], [(C, 0.2)]) == [1.0, 1.0, 1.0]
    assert schedule.best == pytest.approx(0.4)


def test_a_version_that_nobody_judged_does_not_count() -> None:
    assert told(plateau(1), [(A, 0.8)], [], [], [(A, 0.8)], [], [(A, 0.8)]) == [1, 1, 1, 1, 1, 0.5]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_a_slow_reading_of_the_whole_past_comes_to(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [LearnerId(f"{number}") for number in range(int(rng.integers(1, 7)))]
    at_work, patience = int(rng.integers(1, len(names) + 1)), int(rng.integers(1, 5))
    schedule = plateau(at_work, versions=patience, factor=0.7, improvement=0.02, floor=0.05)
    past: list[list[tuple[LearnerId, float]]] = []
    for _ in range(80):
        count = int(rng.integers(0, at_work + 1))
        drawn = rng.choice(len(names), count, replace=False)
        past.append([(names[n], float(rng.uniform(0.4, 0.6))) for n in drawn])
        schedule.published(past[-1])

        assert schedule.factor_at(0) == slowly(past, at_work, patience)


def slowly(past: list[list[tuple[LearnerId, float]]], at_work: int, patience: int) -> float:
    """Return the factor after these versions, each looked at with all that came before."""
    factor, best, waited, num_before = 1.0, 0.0, 0, 0
    for number, version in enumerate(past, 1):
        if not version:
            continue
        backwards = [fold for older in reversed(past[:number]) for fold in reversed(older)]
        heard: dict[LearnerId, float] = {}
        for learner, score in backwards:
            if len(heard) < at_work:
                heard.setdefault(learner, score)
        mean = math.fsum(heard.values()) / len(heard)
        if len(heard) > num_before or mean > best * 1.02:
            best, waited = mean, 0
        else:
            waited += 1
        num_before = len(heard)
        if waited == patience:
            factor, waited = max(0.05, factor * 0.7), 0
    return factor


def scored(name: str, *, of: object, hits: int) -> list[Command]:
    """Let a learner of a federation answer, and everybody else score it the same."""
    asked = evaluations(arrive(of, name, counts=counted(hits, 10 - hits)))  # type: ignore[arg-type]
    return score_all(of, asked, counted(hits, 10 - hits))  # type: ignore[arg-type]


def test_a_round_of_tasks_has_the_factor_of_its_version() -> None:
    controller = federation(Sync(), ByValidation())
    controller.schedule = plateau(3, versions=1)
    assert task_of(controller, "a").rate_factor == 1.0
    for expected in (1.0, 0.5, 0.25):
        for name in "abc":
            commands = scored(name, of=controller, hits=8)
        assert published(commands)
        assert {task.rate_factor for task in tasks(commands).values()} == {expected}


def test_a_task_keeps_the_factor_with_which_it_was_given() -> None:
    controller = federation(Async(), ByValidation())
    controller.schedule = plateau(1, versions=1)
    scored("a", of=controller, hits=8)
    scored("a", of=controller, hits=8)

    assert task_of(controller, "a").rate_factor == 0.5
    assert task_of(controller, "b").rate_factor == 1.0
