from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from metis.core.checks import fits
from metis.core.codec import Published
from metis.core.community import Buffer, CachedAverage, Community, Mixing, RoundAverage
from metis.core.controller import Controller
from metis.core.errors import ModelError
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    EvaluationExpired,
    Event,
    Failed,
    Joined,
    Left,
    Publish,
    Scored,
    TaskExpired,
    Train,
)
from metis.core.pacing import Async, Buffered, Pacing, SemiSync, Sync
from metis.core.server_step import Adaptive, FedAvgM, Stepped
from metis.core.types import (
    ClassCounts,
    ErrorSums,
    LearnerId,
    Snapshot,
    Update,
    Vector,
    dense,
    frozen,
)
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal
from tests.core.federation import (
    answer,
    arrive,
    counted,
    evaluations,
    federation,
    judges,
    profile,
    published,
    publishes_nothing,
    refusals,
    restarted,
    score_all,
    task_of,
    tasks,
    vector,
)

A, B, C = LearnerId("a"), LearnerId("b"), LearnerId("c")


def weights_of(controller: Controller) -> list[float]:
    return [float(w) for w in controller.current.weights]


# --- membership and the start


def test_nobody_trains_before_enough_learners_are_there() -> None:
    controller = Controller(CachedAverage(), Equal(), Async(), Snapshot(0, vector(0)), 2)

    assert controller.handle(Joined(profile("a"))) == []
    assert restarted(controller.handle(Joined(profile("b")))) == {"a", "b"}


def test_once_started_a_federation_goes_on_with_fewer_learners() -> None:
    controller = federation(Sync(), members="abc")
    controller.handle(Left(B))
    controller.handle(Left(C))

    assert restarted(arrive(controller, "a")) == {"a"}


def test_every_member_starts_from_version_zero_with_a_task_number_of_its_own() -> None:
    controller = federation(Sync(), members="abc")

    assert {task.number for task in controller.tasks.values()} == {1, 2, 3}
    assert {task.start.version for task in controller.tasks.values()} == {0}


# --- the barrier


def test_a_round_waits_for_all_its_learners() -> None:
    controller = federation(Sync(), members="abc")

    assert arrive(controller, "a") == []
    assert arrive(controller, "b") == []
    assert restarted(arrive(controller, "c")) == {"a", "b", "c"}
    assert controller.current.version == 1


def test_a_round_is_one_version_made_of_all_its_folds() -> None:
    controller = federation(Sync(), ByExamples(), members="ab")
    arrive(controller, "b", 1, 0, num_examples=10, num_steps=3)

    version = published(arrive(controller, "a", 5, 8, num_examples=30, num_steps=4))

    assert [(f.learner, f.weight, f.score) for f in version.folds] == [
        ("b", 10, None),
        ("a", 30, None),
    ]
    assert version.committed_steps == 7
    assert weights_of(controller) == [4, 6]


def test_the_first_round_counts_like_any_other() -> None:
    """MetisFL throws its first round away."""
    controller = federation(Sync(), members="ab")
    arrive(controller, "a", 2, 2)
    arrive(controller, "b", 4, 4)

    assert weights_of(controller) == [3, 3]


def test_example_counts_really_weigh() -> None:
    """In MetisFL they are silently uniform."""
    controller = federation(Sync(), ByExamples(), members="ab")
    arrive(controller, "a", 0, 0, num_examples=1)
    arrive(controller, "b", 4, 4, num_examples=3)

    assert weights_of(controller) == [3, 3]


def test_a_departure_can_complete_the_barrier() -> None:
    controller = federation(Sync(), members="abc")
    arrive(controller, "a")
    arrive(controller, "b")

    commands = controller.handle(Left(C))

    assert restarted(commands) == {"a", "b"}
    assert controller.current.version == 1


def test_a_dead_learner_does_not_stall_a_round_for_ever() -> None:
    """In MetisFL it does."""
    controller = federation(Sync(), members="abc")
    dead = task_of(controller, "c").number
    arrive(controller, "a")
    arrive(controller, "b")

    assert restarted(controller.handle(TaskExpired(dead))) == {"a", "b"}


def test_a_joiner_waits_for_the_next_round() -> None:
    controller = federation(Sync(), members="ab")

    assert controller.handle(Joined(profile("c"))) == []
    arrive(controller, "a")
    assert restarted(arrive(controller, "b")) == {"a", "b", "c"}


def test_a_round_that_nobody_answered_is_tried_again() -> None:
    controller = federation(Sync(), members="ab")
    controller.handle(Failed(A, task_of(controller, "a").number, "out of memory"))

    commands = controller.handle(Failed(B, task_of(controller, "b").number, "out of memory"))

    assert publishes_nothing(commands)
    assert {name: task.number for name, task in tasks(commands).items()} == {"a": 3, "b": 4}
    assert {task.start.version for task in tasks(commands).values()} == {0}


# --- each alone


def test_a_fold_makes_a_version_and_releases_its_learner_alone() -> None:
    controller = federation(Async(), members="abc")

    commands = arrive(controller, "b", 3, 6)

    assert [fold.learner for fold in published(commands).folds] == ["b"]
    assert restarted(commands) == {"b"}
    assert tasks(commands)["b"].start.version == 1
    assert weights_of(controller) == [3, 6]


def test_a_new_version_is_announced_before_anybody_is_sent_it() -> None:
    controller = federation(Async(), members="ab")

    assert [type(command) for command in arrive(controller, "a")] == [Publish, Train]


def test_a_learner_is_replaced_in_the_average_by_its_own_next_model() -> None:
    controller = federation(Async(), members="ab")
    arrive(controller, "a", 100, 100)
    arrive(controller, "b", 2, 2)
    arrive(controller, "a", 4, 4)

    assert weights_of(controller) == [3, 3]


def test_an_asynchronous_learner_starts_as_soon_as_it_joins() -> None:
    controller = federation(Async(), members="a")
    arrive(controller, "a")

    commands = controller.handle(Joined(profile("b")))

    assert tasks(commands)["b"].start.version == 1
    assert publishes_nothing(commands)


# --- FedBuff and FedAsync by hand


def test_only_every_kth_fold_makes_a_version_and_the_others_get_the_old_one_again() -> None:
    controller = federation(Buffered(2), ByStaleness(1.0), Buffer(), "abc")

    first = arrive(controller, "a")
    second = arrive(controller, "b")

    assert publishes_nothing(first)
    assert tasks(first)["a"].start.version == 0
    assert tasks(first)["a"].number == 4
    assert [fold.learner for fold in published(second).folds] == ["a", "b"]
    assert tasks(second)["b"].start.version == 1


def test_fedbuff_steps_by_the_mean_of_differences_discounted_by_staleness() -> None:
    controller = federation(Buffered(2), ByStaleness(1.0), Buffer(), "abc", vector(1, 1))
    arrive(controller, "a", 3, 1)  # + (2, 0), fresh
    arrive(controller, "b", 1, 5)  # + (0, 4), fresh
    assert weights_of(controller) == [2, 3]  # (1, 1) + 1/2 ((2, 0) + (0, 4))

    arrive(controller, "c", 3, 1)  # + (2, 0) from version 0
    version = published(arrive(controller, "a", 1, 3))  # + (0, 2) from version 0

    # 1/sqrt(1 + s), not NVFlare's 1/(1 + sqrt(s)), which would give 1/2 here.
    assert [fold.weight for fold in version.folds] == pytest.approx([1 / math.sqrt(2)] * 2)
    assert weights_of(controller) == pytest.approx([2 + 1 / math.sqrt(2), 3 + 1 / math.sqrt(2)])


def test_fedasync_takes_the_first_arrival_whole_and_mixes_in_the_next() -> None:
    controller = federation(Async(), ByStaleness(0.5, 0.5), Mixing(), "ab", vector(9, 9))
    arrive(controller, "a", 4, 0)
    assert weights_of(controller) == [4, 0]

    version = published(arrive(controller, "b", 0, 8))

    alpha = 0.5 / math.sqrt(2)  # one version behind
    assert version.folds[0].weight == pytest.approx(alpha)
    assert weights_of(controller) == pytest.approx([4 * (1 - alpha), 8 * alpha])


def test_a_stale_update_does_not_lower_the_mixing_rate_of_later_fresh_ones() -> None:
    """In Plato the rate decays for good."""
    controller = federation(Async(), ByStaleness(0.5, 0.5), Mixing(), "ab")
    for _ in range(8):
        arrive(controller, "a")
    stale = published(arrive(controller, "b"))
    fresh = published(arrive(controller, "b"))

    assert stale.folds[0].weight == pytest.approx(0.5 / 3)
    assert fresh.folds[0].weight == 0.5


# --- staleness by hand


def test_both_stalenesses_of_two_learners() -> None:
    controller = federation(Async(), members="ab")
    first = published(arrive(controller, "a", num_steps=5)).folds[0]
    second = published(arrive(controller, "a", num_steps=7)).folds[0]
    slow = published(arrive(controller, "b", num_steps=2)).folds[0]
    third = published(arrive(controller, "a", num_steps=1)).folds[0]

    # S_k = S_c(now) - S_c(when k received its model) + steps k has done since
    assert (first.versions_behind, first.steps_behind) == (0, 0 - 0 + 5)
    assert (second.versions_behind, second.steps_behind) == (0, 5 - 5 + 7)
    assert (slow.versions_behind, slow.steps_behind) == (2, 12 - 0 + 2)
    assert (third.versions_behind, third.steps_behind) == (1, 14 - 12 + 1)
    assert controller.committed_steps == 15


def test_folds_of_one_round_are_all_fresh_in_versions_but_not_in_steps() -> None:
    controller = federation(Sync(), members="ab")
    arrive(controller, "b", num_steps=3)
    folds = published(arrive(controller, "a", num_steps=4)).folds

    assert [(f.versions_behind, f.steps_behind) for f in folds] == [(0, 3), (0, 7)]


def test_folds_in_a_buffer_are_not_in_the_version_that_is_handed_out() -> None:
    controller = federation(Buffered(2), ByStaleness(1.0), Buffer(), "abc")
    first = tasks(arrive(controller, "a", num_steps=7))["a"]
    assert (first.start.version, first.committed_steps) == (0, 0)  # not 7: they are in no version
    assert controller.committed_steps == 7  # which a trigger sees, as in a round

    arrive(controller, "b", num_steps=5)
    behind = published(arrive_twice(controller)).folds

    # c and a started from version 0, which is 12 mini-batches behind version 1.
    assert [(f.learner, f.versions_behind, f.steps_behind) for f in behind] == [
        ("c", 1, 12 - 0 + 4),
        ("a", 1, 16 - 0 + 3),
    ]


def arrive_twice(controller: Controller) -> list[Command]:
    arrive(controller, "c", num_steps=4)
    return arrive(controller, "a", num_steps=3)


@pytest.mark.parametrize("pacing", [Sync(), SemiSync(), Async()])
def test_where_every_release_follows_a_version_nothing_committed_is_unpublished(
    pacing: Pacing,
) -> None:
    controller = federation(pacing, members="abc")
    for learner in "abcabcabc":
        commands = arrive(controller, learner, num_steps=ord(learner) - 96)
        for task in tasks(commands).values():
            assert task.committed_steps == controller.committed_steps


def test_a_fold_withdrawn_in_mid_round_was_never_committed() -> None:
    controller = federation(Sync(), members="abc")
    arrive(controller, "a", 9, 9, num_steps=7)
    arrive(controller, "b", 2, 2, num_steps=5)
    controller.handle(Left(A, withdraw=True))
    assert controller.committed_steps == 5

    version = published(arrive(controller, "c", 4, 4, num_steps=3))

    assert [(f.learner, f.steps_behind) for f in version.folds] == [("b", 5), ("c", 8)]
    assert version.committed_steps == 8
    assert task_of(controller, "b").committed_steps == 8


def test_what_is_withdrawn_from_earlier_versions_stays_committed() -> None:
    """Others have started from them."""
    controller = federation(Async(), members="ab")
    arrive(controller, "a", num_steps=7)
    controller.handle(Left(A, withdraw=True))

    version = published(arrive(controller, "b", num_steps=5))

    assert version.committed_steps == 12
    assert version.folds[0].steps_behind == 12


def test_no_staleness_is_negative_after_a_withdrawal() -> None:
    controller = federation(Buffered(3), ByStaleness(1.0), Buffer(), "abc")
    arrive(controller, "a", num_steps=7)
    started = task_of(controller, "a")
    arrive(controller, "b", num_steps=5)
    controller.handle(Left(A, withdraw=True))

    assert controller.committed_steps >= started.committed_steps
    assert controller.committed_steps >= task_of(controller, "b").committed_steps
    assert [fold.steps_behind for fold in controller.folds] == [5]


# --- SemiSync budget by hand


def test_in_the_first_round_everybody_does_one_epoch() -> None:
    controller = federation(SemiSync(2.0), members="ab")

    assert task_of(controller, "a").max_steps == 5


def test_then_everybody_gets_the_steps_it_can_do_in_lambda_times_the_slowest_epoch() -> None:
    controller = federation(SemiSync(2.0), members="abc")
    arrive(controller, "a", num_steps=5, seconds=5.0)  # 1 s a step, an epoch of 5 steps is 5 s
    arrive(controller, "b", num_steps=5, seconds=50.0)  # the slowest epoch: 50 s
    commands = arrive(controller, "c", num_steps=5, seconds=35.0)  # 7 s a step

    # 2 x 50 s; c would need 14.3 steps, the last one started counts.
    assert {n: t.max_steps for n, t in tasks(commands).items()} == {"a": 100, "b": 10, "c": 15}


def test_a_newcomer_to_semisync_is_measured_by_one_epoch() -> None:
    controller = federation(SemiSync(1.0), members="a")
    controller.handle(Joined(profile("b", steps_per_epoch=3)))

    commands = arrive(controller, "a", num_steps=5, seconds=5.0)

    assert {n: t.max_steps for n, t in tasks(commands).items()} == {"a": 5, "b": 3}


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0])
def test_a_training_time_that_cannot_be_is_not_taken_as_a_measurement(seconds: float) -> None:
    controller = federation(SemiSync(1.0), members="ab")
    arrive(controller, "a", num_steps=5, seconds=seconds)

    commands = arrive(controller, "b", num_steps=5, seconds=5.0)

    assert {n: t.max_steps for n, t in tasks(commands).items()} == {"a": 5, "b": 5}


# --- distributed validation weighting


def test_everybody_else_is_asked_to_judge_an_update() -> None:
    controller = federation(Async(), ByValidation(), members="abc")

    commands = arrive(controller, "b", 1, 2)

    assert judges(commands) == ["a", "c"]
    assert [type(command) for command in commands] == [Evaluate, Evaluate]
    assert all(e.learner == "b" and list(dense(e.weights)) == [1, 2] for e in evaluations(commands))


def test_the_weight_is_the_score_of_the_pooled_counts_its_own_included() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a", counts=counted(1, 3)))
    controller.handle(Scored(asked[1].evaluation, counted(2, 2)))

    (fold,) = published(controller.handle(Scored(asked[0].evaluation, counted(6, 6)))).folds

    assert fold.weight == fold.score == 9 / 20
    assert fold.judges == ("a", "b", "c")
    assert fold.missing == ()


def test_its_own_counts_can_be_left_out() -> None:
    controller = federation(Async(), ByValidation(judged_by="others"), members="abc")
    asked = evaluations(arrive(controller, "a", counts=counted(100, 0)))

    (fold,) = published(score_all(controller, asked, counted(1, 3))).folds

    assert fold.weight == 1 / 4
    assert fold.judges == ("b", "c")


def test_an_update_fully_scored_first_still_waits_for_the_head_of_the_queue() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    first = evaluations(arrive(controller, "a", 1, 1))
    second = evaluations(arrive(controller, "b", 2, 2))

    assert score_all(controller, second, counted(1, 1)) == []
    assert controller.handle(Scored(first[0].evaluation, counted(1, 1))) == []

    commands = controller.handle(Scored(first[1].evaluation, counted(1, 1)))
    versions = [c for c in commands if isinstance(c, Publish)]
    assert [[fold.learner for fold in v.folds] for v in versions] == [["a"], ["b"]]
    assert {n: t.start.version for n, t in tasks(commands).items()} == {"a": 1, "b": 2}


def test_judges_that_were_asked_and_did_not_answer_are_named() -> None:
    controller = federation(Async(), ByValidation(), members="abcd")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(EvaluationExpired(asked[2].evaluation))
    controller.handle(Left(LearnerId("b")))

    (fold,) = published(controller.handle(Scored(asked[1].evaluation, counted(1, 0)))).folds

    assert fold.judges == ("c",)
    assert fold.missing == ("b", "d")


def test_a_judge_without_validation_data_is_neither_counted_nor_missing() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(Scored(asked[0].evaluation, None))

    (fold,) = published(controller.handle(Scored(asked[1].evaluation, counted(1, 1)))).folds

    assert (fold.judges, fold.missing) == (("c",), ())


def test_a_judge_that_answers_late_or_twice_changes_nothing() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(Scored(asked[0].evaluation, counted(1, 0)))
    assert controller.handle(Scored(asked[0].evaluation, counted(0, 1))) == []
    controller.handle(EvaluationExpired(asked[1].evaluation))

    assert controller.handle(Scored(asked[1].evaluation, counted(0, 9))) == []
    assert controller.community.drop(A)  # it went in with weight 1


def test_when_all_judges_leave_the_update_is_refused_and_its_learner_given_the_current_model() -> (
    None
):
    controller = federation(Async(), ByValidation(), members="abc")
    arrive(controller, "a", 1, 1)
    controller.handle(Left(B))

    commands = controller.handle(Left(C))

    assert "no validation counts" in refusals(commands)["a"]
    assert publishes_nothing(commands)
    assert tasks(commands)["a"].start is controller.current
    assert weights_of(controller) == [0, 0]


def test_a_score_of_zero_takes_the_old_contribution_out_and_puts_nothing_in() -> None:
    controller = federation(Async(), ByValidation(), members="ab")
    score_all(controller, evaluations(arrive(controller, "a", 8, 8)), counted(1, 0))
    score_all(controller, evaluations(arrive(controller, "b", 2, 2)), counted(1, 0))
    assert weights_of(controller) == [5, 5]

    asked = evaluations(arrive(controller, "a", 9, 9))
    (fold,) = published(score_all(controller, asked, counted(0, 7))).folds

    assert fold.weight == 0
    assert weights_of(controller) == [2, 2]


def test_while_there_is_no_mass_at_all_the_last_model_stays() -> None:
    controller = federation(Async(), ByValidation(), members="ab")
    score_all(controller, evaluations(arrive(controller, "a", 8, 8)), counted(1, 0))

    asked = evaluations(arrive(controller, "a", 9, 9))
    commands = score_all(controller, asked, counted(0, 7))

    assert published(commands).snapshot.version == 2
    assert restarted(commands) == {"a"}
    assert weights_of(controller) == [8, 8]


def test_a_round_of_zero_scores_keeps_the_last_model() -> None:
    controller = federation(Sync(), ByValidation(), members="ab", start=vector(7, 7))
    score_all(controller, evaluations(arrive(controller, "a", 1, 1)), counted(0, 1))
    commands = score_all(controller, evaluations(arrive(controller, "b", 2, 2)), counted(0, 1))

    assert published(commands).snapshot.version == 1
    assert weights_of(controller) == [7, 7]


def test_counts_of_another_number_of_classes_are_not_pooled() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(Scored(asked[0].evaluation, counted(1, 3)))
    other = ClassCounts(np.eye(3, dtype=np.int64))

    (fold,) = published(controller.handle(Scored(asked[1].evaluation, other))).folds

    assert (fold.weight, fold.judges, fold.missing) == (0.25, ("b",), ("c",))


def test_a_learner_cannot_silence_its_judges_with_odd_counts_of_its_own() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    boast = ClassCounts(np.array([[1]], np.int64))
    asked = evaluations(arrive(controller, "a", counts=boast))

    (fold,) = published(score_all(controller, asked, counted(1, 3))).folds

    assert (fold.weight, fold.judges, fold.missing) == (0.25, ("b", "c"), ("a",))


def test_counts_that_are_no_confusion_matrix_are_left_out() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(Scored(asked[0].evaluation, ClassCounts(np.ones((2, 3), np.int64))))

    (fold,) = published(controller.handle(Scored(asked[1].evaluation, counted(1, 3)))).folds

    assert (fold.weight, fold.judges, fold.missing) == (0.25, ("c",), ("b",))


# --- models exchanged: 1 up, 1 down, and one for every judge


def models_exchanged(commands: list[Command]) -> int:
    return 1 + sum(isinstance(command, Evaluate | Train) for command in commands)


def test_a_request_exchanges_two_models_without_validation_weighting() -> None:
    controller = federation(Async(), members="abcdefghij")

    assert models_exchanged(arrive(controller, "a")) == 2


@pytest.mark.parametrize("judged_by", ["everybody", "others"])
def test_a_request_exchanges_eleven_models_with_validation_weighting_of_ten(judged_by: str) -> None:
    weighting = ByValidation(judged_by="everybody" if judged_by == "everybody" else "others")
    controller = federation(Async(), weighting, members="abcdefghij")
    asked = arrive(controller, "a", counts=counted(1, 1))

    done = score_all(controller, evaluations(asked), counted(1, 1))

    assert models_exchanged(asked + done) == 11


def test_a_round_of_ten_exchanges_eleven_models_for_each_request_too() -> None:
    controller = federation(Sync(), ByValidation(), members="abcdefghij")
    commands: list[Command] = []
    for name in "abcdefghij":
        asked = arrive(controller, name)
        commands += asked + score_all(controller, evaluations(asked), counted(1, 1))

    assert models_exchanged(commands) - 1 + 10 == 10 * 11


# --- answers that are not taken


def test_a_duplicate_answer_changes_nothing() -> None:
    controller = federation(Sync(), members="ab")
    update = answer(task_of(controller, "a"), 2, 2)
    controller.handle(Arrived(update))

    commands = controller.handle(Arrived(update))

    assert list(refusals(commands)) == ["a"]
    assert len(commands) == 1
    arrive(controller, "b", 4, 4)
    assert weights_of(controller) == [3, 3]
    assert list(refusals(controller.handle(Arrived(update)))) == ["a"]
    assert set(controller.task_of) == {"a", "b"}


def test_a_duplicate_of_a_queued_answer_is_not_judged_twice() -> None:
    controller = federation(Async(), ByValidation(), members="ab")
    update = answer(task_of(controller, "a"))
    controller.handle(Arrived(update))

    assert evaluations(controller.handle(Arrived(update))) == []


def test_an_answer_to_somebody_elses_task_is_refused_and_the_task_stays_open() -> None:
    controller = federation(Sync(), members="ab")
    task = task_of(controller, "b")

    commands = controller.handle(Arrived(Update(A, task.number, vector(1, 1), 0, 1, 1)))

    assert list(refusals(commands)) == ["a"]
    assert set(controller.task_of) == {"a", "b"}


def test_an_answer_of_a_stranger_is_refused() -> None:
    controller = federation(Async(), members="ab")

    commands = controller.handle(Arrived(Update(LearnerId("eve"), 1, vector(1, 1), 0, 1, 1)))

    assert list(refusals(commands)) == ["eve"]
    assert len(commands) == 1
    assert controller.members == {"a", "b"}


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (Update(A, 1, vector(1, 2, 3), 0, 1, 1), r"shape \(3,\), the federation's has \(2,\)"),
        (Update(A, 1, vector(1, math.nan), 0, 1, 1), "not finite"),
        (Update(A, 1, vector(math.inf, 1), 0, 1, 1), "not finite"),
        (Update(A, 1, vector(1, 1), 5, 1, 1), "version 5, not 0"),
        (Update(A, 1, vector(1, 1), 0, 1, 0), "0 steps on 1 examples"),
        (Update(A, 1, vector(1, 1), 0, 0, 1), "1 steps on 0 examples"),
    ],
)
def test_an_unfit_answer_is_refused_with_its_reason_and_the_learner_starts_afresh(
    update: Update, reason: str
) -> None:
    controller = federation(Async(), members="ab")

    commands = controller.handle(Arrived(update))

    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refusals(commands)["a"])
    assert publishes_nothing(commands)
    assert tasks(commands)["a"].number == 3
    assert weights_of(controller) == [0, 0]


def test_an_unfit_answer_to_a_round_does_not_hold_the_others_up() -> None:
    controller = federation(Sync(), members="ab")
    controller.handle(Arrived(answer(task_of(controller, "a"), 1, math.nan)))

    commands = arrive(controller, "b", 4, 4)

    assert [fold.learner for fold in published(commands).folds] == ["b"]
    assert restarted(commands) == {"a", "b"}
    assert weights_of(controller) == [4, 4]


def test_a_learner_that_cannot_answer_says_why_and_the_reason_is_passed_on() -> None:
    """Flower swallows errors on a learner."""
    controller = federation(Async(), members="ab")

    commands = controller.handle(Failed(A, 1, "training loss is nan"))

    assert refusals(commands) == {"a": "training loss is nan"}
    assert tasks(commands)["a"].number == 3


def test_a_failure_of_a_task_that_is_not_open_changes_nothing() -> None:
    controller = federation(Async(), members="ab")

    assert len(controller.handle(Failed(A, 2, "not mine"))) == 1
    assert set(controller.task_of) == {"a", "b"}


# --- leases


def test_a_late_answer_is_refused_and_its_learner_a_member_again_with_fresh_work() -> None:
    controller = federation(Async(), members="ab")
    late = answer(task_of(controller, "a"), 1, 1)
    assert controller.handle(TaskExpired(late.task)) == []
    assert controller.members == {"b"}
    arrive(controller, "b", 4, 4)

    commands = controller.handle(Arrived(late))

    assert refusals(commands)["a"].startswith("late")
    assert controller.members == {"a", "b"}
    assert (tasks(commands)["a"].number, tasks(commands)["a"].start.version) == (4, 1)
    assert weights_of(controller) == [4, 4]


def test_a_late_learner_waits_for_the_next_round() -> None:
    controller = federation(Sync(), members="abc")
    late = answer(task_of(controller, "a"), 1, 1)
    controller.handle(TaskExpired(late.task))

    assert restarted(controller.handle(Arrived(late))) == set()
    arrive(controller, "b")
    assert restarted(arrive(controller, "c")) == {"a", "b", "c"}


def test_a_late_failure_is_a_sign_of_life_too() -> None:
    controller = federation(Async(), members="ab")
    controller.handle(TaskExpired(1))

    assert restarted(controller.handle(Failed(A, 1, "disk full"))) == {"a"}


def test_a_lease_that_runs_out_after_the_answer_changes_nothing() -> None:
    controller = federation(Async(), members="ab")
    arrive(controller, "a")

    assert controller.handle(TaskExpired(1)) == []
    assert controller.members == {"a", "b"}


def test_a_lost_learner_is_not_asked_to_judge() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    controller.handle(TaskExpired(task_of(controller, "c").number))

    assert judges(arrive(controller, "a")) == ["b"]


def test_when_everybody_is_lost_the_first_one_back_goes_on() -> None:
    controller = federation(Sync(), members="ab")
    controller.handle(TaskExpired(1))
    controller.handle(TaskExpired(2))

    assert restarted(controller.handle(Joined(profile("b")))) == {"b"}


# --- coming back


def test_a_rejoining_learner_is_sent_the_same_task_again() -> None:
    controller = federation(Async(), members="ab")
    task = task_of(controller, "a")

    assert controller.handle(Joined(profile("a"))) == [Train(task)]


def test_a_rejoining_judge_is_sent_its_open_evaluations_again() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = [e for e in evaluations(arrive(controller, "a")) if e.judge == "b"]

    again = controller.handle(Joined(profile("b")))

    assert [e.evaluation for e in evaluations(again)] == [e.evaluation for e in asked]
    assert restarted(again) == {"b"}


def test_a_lost_judge_that_rejoins_is_sent_its_open_evaluations_again() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = [e for e in evaluations(arrive(controller, "a")) if e.judge == "b"]
    controller.handle(TaskExpired(task_of(controller, "b").number))

    again = controller.handle(Joined(profile("b")))

    assert [e.evaluation for e in evaluations(again)] == [e.evaluation for e in asked]
    assert tasks(again)["b"].number == 4


def test_a_learner_that_left_and_came_back_gets_a_new_task_number() -> None:
    controller = federation(Async(), members="ab")
    old = answer(task_of(controller, "a"), 9, 9)
    controller.handle(Left(A))

    assert tasks(controller.handle(Joined(profile("a"))))["a"].number == 3
    assert list(refusals(controller.handle(Arrived(old)))) == ["a"]


def test_a_learner_that_comes_back_while_its_update_is_queued_is_not_released_twice() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a"))
    controller.handle(Left(A))

    assert restarted(controller.handle(Joined(profile("a")))) == set()
    assert restarted(score_all(controller, asked, counted(1, 0))) == {"a"}


def test_a_learner_that_left_a_round_and_came_back_does_not_judge_in_it() -> None:
    controller = federation(Sync(), ByValidation(), members="abc")
    controller.handle(Left(C))
    controller.handle(Joined(profile("c")))

    assert judges(arrive(controller, "a")) == ["b"]


def test_a_learner_whose_lease_ran_out_does_not_judge_in_that_round() -> None:
    controller = federation(Sync(), ByValidation(), members="abc")
    controller.handle(TaskExpired(task_of(controller, "c").number))
    controller.handle(Joined(profile("c")))

    assert judges(arrive(controller, "a")) == ["b"]


# --- going


def test_the_queued_update_of_a_learner_that_left_counts_but_it_is_not_released() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a", 3, 3))
    controller.handle(Left(A))

    commands = score_all(controller, asked, counted(1, 0))

    assert commands == []
    assert controller.current.version == 0


def test_a_version_waits_until_there_is_somebody_to_hand_it_to() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a", 3, 3))
    controller.handle(Left(A))
    score_all(controller, asked, counted(1, 0))

    commands = controller.handle(Joined(profile("d")))

    assert [fold.learner for fold in published(commands).folds] == ["a"]
    assert tasks(commands)["d"].start.version == 1
    assert weights_of(controller) == [3, 3]


def test_folds_nobody_could_be_given_join_the_next_version() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a", 3, 3))
    controller.handle(Left(A))
    score_all(controller, asked, counted(1, 0))

    version = published(
        score_all(controller, evaluations(arrive(controller, "b", 5, 5)), counted(1, 0))
    )

    assert [fold.learner for fold in version.folds] == ["a", "b"]
    assert version.snapshot.version == 1
    assert weights_of(controller) == [4, 4]


def test_a_disconnected_learner_keeps_its_contribution() -> None:
    controller = federation(Async(), members="ab")
    arrive(controller, "a", 2, 2)
    controller.handle(Left(A))
    arrive(controller, "b", 4, 4)

    assert weights_of(controller) == [3, 3]


# --- withdrawing


def test_withdrawing_from_an_open_round_takes_the_model_out_of_it() -> None:
    controller = federation(Sync(), members="ab")
    arrive(controller, "a", 2, 2)
    controller.handle(Left(A, withdraw=True))

    version = published(arrive(controller, "b", 4, 4))

    assert [fold.learner for fold in version.folds] == ["b"]
    assert weights_of(controller) == [4, 4]


def test_when_the_only_one_that_answered_withdraws_the_round_is_tried_again() -> None:
    controller = federation(Sync(), members="ab")
    arrive(controller, "a", 2, 2)
    controller.handle(Left(A, withdraw=True))

    commands = controller.handle(Failed(B, 2, "no power"))

    assert publishes_nothing(commands)
    assert restarted(commands) == {"b"}


def test_withdrawing_from_the_cache_subtracts_exactly() -> None:
    controller = federation(Async(), members="ab")
    arrive(controller, "a", 700, -1e-3)
    arrive(controller, "b", 5, 6)
    controller.handle(Left(A, withdraw=True))

    arrive(controller, "b", 0.1, 0.3)

    assert controller.current.weights.tobytes() == vector(0.1, 0.3).tobytes()


def test_withdrawing_takes_back_what_is_still_queued() -> None:
    controller = federation(Async(), ByValidation(), members="abc")
    asked = evaluations(arrive(controller, "a", 9, 9))
    behind = evaluations(arrive(controller, "b", 1, 1))
    score_all(controller, behind, counted(1, 0))

    commands = controller.handle(Left(A, withdraw=True))

    assert "withdrawn" in refusals(commands)["a"]
    assert [fold.learner for fold in published(commands).folds] == ["b"]
    assert score_all(controller, asked, counted(1, 0)) == []
    assert weights_of(controller) == [1, 1]


def test_what_was_mixed_in_cannot_be_withdrawn() -> None:
    controller = federation(Async(), ByStaleness(0.5, 0.0), Mixing(), "ab")
    arrive(controller, "a", 4, 4)
    controller.handle(Left(A, withdraw=True))
    arrive(controller, "b", 0, 0)

    assert weights_of(controller) == [2, 2]


def test_withdrawing_from_a_buffer_takes_out_what_of_it_is_still_there() -> None:
    controller = federation(Buffered(2), ByStaleness(1.0), Buffer(), "abc")
    arrive(controller, "a", 9, 9)
    controller.handle(Left(A, withdraw=True))
    assert publishes_nothing(arrive(controller, "b", 2, 0))

    version = published(arrive(controller, "c", 0, 2))

    assert [fold.learner for fold in version.folds] == ["b", "c"]
    assert weights_of(controller) == [1, 1]


# --- a version that would be no model

#: The largest float32 is 3.4e38. Name -> pacing, and a community that a finite update can carry
#: over its edge.
OVERFLOWING: dict[str, tuple[Pacing, Callable[[], Community]]] = {
    "round": (Sync(), lambda: Published(RoundAverage(), Narrow())),
    "cache": (Async(), lambda: Published(CachedAverage(), Narrow())),
    "mixing": (Async(), lambda: Published(Mixing(), Narrow())),
    "buffer": (Buffered(2), lambda: Buffer(server_rate=4.0)),
    "momentum": (Sync(), lambda: Stepped(RoundAverage(), FedAvgM(rate=2.0))),
    "adam": (Sync(), lambda: Stepped(RoundAverage(), Adaptive("adam", rate=1e38))),
    "stepped cache": (Async(), lambda: Stepped(CachedAverage(), FedAvgM(rate=3.0))),
}


class Narrow:
    """A codec whose packets hold changes up to 1e38."""

    needs_base = True

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        if np.abs(weights).max() > 1e38:
            raise ModelError("a weight is larger than 1e38")
        return weights.tobytes(), None

    def decode(self, packet: bytes | memoryview, base: Vector) -> Vector:
        return frozen(np.frombuffer(packet, np.float32))


def until_refused(controller: Controller) -> tuple[Snapshot, int, list[Command]]:
    """Send huge updates until some are refused; return what was current before, and S_c."""
    for turn in range(20):
        good, steps = controller.current, controller.published_steps
        refused = arrive(controller, "ab"[turn % 2], 3e38, 3e38, num_steps=7)
        if refusals(refused):
            return good, steps, refused
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("name", OVERFLOWING)
def test_folds_that_would_make_no_model_are_refused_and_the_last_good_one_stays(name: str) -> None:
    pacing, community = OVERFLOWING[name]
    controller = federation(pacing, ByStaleness(0.5, 0.0), community(), "ab", vector(0, 0))
    for learner in ("a", "b"):
        arrive(controller, learner, 1e-3, 0, num_steps=5)
    assert controller.current.version > 0

    good, steps, refused = until_refused(controller)

    reasons = set(refusals(refused).values())
    assert len(reasons) == 1
    assert re.search("would not be finite|would fit no packet.*larger than 1e38", reasons.pop())
    assert publishes_nothing(refused)
    assert controller.current is good
    assert controller.committed_steps == steps
    assert {task.start.version for task in tasks(refused).values()} == {good.version}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_after_a_refused_version_good_updates_make_versions_again(name: str) -> None:
    pacing, community = OVERFLOWING[name]
    controller = federation(pacing, ByStaleness(0.5, 0.0), community(), "ab", vector(0, 0))
    until_refused(controller)
    before = controller.current.version

    for learner in [name for name in ("b", "a") if name in controller.task_of] * 2:
        assert not refusals(arrive(controller, learner, 2e-3, 0.0))

    assert controller.current.version > before
    assert np.isfinite(controller.current.weights).all()


def test_what_a_refused_model_replaced_in_the_cache_is_back() -> None:
    controller = federation(Async(), ByExamples(), Published(CachedAverage(), Narrow()), "abc")
    good = federation(Async(), ByExamples(), Published(CachedAverage(), Narrow()), "abc")
    for each in (controller, good):
        arrive(each, "a", 0.1, 3, num_examples=30)
        arrive(each, "b", 0.7, 5, num_examples=20)
    arrive(controller, "a", 3e38, 0, num_examples=10_000)
    arrive(controller, "c", -3e38, 0, num_examples=10_000)

    assert controller.current.weights.tobytes() == good.current.weights.tobytes()
    for each in (controller, good):
        arrive(each, "b", 0.3, 1, num_examples=7)
    assert controller.current.weights.tobytes() == good.current.weights.tobytes()
    assert weights_of(controller) == pytest.approx([(0.1 * 30 + 0.3 * 7) / 37, (90 + 7) / 37])


def test_what_was_withdrawn_does_not_come_back_with_a_refused_version() -> None:
    controller = federation(Async(), Equal(), Published(CachedAverage(), Narrow()), "abc")
    arrive(controller, "a", 5, 5)
    arrive(controller, "b", 1, 1)
    controller.handle(Left(A, withdraw=True))
    arrive(controller, "b", 3e38, 0)
    assert weights_of(controller) == [3, 3]  # a version was made of nothing since

    arrive(controller, "b", 2, 2)

    assert weights_of(controller) == [2, 2]


def test_the_fold_of_a_learner_that_has_left_is_refused_with_its_version() -> None:
    controller = federation(Async(), ByValidation(), Published(CachedAverage(), Narrow()), "ab")
    asked = evaluations(arrive(controller, "a", 3e38, 0, counts=counted(1, 1)))
    controller.handle(Left(A))
    controller.handle(Left(B))
    assert score_all(controller, asked, None) == []
    assert [fold.learner for fold in controller.folds] == ["a"]

    commands = controller.handle(Joined(profile("b")))

    assert set(refusals(commands)) == {"a"}
    assert tasks(commands)["b"].start.version == 0
    assert controller.folds == []


@pytest.mark.parametrize("name", ["round", "cache", "mixing"])
def test_the_mean_of_the_largest_models_is_a_model(name: str) -> None:
    pacing, community = OVERFLOWING[name]
    inner = community()
    assert isinstance(inner, Published)
    controller = federation(pacing, ByStaleness(0.3, 0.1), inner.community, "abc")
    largest = float(np.finfo(np.float32).max)
    for learner in "abcabc":
        commands = arrive(controller, learner, largest, -largest)
        assert not refusals(commands)

    assert weights_of(controller) == [largest, -largest]


def test_a_server_optimizer_begins_again_after_a_refused_version() -> None:
    step = FedAvgM()
    controller = federation(Sync(), Equal(), Stepped(RoundAverage(), step), "a")
    arrive(controller, "a", 3e38, 0)
    refused = arrive(controller, "a", 3e38, 0)  # and the momentum is 2.7e38

    assert set(refusals(refused)) == {"a"}
    assert step.velocity is None
    assert weights_of(controller) == pytest.approx([3e38, 0])
    arrive(controller, "a", 2e38, 1)
    assert weights_of(controller) == pytest.approx([2e38, 1])


# --- sampling


def names_of(count: int) -> list[str]:
    return [f"writer-{number:04d}" for number in range(count)]


def test_fifty_of_3400_are_drawn_for_a_round_and_judge_one_another() -> None:
    controller = federation(Sync(sample=50, seed=1), ByValidation(), members=names_of(3400))
    first = set(controller.task_of)
    assert len(first) == 50

    commands: list[Command] = []
    for name in sorted(first):
        asked = arrive(controller, name)
        assert {e.judge for e in evaluations(asked)} == first - {name}
        commands = score_all(controller, evaluations(asked), counted(1, 1))

    second = restarted(commands)
    assert len(second) == 50
    assert second != first


def test_a_draw_is_repeatable_and_differs_with_the_seed() -> None:
    def roster(seed: int) -> set[LearnerId]:
        return set(federation(Sync(sample=5, seed=seed), members=names_of(40)).task_of)

    assert roster(1) == roster(1)
    assert roster(1) != roster(2)


def test_a_round_tried_again_is_drawn_anew() -> None:
    controller = federation(Sync(sample=2, seed=3), members=names_of(40))
    first = dict(controller.task_of)
    commands: list[Command] = []
    for learner, number in first.items():
        commands += controller.handle(Failed(learner, number, "offline"))

    assert len(restarted(commands)) == 2
    assert restarted(commands) != set(first)


def test_asynchronous_sampling_limits_how_many_are_at_work_at_once() -> None:
    controller = federation(Async(sample=2), members="abcde")
    at_work = set(controller.task_of)
    assert len(at_work) == 2

    commands = arrive(controller, sorted(at_work)[0])

    assert len(restarted(commands)) == 1
    assert len(controller.tasks) == 2


def test_asynchronous_sampling_asks_those_at_work_to_judge() -> None:
    controller = federation(Async(sample=3), ByValidation(), members="abcdefgh")
    first, *others = sorted(controller.task_of)

    assert judges(arrive(controller, first)) == others


def test_a_sampled_learner_that_left_and_came_back_idle_does_not_judge() -> None:
    controller = federation(Async(sample=2, seed=1), ByValidation(), members="abcdefgh")
    first, second = sorted(controller.task_of)
    (stand_in,) = restarted(controller.handle(Left(second)))
    controller.handle(Joined(profile(second)))

    assert judges(arrive(controller, first)) == [stand_in]


# --- repeatable


def test_the_same_events_give_the_same_bytes() -> None:
    def run() -> list[bytes]:
        controller = federation(Async(sample=2, seed=9), ByExamples(), members="abcd")
        models = []
        for step in range(20):
            learner = sorted(controller.task_of)[step % 2]
            commands = arrive(
                controller, learner, 0.1 * step, 1 / (step + 1), num_examples=step + 1
            )
            models.append(published(commands).snapshot.weights.tobytes())
        return models

    assert run() == run()


def test_a_published_model_cannot_be_written_to() -> None:
    controller = federation(Sync(), members="a")
    arrive(controller, "a", 1, 1)

    with pytest.raises(ValueError, match="read-only"):
        controller.current.weights[0] = 5


def test_events_about_nothing_known_change_nothing() -> None:
    controller = federation(Async(), ByValidation(), members="ab")
    events: list[Event] = [
        Left(LearnerId("eve")),
        Left(LearnerId("eve"), withdraw=True),
        Scored(77, counted(1, 1)),
        EvaluationExpired(77),
        TaskExpired(77),
    ]

    assert [controller.handle(event) for event in events] == [[]] * 5


def test_an_odd_first_judge_cannot_shut_the_others_out() -> None:
    controller = federation(
        pacing=Async(), weighting=ByValidation(), community=CachedAverage(), members="abc"
    )
    controller.num_classes = 2
    commands = arrive(controller, "a")
    first, second = [c.evaluation for c in commands if isinstance(c, Evaluate)]

    controller.handle(Scored(first, ErrorSums(1, 0.0, 0.0, 0.0, 0.0)))
    commands = controller.handle(Scored(second, ClassCounts(np.array([[1, 1], [0, 2]]))))

    (fold,) = next(c for c in commands if isinstance(c, Publish)).folds
    assert fold.missing == ("b",)
    assert fold.weight == 0.75


def test_negative_counts_are_not_taken() -> None:
    assert not fits(ClassCounts(np.array([[1, -1], [0, 2]])), 2, [])
