from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from metis.core.community import CachedAverage, RoundAverage
from metis.core.server_step import Adaptive, FedAvgM, SecondMoment, ServerStep, Stepped
from metis.core.types import LearnerId, Spans, Update, Vector, frozen


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def update(learner: str, weights: Vector) -> Update:
    return Update(LearnerId(learner), 0, weights, base_version=0, num_examples=1, num_steps=1)


def stepped(step: ServerStep, current: Vector, average: Vector, buffers: Spans = ()) -> Vector:
    """Return what a community makes of one learner's model."""
    community = Stepped(RoundAverage(), step, buffers)
    community.fold(update("a", average), 1.0, current)
    return community.model(current).weights


def test_without_momentum_the_average_is_the_next_model() -> None:
    step = FedAvgM(rate=1.0, momentum=0.0)
    for average in (vector(1, 2), vector(-3, 4)):
        np.testing.assert_array_equal(stepped(step, vector(5, 5), average), average)


def test_server_momentum_goes_on_in_the_old_direction() -> None:
    step = FedAvgM(rate=0.5, momentum=0.5)

    np.testing.assert_array_equal(stepped(step, vector(0), vector(4)), [2])  # m = 4
    np.testing.assert_array_equal(stepped(step, vector(2), vector(4)), [4])  # m = 0.5 * 4 + 2
    np.testing.assert_array_equal(stepped(step, vector(4), vector(4)), [5])  # m = 0.5 * 4


def slow_adaptive(kind: str, averages: list[float], rate: float, start: float) -> list[float]:
    """Algorithm 2 of Reddi et al. for one weight, in plain numbers."""
    beta1, beta2, tau = 0.9, 0.99, 1e-3
    x, m, v = float(np.float32(start)), 0.0, tau * tau
    found = []
    for average in averages:
        delta = float(np.float32(average)) - x
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        elif v > delta**2:
            v = v - (1 - beta2) * delta**2
        elif v < delta**2:
            v = v + (1 - beta2) * delta**2
        x = float(np.float32(x + rate * m / (math.sqrt(v) + tau)))
        found.append(x)
    return found


KINDS: list[SecondMoment] = ["adagrad", "adam", "yogi"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_adaptive_step_is_algorithm_2_without_bias_correction(kind: SecondMoment) -> None:
    rng = np.random.default_rng(3)
    size, rounds = 20, 40
    averages = rng.normal(size=(rounds, size)) * 10.0 ** rng.integers(-4, 2, size)
    averages[10:20] = averages[9]  # a while of standing still: delta^2 falls below v
    current, step = frozen(rng.normal(size=size)), Adaptive(kind, rate=0.1)
    right = [
        slow_adaptive(kind, averages[:, i].tolist(), 0.1, float(current[i])) for i in range(size)
    ]

    for k, average in enumerate(averages):
        current = stepped(step, current, frozen(average))
        np.testing.assert_allclose(current, [column[k] for column in right], rtol=2e-6)


def test_the_three_kinds_differ_from_the_first_round_on() -> None:
    found = {kind: stepped(Adaptive(kind, rate=0.1), vector(1.0), vector(3.0))[0] for kind in KINDS}

    first = 0.1 * 2.0
    assert found["adagrad"] == np.float32(1 + 0.1 * first / (math.sqrt(1e-6 + 4.0) + 1e-3))
    assert found["adam"] == np.float32(1 + 0.1 * first / (math.sqrt(0.99e-6 + 0.04) + 1e-3))
    assert found["yogi"] == np.float32(1 + 0.1 * first / (math.sqrt(1e-6 + 0.04) + 1e-3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_federation_that_stands_still_is_not_moved_by_an_adaptive_step(
    kind: SecondMoment,
) -> None:
    np.testing.assert_array_equal(stepped(Adaptive(kind), vector(1, -2), vector(1, -2)), [1, -2])


STEPS: list[Callable[[], ServerStep]] = [
    FedAvgM,
    lambda: Adaptive("adagrad"),
    lambda: Adaptive("adam"),
    lambda: Adaptive("yogi"),
]


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

    np.testing.assert_array_equal(community.model(current).weights, [2, 2])


def test_no_mass_is_no_step_and_leaves_the_momentum_alone() -> None:
    step = FedAvgM()
    community = Stepped(RoundAverage(), step)
    current = vector(1, 2)

    assert community.model(current).weights is current
    assert step.velocity is None


def test_a_stepped_community_drops_and_drifts_as_what_it_steps() -> None:
    community = Stepped(CachedAverage(repair_every=1), FedAvgM(momentum=0.0))
    current = vector(0, 0)
    assert community.model(current).drift is None
    community.fold(update("a", vector(2, 4)), 1.0, current)

    assert community.model(current).drift == 0.0
    assert community.drop(LearnerId("a"))
    assert not community.drop(LearnerId("a"))
    assert community.model(current).weights is current
