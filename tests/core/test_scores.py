from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from metis.core.errors import ConfigError, DataError
from metis.core.scores import (
    CLASS_SCORES,
    ERROR_SCORES,
    accuracy,
    g_mean,
    inverse_mae,
    inverse_mse,
    macro_f1,
    mcc,
    micro_f1,
    pool,
    r_squared,
    score,
)
from metis.core.types import ClassCounts, Counts, ErrorSums

#: Rows actual, columns predicted: 10 examples of class 0, 5 of class 1, 5 of class 2.
BY_HAND = ClassCounts(np.array([[8, 1, 1], [2, 3, 0], [0, 1, 4]], np.int64))


def counts_of(labels: list[tuple[int, int]], num_classes: int) -> ClassCounts:
    matrix = np.zeros((num_classes, num_classes), np.int64)
    for actual, predicted in labels:
        matrix[actual, predicted] += 1
    return ClassCounts(matrix)


def sums_of(targets: NDArray[np.float64], outputs: NDArray[np.float64]) -> ErrorSums:
    errors = outputs - targets
    return ErrorSums(
        len(targets),
        float((errors**2).sum()),
        float(np.abs(errors).sum()),
        float(targets.sum()),
        float((targets**2).sum()),
    )


def test_equation_3_by_hand() -> None:
    # TP = 8 + 3 + 4 = 15; FP = (10 - 8) + (5 - 3) + (5 - 4) = 5; FN = (10 - 8) + (5 - 3) + 1 = 5
    assert micro_f1(BY_HAND) == 2 * 15 / (2 * 15 + 5 + 5) == 0.75
    assert accuracy(BY_HAND) == 15 / 20


def test_the_other_class_scores_by_hand() -> None:
    f1 = [2 * 8 / (10 + 10), 2 * 3 / (5 + 5), 2 * 4 / (5 + 5)]
    assert macro_f1(BY_HAND) == pytest.approx(sum(f1) / 3)
    assert g_mean(BY_HAND) == pytest.approx((0.8 * 0.6 * 0.8) ** (1 / 3))
    # (15 * 20 - 150) / sqrt((400 - 150) * (400 - 150))
    assert mcc(BY_HAND) == pytest.approx(150 / 250)


labels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@given(labels)
@settings(max_examples=200, deadline=None)
def test_class_scores_agree_with_sklearn(labels: list[tuple[int, int]]) -> None:
    actual, predicted = zip(*labels, strict=True)
    counts = counts_of(labels, num_classes=5)

    assert accuracy(counts) == pytest.approx(metrics.accuracy_score(actual, predicted))
    assert micro_f1(counts) == pytest.approx(metrics.f1_score(actual, predicted, average="micro"))
    assert macro_f1(counts) == pytest.approx(
        metrics.f1_score(actual, predicted, average="macro", zero_division=0)
    )
    if len({*actual, *predicted}) > 1:  # sklearn warns of a single label
        assert mcc(counts) == pytest.approx(metrics.matthews_corrcoef(actual, predicted), abs=1e-12)
    recalls = metrics.recall_score(actual, predicted, average=None, labels=sorted(set(actual)))
    assert g_mean(counts) == pytest.approx(float(np.prod(recalls)) ** (1 / len(recalls)), abs=1e-9)


@given(labels)
@settings(max_examples=200, deadline=None)
def test_class_scores_agree_with_counting_one_example_at_a_time(
    labels: list[tuple[int, int]],
) -> None:
    counts = counts_of(labels, num_classes=5)
    classes = {label for pair in labels for label in pair}
    hits = {c: sum(a == p == c for a, p in labels) for c in classes}
    false_positives = {c: sum(p == c != a for a, p in labels) for c in classes}
    false_negatives = {c: sum(a == c != p for a, p in labels) for c in classes}
    f1 = [2 * hits[c] / (2 * hits[c] + false_positives[c] + false_negatives[c]) for c in classes]
    tp, fp, fn = (sum(d.values()) for d in (hits, false_positives, false_negatives))

    assert micro_f1(counts) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert macro_f1(counts) == pytest.approx(sum(f1) / len(f1))
    assert accuracy(counts) == pytest.approx(tp / len(labels))


def test_a_class_without_examples_does_not_count_against_a_model() -> None:
    wider = np.zeros((5, 5), np.int64)
    wider[:3, :3] = BY_HAND.matrix
    for metric in CLASS_SCORES:
        assert score(metric, ClassCounts(wider)) == score(metric, BY_HAND)


def test_counts_of_a_very_large_federation_do_not_overflow() -> None:
    counts = ClassCounts(BY_HAND.matrix * 10**15)
    for metric in CLASS_SCORES:
        assert score(metric, counts) == pytest.approx(score(metric, BY_HAND))


@given(st.integers(0, 2**32 - 1), st.integers(2, 50))
@settings(max_examples=100, deadline=None)
def test_error_scores_agree_with_sklearn(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    targets, noise = rng.normal(3, 2, size), rng.normal(0, 1, size)
    outputs = targets + noise
    sums = sums_of(targets, outputs)

    mse = metrics.mean_squared_error(targets, outputs)
    mae = metrics.mean_absolute_error(targets, outputs)
    assert inverse_mse(sums) == pytest.approx(1 / (1 + mse))
    assert inverse_mae(sums) == pytest.approx(1 / (1 + mae))
    assert r_squared(sums) == pytest.approx(metrics.r2_score(targets, outputs), rel=1e-6, abs=1e-6)
    assert score("r2", sums) == max(r_squared(sums), 0.0)


@pytest.mark.parametrize(("output", "right"), [(2.0, 1.0), (3.0, 0.0)])
def test_targets_that_do_not_vary_have_an_r_squared(output: float, right: float) -> None:
    assert r_squared(sums_of(np.full(4, 2.0), np.full(4, output))) == right


def test_a_negative_score_is_clipped_at_zero() -> None:
    inverted = ClassCounts(np.array([[0, 5], [5, 0]], np.int64))

    assert mcc(inverted) == -1.0
    assert score("mcc", inverted) == 0.0


@pytest.mark.parametrize("metric", CLASS_SCORES)
def test_no_examples_score_zero_in_classification(metric: str) -> None:
    assert score(metric, ClassCounts(np.zeros((3, 3), np.int64))) == 0.0


@pytest.mark.parametrize("metric", ERROR_SCORES)
def test_no_examples_score_zero_in_regression(metric: str) -> None:
    assert score(metric, ErrorSums(0, 0.0, 0.0, 0.0, 0.0)) == 0.0


@pytest.mark.parametrize("metric", ERROR_SCORES)
@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_an_error_that_is_not_finite_scores_zero(metric: str, error: float) -> None:
    assert score(metric, ErrorSums(3, error, error, 6.0, 14.0)) == 0.0


@pytest.mark.parametrize(
    ("metric", "counts", "message"),
    [
        ("micro_f2", BY_HAND, "did you mean 'micro_f1'"),
        ("r2", BY_HAND, "is for regression"),
        ("mcc", ErrorSums(1, 0.0, 0.0, 0.0, 0.0), "is for classification"),
    ],
)
def test_a_score_that_does_not_fit_is_explained(metric: str, counts: Counts, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score(metric, counts)


def test_pooled_matrices_are_added_up() -> None:
    pooled = pool([BY_HAND, BY_HAND, BY_HAND])

    assert isinstance(pooled, ClassCounts)
    assert pooled.matrix.dtype == np.int64
    np.testing.assert_array_equal(pooled.matrix, 3 * BY_HAND.matrix)


def test_the_order_of_the_judges_changes_no_bit_of_pooled_errors() -> None:
    rng = np.random.default_rng(5)
    judged = [sums_of(rng.normal(size=9), rng.normal(size=9) * 10.0**i) for i in range(-8, 8)]
    pooled = pool(judged)

    assert all(pool([judged[i] for i in rng.permutation(16)]) == pooled for _ in range(20))
    by_pairs = reduce(add, judged)
    assert isinstance(pooled, ErrorSums)
    assert pooled.num_examples == by_pairs.num_examples == 9 * 16
    assert pooled.squared_error == pytest.approx(by_pairs.squared_error)


@pytest.mark.parametrize(
    "counts",
    [
        [],
        [BY_HAND, ClassCounts(np.zeros((2, 2), np.int64))],
        [BY_HAND, ErrorSums(1, 0.0, 0.0, 0.0, 0.0)],
    ],
)
def test_counts_that_do_not_belong_together_are_not_pooled(counts: list[Counts]) -> None:
    with pytest.raises(DataError, match="pool"):
        pool(counts)


def test_every_score_has_a_name_of_its_own() -> None:
    names: list[Callable[..., float]] = [*CLASS_SCORES.values(), *ERROR_SCORES.values()]
    assert len(set(names)) == len({*CLASS_SCORES, *ERROR_SCORES}) == 8
