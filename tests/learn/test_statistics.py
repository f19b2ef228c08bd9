"""Batch-norm's running statistics that stay with their learner, against moving them by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from metis.core.local_run import Learners
from metis.core.stored import VALUES
from metis.core.types import ClassCounts, LearnerId, Vector, frozen
from metis.learn.cohort import Cohort
from metis.learn.flat import layout_of
from metis.learn.loop import Loop
from metis.learn.stack import Stack
from metis.learn.workbench import Workbench
from metis.store.pack import Names, read_packed, write_packed
from tests.learn.federation import (
    ENGINES,
    A,
    B,
    Federate,
    bench_of,
    go_on,
    loop,
    task,
    trained,
    training_of,
    with_batch_norm,
    with_convolutions,
    with_counting_batch_norm,
)

SHARED = training_of(batch_size=10)
LOCAL = replace(SHARED, batch_norm_statistics="local")
NORMED = pytest.mark.parametrize(
    "make", [with_batch_norm, with_convolutions, with_counting_batch_norm]
)


def stack(bench: Workbench) -> Cohort:
    return Cohort(bench, Stack(bench, 2))


def with_statistics_of(model: Vector, other: Vector, make: Callable[[], nn.Module]) -> Vector:
    """Return a model with another's running statistics, tensor by tensor."""
    mixed = model.copy()
    for tensor in layout_of(make()).tensors:
        if tensor.name.endswith(("running_mean", "running_var")):
            part = slice(tensor.offset, tensor.offset + tensor.size)
            mixed[part] = other[part]
    assert (mixed != model).any(), "a difference that could not be seen"
    return frozen(mixed)


def model(learners: Learners, start: Vector, **chosen: Any) -> Vector:
    return frozen(np.frombuffer(trained(learners, start, **chosen), dtype=np.float32))


def counts(learners: Learners, weights: Vector, judge: LearnerId) -> Any:
    (question,) = learners.ask(weights, [judge])
    found = learners.answer(question)
    assert isinstance(found, ClassCounts)
    return found.matrix.tolist()


def far(start: Vector, make: Callable[[], nn.Module]) -> Vector:
    """Return a community model whose statistics fit nobody: judges can tell by their counts."""
    moved = start.copy()
    for tensor in layout_of(make()).tensors:
        part = slice(tensor.offset, tensor.offset + tensor.size)
        if tensor.name.endswith("running_mean"):
            moved[part] = np.linspace(-2, 2, tensor.size)
        if tensor.name.endswith("running_var"):
            moved[part] = np.linspace(0.1, 9, tensor.size)
    return frozen(moved)


def test_a_layout_knows_where_running_statistics_lie() -> None:
    layout = layout_of(with_convolutions())
    names = [t.name for t in layout.tensors for _ in range(t.size)]

    found = {names[place] for place in layout.running_statistics()}

    assert found == {"1.running_mean", "1.running_var"}
    assert len(layout.running_statistics()) == 12
    assert layout_of(nn.Linear(2, 2)).running_statistics().size == 0


@NORMED
def test_a_task_begins_with_the_statistics_of_the_learners_last_one(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    local, start = federation(make, LOCAL)
    shared, _ = federation(make, SHARED)
    community = far(start, make)

    first = model(local, start)
    assert first.tobytes() == trained(shared, start), "the first begins with those it is sent"
    second = model(local, community, version=1)
    own = with_statistics_of(community, first, make)

    assert second.tobytes() == trained(shared, own, version=1)
    if make is not with_counting_batch_norm:  # which forgets what was there before its first step
        assert second.tobytes() != trained(shared, community, version=1)
    wanted = trained(shared, community, learner=B)
    assert trained(local, community, learner=B) == wanted, "another learner's are not its own"


@NORMED
def test_losses_are_those_of_the_received_model_with_own_statistics(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    local, start = federation(make, LOCAL)
    shared, _ = federation(make, SHARED)
    first, community = model(local, start), far(start, make)
    told = []
    for learners, received in (
        (local, community),
        (shared, with_statistics_of(community, first, make)),
    ):
        learners.begin(task(A, received, version=1), with_loss=True)
        told.append(go_on(learners, A, 5))
        learners.finish(A)

    assert told[0] == told[1]


@NORMED
def test_a_judge_scores_with_the_statistics_that_its_latest_task_began_with(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    local, start = federation(make, LOCAL)
    shared, _ = federation(make, SHARED)
    community = far(start, make)
    assert counts(local, community, A) == counts(shared, community, A)

    first = model(local, start)
    assert counts(local, community, A) == counts(shared, community, A), "its round is not over"
    local.begin(task(A, community, version=1), with_loss=False)

    own = with_statistics_of(community, first, make)
    assert counts(local, community, A) == counts(shared, own, A)
    assert counts(local, community, A) != counts(shared, community, A)
    assert counts(local, community, B) == counts(shared, community, B)
    answers = [local.answer(question) for question in local.ask(community, [B, A])]
    matrices = [found.matrix.tolist() for found in answers if isinstance(found, ClassCounts)]
    assert matrices == [counts(shared, community, B), counts(shared, own, A)]
    assert local.test(community) == shared.test(community), "the test is of the model as it is"
    before = counts(local, community, A)
    go_on(local, A, 5)
    local.finish(A)
    assert counts(local, community, A) == before


def test_a_judge_scores_with_what_it_had_when_it_was_asked(federation: Federate) -> None:
    local, start = federation(with_batch_norm, LOCAL)
    community = far(start, with_batch_norm)
    before = counts(local, community, A)

    (question,) = local.ask(community, [A])
    model(local, start)
    local.begin(task(A, start, version=1), with_loss=False)
    found = local.answer(question)

    assert isinstance(found, ClassCounts)
    assert found.matrix.tolist() == before != counts(local, community, A)


def test_an_abandoned_task_leaves_the_statistics_as_they_were(federation: Federate) -> None:
    plain, start = federation(with_batch_norm, LOCAL)
    disturbed, _ = federation(with_batch_norm, LOCAL)
    for learners in (plain, disturbed):
        trained(learners, start)
    disturbed.begin(task(A, far(start, with_batch_norm), version=7), with_loss=False)
    go_on(disturbed, A, 3)
    disturbed.abandon(A)

    wanted = trained(plain, start, version=1)
    assert trained(disturbed, start, version=1) == wanted


@pytest.mark.parametrize("after", ENGINES)
def test_statistics_outlive_a_crash_and_a_change_of_engine(
    after: str, federation: Federate, tmp_path: Path
) -> None:
    learners, start = federation(with_batch_norm, LOCAL)
    community = far(start, with_batch_norm)
    trained(learners, start)
    learners.begin(task(A, community, version=1), with_loss=False)
    (question,) = learners.ask(community, [A])
    go_on(learners, A, 2)
    write_packed(tmp_path / "state", learners.state(), Names(VALUES))
    ends = []
    bench, _ = bench_of(with_batch_norm, LOCAL)
    restored = ENGINES[after](bench)
    restored.restore(read_packed(tmp_path / "state", Names(VALUES)))
    for one in (learners, restored):
        go_on(one, A, 3, done=2)
        finished = one.finish(A).tobytes()
        found = one.answer(question)
        assert isinstance(found, ClassCounts)
        ends.append((finished, found.matrix.tolist(), counts(one, community, A)))
    restored.close()

    assert ends[0] == ends[1]
    assert ends[0][1] != counts(federation(with_batch_norm, SHARED)[0], community, A)


def test_a_stack_keeps_statistics_as_the_loop_does() -> None:
    ends = []
    for make_learners in (loop, stack):
        learners = make_learners(bench_of(with_batch_norm, LOCAL)[0])
        start = bench_of(with_batch_norm, LOCAL)[1]
        community = far(start, with_batch_norm)
        first = model(learners, start)
        second = model(learners, community, version=1)
        ends.append((first, second, counts(learners, community, A)))

    (first, second, judged), (same_first, same_second, same_judged) = ends
    np.testing.assert_allclose(same_first, first, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(same_second, second, rtol=1e-3, atol=1e-5)
    assert judged == same_judged


def test_a_sites_judge_has_the_statistics_of_its_trainer() -> None:
    (one, start), (other, _) = (bench_of(with_batch_norm, LOCAL) for _ in range(2))
    trainer = loop(one)
    judge = Cohort(other, Loop(other), trainer.statistics)
    community = far(start, with_batch_norm)
    before = counts(judge, community, A)
    trained(trainer, start)
    trained(trainer, start, version=1)

    assert counts(judge, community, A) == counts(trainer, community, A) != before

    later = loop(bench_of(with_batch_norm, LOCAL)[0])
    again = Cohort(other, Loop(other), later.statistics)
    later.restore(trainer.state())
    assert counts(again, community, A) == counts(trainer, community, A)
