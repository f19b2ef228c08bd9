from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metis.core import kernels
from metis.core.community import Buffer, CachedAverage, Community, Mixing, RoundAverage
from metis.core.errors import ConfigError, ModelError, RunError
from metis.core.types import LearnerId, Update, Vector, frozen

A, B, C = LearnerId("a"), LearnerId("b"), LearnerId("c")


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def update(learner: LearnerId, weights: Vector) -> Update:
    return Update(learner, 0, weights, base_version=0, num_examples=1, num_steps=1)


def fold(community: Community, learner: LearnerId, weights: Vector, weight: float) -> None:
    community.fold(update(learner, weights), weight, base=weights)


def mean_of_latest(community: CachedAverage) -> Vector:
    total, mass = community.recompute()
    return (total / mass).astype(np.float32)


ORIGIN = vector(0, 0)


# --- a synchronous round


def test_a_round_is_the_weighted_mean_of_its_own_models_alone() -> None:
    community = RoundAverage()
    fold(community, A, vector(100, 100), 5)
    community.model(ORIGIN)

    fold(community, A, vector(1, 2), 1)
    fold(community, B, vector(5, 10), 3)

    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 8])
    assert community.model(ORIGIN).weights is ORIGIN


def test_the_order_of_arrival_cannot_change_a_bit_of_a_round() -> None:
    rng = np.random.default_rng(1)
    answers = [
        (LearnerId(name), frozen(rng.normal(size=1000) * 10.0**scale), float(rng.random()))
        for scale, name in enumerate("abcde")
    ]
    seen = set()
    for order in itertools.permutations(answers):
        community = RoundAverage()
        for learner, weights, weight in order:
            fold(community, learner, weights, weight)
        seen.add(community.model(ORIGIN).weights.tobytes())

    assert len(seen) == 1


def test_a_learner_that_answers_a_round_twice_counts_once() -> None:
    community = RoundAverage()
    fold(community, A, vector(1, 1), 7)
    fold(community, B, vector(4, 4), 1)
    fold(community, A, vector(2, 2), 1)

    np.testing.assert_array_equal(community.model(ORIGIN).weights, [3, 3])


def test_a_learner_can_be_dropped_from_an_open_round_only() -> None:
    community = RoundAverage()
    fold(community, A, vector(1, 1), 1)
    fold(community, B, vector(4, 4), 1)

    assert community.drop(A)
    assert not community.drop(A)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 4])
    assert not community.drop(B)


def test_a_round_without_mass_leaves_the_model_as_it_is() -> None:
    community = RoundAverage()
    fold(community, A, vector(1, 1), 0)

    assert community.model(ORIGIN).weights is ORIGIN


# --- the cache


def test_an_update_replaces_its_learners_share_of_the_cached_sum() -> None:
    community = CachedAverage()
    fold(community, A, vector(1, 2), 1)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [1, 2])
    fold(community, B, vector(5, 10), 3)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 8])
    fold(community, A, vector(3, 0), 5)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [3.75, 3.75])


def test_a_withdrawn_learner_leaves_no_trace() -> None:
    community = CachedAverage()
    fold(community, A, vector(1, 2), 1)
    fold(community, B, vector(5, 10), 3)

    assert community.drop(A)
    assert not community.drop(A)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [5, 10])


def test_a_weight_of_zero_takes_the_old_contribution_out_and_puts_nothing_in() -> None:
    community = CachedAverage()
    fold(community, A, vector(1, 2), 1)
    fold(community, B, vector(5, 10), 3)
    community.model(ORIGIN)

    fold(community, A, vector(9, 9), 0)

    np.testing.assert_array_equal(community.model(ORIGIN).weights, [5, 10])
    assert not community.drop(A)


@pytest.mark.parametrize("leave_by", ["drop", "zero weight"])
def test_the_last_contribution_to_go_leaves_exactly_nothing(leave_by: str) -> None:
    rng = np.random.default_rng(2)
    community = CachedAverage()
    learners = [LearnerId(str(i)) for i in range(20)]
    for learner in learners:
        fold(community, learner, frozen(rng.normal(size=2)), float(rng.random()))
    for learner in learners:
        if leave_by == "drop":
            assert community.drop(learner)
        else:
            fold(community, learner, vector(1, 1), 0)

    assert community.model(ORIGIN).weights is ORIGIN
    assert (community.total, community.mass, community.mass_error) == (None, 0.0, 0.0)

    fold(community, A, vector(0.1, 0.2), 0.3)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, vector(0.1, 0.2))


def test_many_folds_in_one_version_equal_one_fold_per_version() -> None:
    rng = np.random.default_rng(3)
    one, many = CachedAverage(), CachedAverage()
    for _ in range(200):
        learner, weights = LearnerId(str(rng.integers(7))), frozen(rng.normal(size=5))
        weight = float(rng.random())
        for community in (one, many):
            fold(community, learner, weights, weight)
        last = one.model(ORIGIN).weights

    assert many.model(ORIGIN).weights.tobytes() == last.tobytes()
    assert many.model(ORIGIN).weights.tobytes() == last.tobytes()


def test_the_cached_sum_does_not_drift_in_100_000_folds() -> None:
    rng = np.random.default_rng(1990)
    community = CachedAverage(repair_every=1_000_000)
    pool = [frozen(rng.normal(size=64) * 10.0 ** rng.integers(-3, 4)) for _ in range(500)]
    learners = [LearnerId(str(i)) for i in range(50)]
    weights = rng.random(100_000) * 10.0 ** rng.integers(-3, 4, 100_000)
    weights[rng.random(100_000) < 0.02] = 0.0
    who, what = rng.integers(50, size=100_000), rng.integers(500, size=100_000)
    model = pool[0]
    for k, w, p in zip(who, what, weights, strict=True):
        fold(community, learners[k], pool[w], float(p))
        model = community.model(model).weights

    right = mean_of_latest(community)
    _, mass = community.recompute()
    assert community.repaired is None
    assert np.abs(model - right).max() <= 1e-6 * np.abs(right).max()
    assert math.isclose(community.mass + community.mass_error, mass, rel_tol=1e-12)


def test_a_repair_is_reported_with_the_version_it_was_made_for() -> None:
    community = CachedAverage(repair_every=3)
    found = []
    for i in range(7):
        fold(community, LearnerId(str(i % 2)), vector(i, 0.1), 0.1 + i)
        before = community.repaired
        community.model(ORIGIN)
        assert community.repaired == before
        found.append(community.repaired)

    assert [drift is not None for drift in found] == [i in (2, 5) for i in range(7)]
    assert all(drift is None or 0 <= drift < 1e-12 for drift in found)


def test_a_repair_mends_a_sum_that_went_wrong_and_says_by_how_much() -> None:
    community = CachedAverage(repair_every=3)
    fold(community, A, vector(1, 2), 1)
    fold(community, B, vector(5, 10), 3)
    community.model(ORIGIN)
    assert community.total is not None
    community.total[0] += 8.0  # the right sum after the next fold is [16, 32]

    fold(community, A, vector(1, 2), 1)

    assert community.repaired == 0.25
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 8])


@pytest.mark.parametrize("exponent", range(6, 38, 2))
@pytest.mark.parametrize("goes_by", ["its next update", "a weight of zero"])
def test_what_a_huge_update_leaves_in_the_cached_sum_is_repaired(
    exponent: int, goes_by: str
) -> None:
    """Taken out again it leaves its rounding: a ten-thousandth for 1e12, everything for 1e18."""
    rng = np.random.default_rng(exponent)
    community = CachedAverage(repair_every=10**9)
    learners = [LearnerId(str(i)) for i in range(5)]
    pool = [frozen(rng.normal(size=100)) for _ in range(20)]
    worst, repairs = 0.0, 0
    for k in range(300):
        learner, weights, weight = learners[k % 5], pool[rng.integers(20)], 0.5 + rng.random()
        if k == 100:
            weights = frozen(weights * np.float32(10.0**exponent))
        elif k == 105 and goes_by == "a weight of zero":
            weight = 0.0
        fold(community, learner, weights, weight)
        model = community.model(ORIGIN).weights
        repairs += community.repaired is not None
        right = mean_of_latest(community)
        worst = max(worst, float(np.abs(model - right).max() / np.abs(right).max()))

    assert worst <= 1.2e-7  # the last bit of a float32
    assert repairs == (exponent > 6) or exponent == 8


def test_one_huge_value_among_many_is_enough_for_a_repair() -> None:
    community = CachedAverage()
    poisoned = np.ones(1000, np.float32)
    poisoned[700] = 1e15
    for learner, weights in ((A, np.ones(1000)), (B, poisoned), (B, np.ones(1000))):
        fold(community, learner, frozen(weights / 3), 0.3)
        model = community.model(ORIGIN).weights

    assert community.repaired is not None
    assert community.repaired > 1e-3
    np.testing.assert_array_equal(model, np.full(1000, np.float32(1 / 3)))


def test_the_error_of_the_cached_sum_is_within_its_bound() -> None:
    rng = np.random.default_rng(5)
    community = CachedAverage(repair_every=10**9)
    exact: dict[LearnerId, Fraction] = {}
    for k in range(400):
        learner = LearnerId(str(rng.integers(4)))
        weights = frozen(rng.normal(size=1) * 10.0 ** rng.integers(-3, 4))
        weight = float(rng.random())
        fold(community, learner, weights, weight)
        community.model(ORIGIN)
        exact[learner] = Fraction(weight) * Fraction(float(weights[0]))
        if community.repaired is not None:
            continue
        assert community.total is not None
        error = abs(Fraction(float(community.total[0])) - sum(exact.values()))
        size = sum(map(abs, exact.values()))
        # A fresh sum rounds too, at most so much.
        assert error <= community.error + 8 * 2.0**-53 * float(size), k
        assert abs(community.size - size) <= community.error
    assert community.error > 0.0


@pytest.mark.parametrize("num_learners", [2, 10, 300])
def test_ordinary_training_brings_no_repair(num_learners: int) -> None:
    """Weights that grow a hundredfold and shrink again, scores that differ as much."""
    rng = np.random.default_rng(num_learners)
    community = CachedAverage(repair_every=10**9)
    learners = [LearnerId(str(i)) for i in range(num_learners)]
    for k in range(10_000):
        scale = 10.0 ** math.sin(k / 700)
        weights = frozen(scale * rng.normal(size=20))
        fold(community, learners[k % num_learners], weights, float(rng.uniform(0.01, 1.0)))
        community.model(ORIGIN)
        assert community.repaired is None
    assert community.error < 1e-9 * community.size


steps = st.lists(
    st.tuples(
        st.sampled_from(["fold", "fold", "fold", "drop", "model"]),
        st.integers(0, 3),
        st.integers(-8, 8),
        st.sampled_from([0.0, 0.125, 1.0, 3.0]),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_cache_equals_the_mean_of_the_latest_models(
    steps: list[tuple[str, int, int, float]], repair_every: int
) -> None:
    community, latest = CachedAverage(repair_every), dict[LearnerId, tuple[float, float]]()
    for what, who, value, weight in steps:
        learner = LearnerId(str(who))
        if what == "fold":
            fold(community, learner, vector(value, 1), weight)
            latest.pop(learner, None)
            if weight:
                latest[learner] = (value, weight)
        elif what == "drop":
            assert community.drop(learner) == (latest.pop(learner, None) is not None)
        else:
            community.model(ORIGIN)

    model = community.model(ORIGIN).weights
    if not latest:
        assert model is ORIGIN
    else:
        # Small integers and powers of two: the sums are exact, so nothing but equality will do.
        mass = sum(weight for _, weight in latest.values())
        right = sum(value * weight for value, weight in latest.values()) / mass
        np.testing.assert_array_equal(model, vector(right, 1))


# --- mixing


def test_the_first_arrival_becomes_the_mixture_and_later_ones_are_mixed_in() -> None:
    community = Mixing()
    assert community.model(ORIGIN).weights is ORIGIN

    fold(community, A, vector(8, 4), 0.5)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [8, 4])
    fold(community, B, vector(0, 8), 0.25)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [6, 5])
    fold(community, B, vector(2, 1), 0.5)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 3])


def test_the_mixing_rate_of_one_arrival_does_not_touch_the_next() -> None:
    community = Mixing()
    fold(community, A, vector(0, 0), 0.5)
    fold(community, A, vector(0, 0), 0.001)
    fold(community, B, vector(8, 4), 0.5)

    np.testing.assert_array_equal(community.model(ORIGIN).weights, [4, 2])


def test_nothing_can_be_dropped_from_a_mixture() -> None:
    community = Mixing()
    fold(community, A, vector(8, 4), 0.5)

    assert not community.drop(A)
    np.testing.assert_array_equal(community.model(ORIGIN).weights, [8, 4])


# --- buffered differences


def test_a_buffer_adds_the_mean_of_weighted_differences_to_each_learners_own_base() -> None:
    community = Buffer(server_rate=0.5)
    community.fold(update(A, vector(3, 1)), 1.0, base=vector(1, 1))
    community.fold(update(B, vector(0, 9)), 0.5, base=vector(4, 1))

    # [10, 10] + 0.5 / 2 * (1 * [2, 0] + 0.5 * [-4, 8])
    np.testing.assert_array_equal(community.model(vector(10, 10)).weights, [10, 11])


def test_a_buffer_is_empty_after_a_version() -> None:
    community = Buffer()
    community.fold(update(A, vector(3, 1)), 1.0, base=vector(1, 1))
    current = community.model(vector(10, 10)).weights

    np.testing.assert_array_equal(current, [12, 10])
    assert community.model(current).weights is current
    assert not community.drop(A)


def test_all_of_a_learner_can_be_dropped_from_a_buffer() -> None:
    community = Buffer()
    community.fold(update(A, vector(3, 1)), 1.0, base=vector(1, 1))
    community.fold(update(B, vector(2, 1)), 1.0, base=vector(1, 1))
    community.fold(update(A, vector(9, 9)), 1.0, base=vector(3, 3))

    assert community.drop(A)
    assert not community.drop(C)
    np.testing.assert_array_equal(community.model(vector(10, 10)).weights, [11, 10])


def test_a_fold_of_weight_zero_still_counts_as_an_arrival() -> None:
    community = Buffer()
    community.fold(update(A, vector(3, 1)), 1.0, base=vector(1, 1))
    community.fold(update(B, vector(9, 9)), 0.0, base=vector(1, 1))

    np.testing.assert_array_equal(community.model(vector(10, 10)).weights, [11, 10])


@pytest.mark.parametrize("server_rate", [0.5, 1.0, 3.0])
def test_the_buffers_of_a_model_stay_between_what_the_folds_say(server_rate: float) -> None:
    """Added up as differences, what two stale learners say of a variance leaves it below zero."""
    community = Buffer(server_rate, buffers=((1, 2),))
    community.fold(update(A, vector(3, 1)), 1.0, base=vector(1, 9))
    community.fold(update(B, vector(3, 2)), 0.5, base=vector(1, 9))
    community.fold(update(C, vector(3, 99)), 0.0, base=vector(1, 9))

    model = community.model(vector(10, 3)).weights

    assert model[0] == np.float32(10 + server_rate / 3 * (1 * 2 + 0.5 * 2))
    assert model[1] == np.float32((1 * 1 + 0.5 * 2) / 1.5)


# --- what all of them promise

ALL = [RoundAverage, CachedAverage, Mixing, Buffer]


@pytest.mark.parametrize("kind", ALL)
def test_a_published_model_is_read_only_and_never_changes(kind: type[Community]) -> None:
    community = kind()
    fold(community, A, vector(1, 2), 0.5)
    fold(community, B, vector(3, 4), 0.5)
    model = community.model(ORIGIN).weights
    before = model.copy()

    fold(community, A, vector(7, 7), 0.5)
    later = community.model(model).weights

    assert not model.flags.writeable
    assert not later.flags.writeable
    assert model.dtype == later.dtype == np.float32
    np.testing.assert_array_equal(model, before)


@pytest.mark.parametrize("kind", ALL)
def test_a_model_of_the_wrong_size_is_refused_by_name(kind: type[Community]) -> None:
    with pytest.raises(ModelError, match=r"'a' sent weights of shape \(3,\).* \(2,\)"):
        kind().fold(update(A, vector(1, 2, 3)), 1.0, base=ORIGIN)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_no_weight_is_refused(kind: type[Community], weight: float) -> None:
    with pytest.raises(RunError, match="finite and not negative"):
        fold(kind(), A, ORIGIN, weight)


def test_repairs_need_a_period() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        CachedAverage(repair_every=0)


# --- the loops


def operands(size: int) -> tuple[kernels.Sum, Vector, Vector]:
    rng = np.random.default_rng(size)
    total = rng.normal(size=size) * 10.0 ** rng.integers(-20, 20, size)
    new, old = (frozen(rng.normal(size=size)) for _ in range(2))
    total[: size // 10] = 0.0
    return total, new, old


@pytest.mark.parametrize("keep", [1.0, 0.7])
@pytest.mark.parametrize("with_old", [True, False])
@pytest.mark.parametrize("with_out", [True, False])
def test_compiled_and_numpy_loops_give_the_same_bits(
    keep: float, with_old: bool, with_out: bool
) -> None:
    pytest.importorskip("numba")
    compiled = kernels._compiled()
    assert compiled is not None
    total, new, old = operands(200_003)
    results = []
    for loop in (compiled, kernels._numpy_loop):
        state, out = total.copy(), np.zeros(total.size, np.float32)
        before, result = old if with_old else None, out if with_out else None
        largest = loop(state, keep, 0.1, new, 0.3, before, 1.7, result, new.view(np.int32))
        results.append((state.tobytes(), out.tobytes(), largest))

    assert results[0] == results[1]
    assert results[0][2] == np.abs(new).max()


@pytest.mark.parametrize("size", [1, 1000, kernels._BLOCK + 1, kernels._PARALLEL + 3])
def test_a_shift_finds_the_largest_value_wherever_it_is(size: int) -> None:
    for place, value in ((0, -3.5), (size // 2, 3e38), (size - 1, -1e-30)):
        new = np.zeros(size, np.float32)
        new[place] = value
        assert kernels.shift(np.zeros(size), 1.0, 0.1, frozen(new)) == np.float32(abs(value))


@pytest.mark.parametrize("size", [0, 1, 1000, kernels._BLOCK, kernels._BLOCK + 1, 300_000])
def test_every_size_gives_the_bits_of_the_plain_formula(size: int) -> None:
    total, new, old = operands(size)
    right = 1.0 * total + (0.1 * new.astype(np.float64) - 0.3 * old.astype(np.float64))
    shifted = total.copy()

    kernels.shift(shifted, 1.0, 0.1, new, 0.3, old)
    out = kernels.shift_and_divide(total, 1.0, 0.1, new, 0.3, old, mass=1.7)

    assert shifted.tobytes() == total.tobytes() == right.tobytes()
    assert out.tobytes() == kernels.divide(total, 1.7).tobytes()
    assert out.tobytes() == (right / 1.7).astype(np.float32).tobytes()


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    total, new, old = operands(200_003)
    results = set()
    for parallel in (1, 1 << 30):
        monkeypatch.setattr(kernels, "_PARALLEL", parallel)
        state = total.copy()
        out = kernels.shift_and_divide(state, 1.0, 0.1, new, 0.3, old, mass=1.7)
        terms = kernels.weighted_sum([(new, 0.1), (old, 0.3)])
        results.add((state.tobytes(), out.tobytes(), terms.tobytes()))

    assert len(results) == 1


def test_a_weighted_sum_adds_in_the_order_given() -> None:
    rng = np.random.default_rng(4)
    terms = [(frozen(rng.normal(size=70_000)), float(rng.random())) for _ in range(5)]
    right = np.zeros(70_000)
    for weights, weight in terms:
        right += weight * weights.astype(np.float64)

    assert kernels.weighted_sum(terms).tobytes() == right.tobytes()


@pytest.mark.parametrize("size", [1, 5, 1 << 16, (1 << 18) + 1, 700_001])
@pytest.mark.parametrize("num_terms", [1, 2, 5])
def test_a_weighted_mean_is_the_weighted_sum_divided(size: int, num_terms: int) -> None:
    rng = np.random.default_rng(size + num_terms)
    terms = [(frozen(rng.normal(size=size)), float(rng.random())) for _ in range(num_terms)]

    mean = kernels.weighted_mean(terms, 1.7)

    assert mean.tobytes() == kernels.divide(kernels.weighted_sum(terms), 1.7).tobytes()
    assert not mean.flags.writeable


def test_sizes_that_differ_never_reach_the_compiled_loop() -> None:
    total, new, _ = operands(100_000)
    with pytest.raises(ValueError, match="meets a sum"):
        kernels.shift(total, 1.0, 1.0, new[:-1])
