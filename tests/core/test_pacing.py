from __future__ import annotations

import pytest

from metis.core.pacing import (
    Async,
    Buffered,
    Pacing,
    SemiSync,
    Sync,
    choose,
    step_budgets,
    vacancies,
)
from metis.core.types import LearnerId
from tests.core.federation import profile

IDLE = {LearnerId(name) for name in "abcdefgh"}
A, B, C = LearnerId("a"), LearnerId("b"), LearnerId("c")


@pytest.mark.parametrize("pacing", [Sync(), SemiSync()])
def test_a_barrier_releases_all_at_once_when_nobody_is_at_work(pacing: Pacing) -> None:
    assert list(pacing.release(IDLE, 1, draw=1)) == []
    assert list(pacing.release(IDLE, 0, draw=1)) == sorted(IDLE)
    assert not pacing.publishes(num_folds=3, num_active=1)
    assert pacing.publishes(num_folds=3, num_active=0)


@pytest.mark.parametrize("pacing", [Async(), Buffered(5)])
def test_without_a_barrier_the_idle_never_wait(pacing: Pacing) -> None:
    assert list(pacing.release(IDLE, 100, draw=1)) == sorted(IDLE)


def test_alone_each_fold_makes_a_version_and_buffered_every_kth() -> None:
    assert Async().publishes(num_folds=1, num_active=9)
    assert [Buffered(3).publishes(num_folds, 9) for num_folds in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


def test_only_semisync_sets_a_time_budget() -> None:
    assert SemiSync(2.5).epochs_of_slowest == 2.5
    assert [p.epochs_of_slowest for p in (Sync(), Async(), Buffered())] == [None, None, None]


@pytest.mark.parametrize("pacing", [Sync(sample=3), SemiSync(sample=3)])
def test_a_sampled_round_has_the_size_asked_for(pacing: Pacing) -> None:
    group = pacing.release(IDLE, 0, draw=1)

    assert len(group) == len(set(group)) == 3
    assert set(group) <= IDLE


@pytest.mark.parametrize("pacing", [Async(sample=3), Buffered(sample=3)])
def test_without_a_barrier_a_sample_fills_the_places_left(pacing: Pacing) -> None:
    assert [len(pacing.release(IDLE, num_active, draw=1)) for num_active in (0, 2, 3, 7)] == [
        3,
        1,
        0,
        0,
    ]


def test_a_draw_is_sorted_repeatable_and_another_next_time() -> None:
    assert choose(IDLE, 4, seed=7, draw=1) == choose(IDLE, 4, seed=7, draw=1)
    assert choose(IDLE, 4, seed=7, draw=1) == sorted(choose(IDLE, 4, seed=7, draw=1))
    assert len({tuple(choose(IDLE, 4, seed=7, draw=draw)) for draw in range(50)}) > 20


def test_a_draw_does_not_depend_on_the_order_in_which_learners_became_idle() -> None:
    backwards = dict.fromkeys(sorted(IDLE, reverse=True)).keys()

    assert choose(backwards, 4, seed=7, draw=1) == choose(IDLE, 4, seed=7, draw=1)


def test_over_many_draws_everybody_has_the_same_chance() -> None:
    drawn = [learner for draw in range(4000) for learner in choose(IDLE, 2, seed=0, draw=draw)]

    # 1,000 expected for each of the eight; the standard deviation is 27.
    assert all(abs(drawn.count(learner) - 1000) < 140 for learner in IDLE)


def test_a_sample_larger_than_the_federation_is_all_of_it() -> None:
    assert choose(IDLE, 50, seed=0, draw=1) == sorted(IDLE)
    assert choose(set(), 50, seed=0, draw=1) == []


def test_vacancies_are_never_negative() -> None:
    assert [vacancies(3, 2), vacancies(3, 5), vacancies(None, 5)] == [1, 0, None]


# --- the SemiSync budget: lambda x the slowest epoch, in steps of one's own


def test_the_slowest_learner_does_lambda_epochs_and_the_others_as_many_steps_as_fit() -> None:
    fast, slow = profile("a", steps_per_epoch=10), profile("b", steps_per_epoch=4)
    seconds = {A: 0.5, B: 5.0}  # epochs of 5 s and 20 s

    assert step_budgets(1.0, [fast, slow], seconds)[slow.learner] == 4
    assert step_budgets(1.0, [fast, slow], seconds)[fast.learner] == 40
    assert step_budgets(2.0, [fast, slow], seconds)[fast.learner] == 80
    assert step_budgets(0.5, [fast, slow], seconds)[slow.learner] == 2


def test_the_slowest_epoch_is_of_the_largest_product_not_of_the_slowest_step() -> None:
    many, few = profile("a", steps_per_epoch=100), profile("b", steps_per_epoch=2)

    assert step_budgets(1.0, [many, few], {A: 1.0, B: 10.0})[few.learner] == 10


def test_only_the_round_s_own_roster_sets_the_pace() -> None:
    fast = profile("a", steps_per_epoch=10)

    assert step_budgets(1.0, [fast], {A: 0.5, B: 500.0})[fast.learner] == 10


def test_a_learner_never_measured_does_one_epoch() -> None:
    fast, new = profile("a", steps_per_epoch=10), profile("c", steps_per_epoch=7)

    assert step_budgets(3.0, [fast, new], {A: 0.5})[new.learner] == 7


def test_a_step_begun_is_a_step_done_but_rounding_adds_none() -> None:
    fast, slow = profile("a", steps_per_epoch=1), profile("b", steps_per_epoch=1)

    assert step_budgets(1.0, [fast, slow], {A: 0.3, B: 1.0})[fast.learner] == 4  # 3.33 steps
    assert (
        step_budgets(1.0, [fast, slow], {A: 0.1, B: 0.3})[fast.learner] == 3
    )  # 0.3/0.1 is 2.9999999999999996
    assert (
        step_budgets(3.0, [fast, slow], {A: 0.1, B: 0.1})[fast.learner] == 3
    )  # and 0.3/0.1 the other way


def test_everybody_does_at_least_one_step() -> None:
    only = profile("a", steps_per_epoch=2)

    assert step_budgets(0.001, [only], {A: 1.0})[only.learner] == 1
