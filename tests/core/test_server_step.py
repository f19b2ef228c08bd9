from __future__ import annotations

import math

import numpy as np
import pytest

from metis.core.community import CachedAverage, RoundAverage
from metis.core.server_step import FedAdam, FedAvgM, Stepped
from metis.core.types import LearnerId, Update, Vector, frozen


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def update(learner: str, weights: Vector) -> Update:
    return Update(LearnerId(learner), 0, weights, base_version=0, num_examples=1, num_steps=1)


def test_without_momentum_the_average_is_the_next_model() -> None:
    step = FedAvgM(rate=1.0, momentum=0.0)
    for average in (vector(1, 2), vector(-3, 4)):
        np.testing.assert_array_equal(step(vector(5, 5), average), average)


def test_server_momentum_goes_on_in_the_old_direction() -> None:
    step = FedAvgM(rate=0.5, momentum=0.5)

    np.testing.assert_array_equal(step(vector(0), vector(4)), [2])  # m = 4
    np.testing.assert_array_equal(step(vector(2), vector(4)), [4])  # m = 0.5 * 4 + 2
    np.testing.assert_array_equal(step(vector(4), vector(4)), [5])  # m = 0.5 * 4


def test_server_adam_by_hand_without_bias_correction() -> None:
    step = FedAdam(rate=0.1, beta1=0.9, beta2=0.99, tau=1e-3)

    after = step(vector(1.0), vector(3.0))
    first, second = 0.1 * 2.0, 0.99 * 1e-6 + 0.01 * 4.0
    assert after[0] == np.float32(1.0 + 0.1 * first / (math.sqrt(second) + 1e-3))

    again = step(vector(1.0), vector(0.0))
    first, second = 0.9 * first - 0.1, 0.99 * second + 0.01
    assert again[0] == np.float32(1.0 + 0.1 * first / (math.sqrt(second) + 1e-3))


def test_a_federation_that_stands_still_is_not_moved_by_server_adam() -> None:
    step = FedAdam()
    np.testing.assert_array_equal(step(vector(1, -2), vector(1, -2)), [1, -2])


@pytest.mark.parametrize("step", [FedAvgM(), FedAdam()])
def test_a_step_writes_to_neither_of_its_models(step: FedAvgM | FedAdam) -> None:
    current, average = vector(1, 2), vector(3, 4)
    for _ in range(3):
        after = step(current, average)
        assert after.dtype == np.float32
        assert not after.flags.writeable

    np.testing.assert_array_equal(current, [1, 2])
    np.testing.assert_array_equal(average, [3, 4])


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
