from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from metis.core.community import CachedAverage, RoundAverage
from metis.core.server_step import FedAdam, FedAvgM, ServerStep, Stepped
from metis.core.types import LearnerId, Spans, Update, Vector, frozen


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def update(learner: str, weights: Vector) -> Update:
    return Update(LearnerId(learner), 0, weights, base_version=0, num_examples=1, num_steps=1)


def stepped(step: ServerStep, current: Vector, average: Vector, buffers: Spans = ()) -> Vector:
    """Return what a community makes of one learner's model."""
    community = Stepped(RoundAverage(), step, buffers)
    community.fold(update("a", average), 1.0, current)
    return community.model(current)


def test_without_momentum_the_average_is_the_next_model() -> None:
    step = FedAvgM(rate=1.0, momentum=0.0)
    for average in (vector(1, 2), vector(-3, 4)):
        np.testing.assert_array_equal(stepped(step, vector(5, 5), average), average)


def test_server_momentum_goes_on_in_the_old_direction() -> None:
    step = FedAvgM(rate=0.5, momentum=0.5)

    np.testing.assert_array_equal(stepped(step, vector(0), vector(4)), [2])  # m = 4
    np.testing.assert_array_equal(stepped(step, vector(2), vector(4)), [4])  # m = 0.5 * 4 + 2
    np.testing.assert_array_equal(stepped(step, vector(4), vector(4)), [5])  # m = 0.5 * 4


def test_server_adam_by_hand_without_bias_correction() -> None:
    step = FedAdam(rate=0.1, beta1=0.9, beta2=0.99, tau=1e-3)

    after = stepped(step, vector(1.0), vector(3.0))
    first, second = 0.1 * 2.0, 0.99 * 1e-6 + 0.01 * 4.0
    assert after[0] == np.float32(1.0 + 0.1 * first / (math.sqrt(second) + 1e-3))

    again = stepped(step, vector(1.0), vector(0.0))
    first, second = 0.9 * first - 0.1, 0.99 * second + 0.01
    assert again[0] == np.float32(1.0 + 0.1 * first / (math.sqrt(second) + 1e-3))


def test_a_federation_that_stands_still_is_not_moved_by_server_adam() -> None:
    np.testing.assert_array_equal(stepped(FedAdam(), vector(1, -2), vector(1, -2)), [1, -2])


STEPS = [FedAvgM, FedAdam]


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_writes_to_neither_of_its_models(kind: Callable[[], ServerStep]) -> None:
    current, average, step = vector(1, 2), vector(3, 4), kind()
    for _ in range(3):
        after = stepped(step, current, average)
        assert after.dtype == np.float32
        assert not after.flags.writeable

    np.testing.assert_array_equal(current, [1, 2])
    np.testing.assert_array_equal(average, [3, 4])


@pytest.mark.parametrize("kind", STEPS)
def test_a_buffer_is_averaged_and_never_stepped(kind: Callable[[], ServerStep]) -> None:
    """A running variance that falls round by round would be carried below zero by the momentum."""
    step, current = kind(), vector(8, 8, 8)
    for variance in (1.0, 0.5, 0.25, 0.25, 0.125):
        average = vector(1, variance, 3)
        current = stepped(step, current, average, buffers=((1, 2),))
        assert current[1] == variance


@pytest.mark.parametrize("kind", STEPS)
def test_buffers_do_not_change_how_the_rest_is_stepped(kind: Callable[[], ServerStep]) -> None:
    one, other, plain, mixed = kind(), kind(), vector(1, 2), vector(9, 1, 9, 2, 9)
    for average in (vector(4, -1), vector(5, 6), vector(5, 6)):
        plain = stepped(one, plain, average)
        around = vector(0, average[0], 0, average[1], 0)
        mixed = stepped(other, mixed, around, buffers=((0, 1), (2, 3), (4, 5)))
        assert mixed.tolist() == [0, plain[0], 0, plain[1], 0]


def test_a_stepped_community_steps_from_the_current_model_to_the_rounds_average() -> None:
    community = Stepped(RoundAverage(), FedAvgM(rate=0.5, momentum=0.0))
    current = vector(0, 0)
    community.fold(update("a", vector(2, 4)), 1.0, current)
    community.fold(update("b", vector(6, 4)), 1.0, current)

    np.testing.assert_array_equal(community.model(current), [2, 2])


def test_no_mass_is_no_step_and_leaves_the_momentum_alone() -> None:
    step = FedAvgM()
    community = Stepped(RoundAverage(), step)
    current = vector(1, 2)

    assert community.model(current) is current
    assert step.velocity is None


def test_a_stepped_community_drops_and_drifts_as_what_it_steps() -> None:
    community = Stepped(CachedAverage(repair_every=1), FedAvgM(momentum=0.0))
    current = vector(0, 0)
    assert community.drift is None
    community.fold(update("a", vector(2, 4)), 1.0, current)

    assert community.drift == 0.0
    assert community.drop(LearnerId("a"))
    assert not community.drop(LearnerId("a"))
    assert community.model(current) is current
