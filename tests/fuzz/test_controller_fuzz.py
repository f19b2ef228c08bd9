"""The controller against random schedules, with an obvious account kept beside it.

`METIS_FUZZ_SCHEDULES` sets the number of schedules for each combination (docs/soak.md).
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import numpy as np
import pytest

from metis.core.community import CachedAverage, RoundAverage
from metis.core.controller import Controller
from metis.core.events import Arrived, Joined, Left, Publish
from metis.core.pacing import Async, Sync
from metis.core.types import LearnerId, Profile, Snapshot, Update, Vector, read_only
from metis.core.weighting import ByExamples, Equal
from tests.fuzz.account import relative_error
from tests.fuzz.combinations import COMBINATIONS, fuzz
from tests.fuzz.schedules import MODELS, SIZE
from tests.fuzz.slow_communities import SlowCache

NUM_SCHEDULES = int(os.environ.get("METIS_FUZZ_SCHEDULES", "2000"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_no_schedule_makes_the_controller_differ_from_an_obvious_account(name: str) -> None:
    try:
        tally = fuzz(name, NUM_SCHEDULES)
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)
    assert tally.folds > 2 * NUM_SCHEDULES
    if name in ("buffered-equal", "sync-examples-with-server-momentum"):  # which step far
        assert tally.rejected > NUM_SCHEDULES / 100


def test_the_order_of_arrival_cannot_change_a_bit_of_a_round() -> None:
    """Huge values cancel here, so that float64 sums of another order would differ widely."""
    rng = np.random.default_rng(1990)
    naive_sums_differ = 0
    for _ in range(200):
        huge = rng.normal(size=(3, SIZE)) * 1e16
        models = [read_only(w) for w in (*huge, *-huge, *rng.normal(size=(2, SIZE)))]
        orders = [rng.permutation(len(models)).tolist() for _ in range(5)]

        assert len({model_of_round(models, order) for order in orders}) == 1
        naive_sums_differ += len({sum(float(models[i][0]) for i in o) for o in orders}) > 1
    assert naive_sums_differ > 150


def model_of_round(models: Sequence[Vector], order: Sequence[int]) -> bytes:
    """Let learner i join and answer with model i, one after another in this order."""
    names = [LearnerId(f"learner-{i}") for i in range(len(models))]
    start = Snapshot(0, MODELS[0])
    controller = Controller(RoundAverage(), Equal(), Sync(), start, len(names))
    for i in order:
        controller.handle(Joined(Profile(names[i], 1, 1)))
    for i in order:
        number = controller.task_of[names[i]]
        controller.handle(Arrived(Update(names[i], number, models[i], 0, 1, 1)))
    assert controller.current.version == 1
    return controller.current.weights.tobytes()


def test_after_100_000_folds_the_cache_still_equals_the_full_recompute() -> None:
    """Never repaired, so that the running sum alone has to hold."""
    rng = random.Random(1990)
    community = CachedAverage(repair_every=10**9)
    start = Snapshot(0, read_only(np.zeros(SIZE)))
    controller = Controller(community, ByExamples(), Async(), start)
    names = [LearnerId(f"learner-{i:02d}") for i in range(20)]
    slow = SlowCache()
    for name in names:
        controller.handle(Joined(Profile(name, 1, 1)))

    num_folds = 0
    worst = 0.0
    while num_folds < 100_000:
        name = rng.choice(names)
        if rng.random() < 0.01 and len(controller.members) > 2:
            withdraw = rng.random() < 0.5
            controller.handle(Left(name, withdraw))
            if withdraw:
                slow.drop(name)
            continue
        if name not in controller.task_of:
            controller.handle(Joined(Profile(name, 1, 1)))
            continue
        task = controller.tasks[controller.task_of[name]]
        weights, examples = rng.choice(MODELS), rng.randint(1, 50_000)
        commands = controller.handle(
            Arrived(Update(name, task.number, weights, task.start.version, examples, 1))
        )
        assert isinstance(commands[0], Publish)
        slow.fold(name, float(examples), weights.tolist(), ())
        num_folds += 1
        if num_folds % 100 == 0:
            right = slow.model(())
            worst = max(worst, relative_error(controller.current.weights.tolist(), right))
    assert worst <= 1e-6
    assert controller.current.version == 100_000
