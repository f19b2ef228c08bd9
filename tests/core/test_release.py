"""The last versions, in which held-out examples are trained on and nobody judges any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metis.core.community import CachedAverage
from metis.core.controller import Controller
from metis.core.events import Command, Joined, Left, Publish
from metis.core.pacing import Async, Pacing, SemiSync, Sync, step_budgets
from metis.core.types import LearnerId
from metis.core.weighting import ByValidation, Equal, Weighting
from tests.core.federation import (
    arrive,
    counted,
    evaluations,
    federation,
    judges,
    profile,
    published,
    score_all,
    task_of,
    tasks,
)


def released_from(
    version: int,
    pacing: Pacing | None = None,
    weighting: Weighting | None = None,
    members: str = "abc",
) -> Controller:
    """Return a federation whose tasks from this version on take all examples."""
    controller = federation(pacing or Sync(), weighting or ByValidation(), members="")
    controller.release_from = version
    controller.min_learners = len(members)
    for name in members:
        full = replace(profile(name), num_held_out=4, steps_per_full_epoch=7)
        controller.handle(Joined(full))
    return controller


def judged(controller: Controller, name: str, hits: int) -> list[Command]:
    """Answer; of ten examples each judge, and the learner itself, finds so many classified."""
    commands = arrive(controller, name, counts=counted(hits, 10 - hits))
    return commands + score_all(controller, evaluations(commands), counted(hits, 10 - hits))


def weights(commands: list[Command]) -> dict[str, float]:
    return {fold.learner: fold.weight for fold in published(commands).folds}


def test_in_the_last_rounds_nobody_judges_and_each_weight_stays_its_last_score() -> None:
    controller = released_from(2)
    for hits in (5, 8):
        assert not task_of(controller, "a").all_examples
        for name, more in (("a", 0), ("b", 1), ("c", 2)):
            commands = judged(controller, name, hits + more)
    assert weights(commands) == {"a": 0.8, "b": 0.9, "c": 1.0}

    for _ in range(2):
        assert all(task.all_examples for task in tasks(commands).values())
        for name in "abc":
            commands = arrive(controller, name, counts=counted(0, 10))  # which nobody wants
            assert judges(commands) == []
        assert weights(commands) == {"a": 0.8, "b": 0.9, "c": 1.0}
        assert {fold.score for fold in published(commands).folds} == {None}
        assert {fold.judges for fold in published(commands).folds} == {()}


def test_who_has_no_score_yet_weighs_as_much_as_the_others_on_average() -> None:
    controller = released_from(1, Async(), members="ab")
    judged(controller, "a", 4)
    judged(controller, "b", 8)
    assert controller.current.version == 2

    controller.handle(Joined(profile("c")))
    assert weights(arrive(controller, "c")) == {"c": pytest.approx(0.6)}
    assert weights(arrive(controller, "a")) == {"a": 0.4}


def test_without_any_score_all_weigh_the_same() -> None:
    controller = released_from(0, members="ab")
    arrive(controller, "a")

    assert weights(arrive(controller, "b")) == {"a": 1.0, "b": 1.0}


def test_equal_weights_stay_equal() -> None:
    controller = released_from(0, weighting=Equal(), members="a")

    assert weights(arrive(controller, "a")) == {"a": 1.0}


def test_who_began_before_is_judged_although_it_answers_late() -> None:
    controller = released_from(1, Async())
    judged(controller, "a", 5)
    assert controller.current.version == 1
    assert task_of(controller, "a").all_examples

    late = arrive(controller, "b", counts=counted(9, 1))
    assert judges(late) == ["a", "c"]
    commands = score_all(controller, evaluations(late), counted(9, 1))
    assert weights(commands) == {"b": 0.9}
    assert task_of(controller, "b").all_examples


def test_a_learner_that_left_keeps_its_score_for_when_it_comes_back() -> None:
    controller = released_from(1, Async(), members="ab")
    judged(controller, "a", 3)
    controller.handle(Left(LearnerId("a")))
    controller.handle(Joined(profile("a")))

    assert weights(arrive(controller, "a")) == {"a": 0.3}


def test_a_budget_in_epochs_of_the_slowest_counts_the_longer_epochs() -> None:
    controller = released_from(1, SemiSync(2.0))
    for name, seconds in (("a", 5.0), ("b", 10.0), ("c", 20.0)):
        asked = evaluations(
            arrive(controller, name, num_steps=5, seconds=seconds, counts=counted(5, 5))
        )
        commands = score_all(controller, asked, counted(5, 5))

    # Seven steps instead of five are an epoch now; the slowest does a step in four seconds.
    budgets = {name: task.max_steps for name, task in tasks(commands).items()}
    assert budgets == {"a": 56, "b": 28, "c": 14}
    roster = list(controller.profiles.values())
    assert budgets == step_budgets(2.0, roster, controller.step_seconds, all_examples=True)
    assert step_budgets(2.0, roster, controller.step_seconds) == {"a": 40, "b": 20, "c": 10}
    assert set(step_budgets(1.0, roster, {}, all_examples=True).values()) == {7}


def test_staleness_counts_the_steps_of_longer_epochs() -> None:
    controller = released_from(0, Async(), Equal(), members="ab")
    controller.community = CachedAverage()
    arrive(controller, "a", num_steps=7)
    commands = arrive(controller, "b", num_steps=14)

    (version,) = (command for command in commands if isinstance(command, Publish))
    assert version.folds[0].steps_behind == 7 + 14
    assert version.committed_steps == 21


def test_a_profile_knows_both_kinds_of_epoch() -> None:
    plain = profile("a", num_examples=10, steps_per_epoch=5)
    assert (plain.examples(True), plain.epoch_steps(True)) == (10, 5)
    full = replace(plain, num_held_out=3, steps_per_full_epoch=7)
    assert (full.examples(False), full.epoch_steps(False)) == (10, 5)
    assert (full.examples(True), full.epoch_steps(True)) == (13, 7)
