"""Holding out: counts by hand, and disjointness."""

from __future__ import annotations

import numpy as np
import pytest

from metis.core.errors import DataError
from metis.data.split import holdout


def test_each_class_gives_its_rounded_share_and_at_least_one() -> None:
    sizes = [1, 2, 9, 10, 29, 30, 100]
    labels = np.repeat(np.arange(7), sizes)

    kept, out = holdout(labels, 0.05, (1990, 3), num_classes=7)

    # .05 -> 0 (a lone example is kept), .1 -> 1, .45 -> 1, .5 -> 1, 1.45 -> 1, 1.5 -> 2, 5
    assert np.bincount(labels[out], minlength=7).tolist() == [0, 1, 1, 1, 1, 2, 5]
    assert sorted([*kept, *out]) == list(range(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(out) > 0).all()


def test_halves_round_up_in_decimal() -> None:
    # 0.145 * 100 is 14.499999999999998 in binary floating point.
    assert len(holdout(np.zeros(100), 0.145, (0,), num_classes=1)[1]) == 15


def test_a_class_is_never_held_out_whole() -> None:
    labels = np.repeat(np.arange(3), 2)

    kept, _ = holdout(labels, 0.99, (0,), num_classes=3)

    assert labels[kept].tolist() == [0, 1, 2]


def test_nothing_is_held_out_at_a_fraction_of_zero() -> None:
    kept, out = holdout(np.zeros(5), 0.0, (0,), num_classes=1)

    assert len(out) == 0
    assert kept.tolist() == [0, 1, 2, 3, 4]


def test_a_regression_holds_out_a_plain_sample() -> None:
    targets = np.linspace(0, 1, 50)

    assert len(holdout(targets, 0.05, (0,), num_classes=0)[1]) == 3
    assert len(holdout(targets[:2], 0.05, (0,), num_classes=0)[1]) == 1
    assert len(holdout(targets[:1], 0.05, (0,), num_classes=0)[1]) == 0


def test_without_strata_only_the_total_is_rounded() -> None:
    labels = np.repeat(np.arange(10), 2)

    assert len(holdout(labels, 0.05, (0,), num_classes=10)[1]) == 10
    assert len(holdout(labels, 0.05, (0,), num_classes=10, stratified=False)[1]) == 1


def test_the_key_alone_decides_the_draw() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    first = holdout(labels, 0.1, (1990, 1), num_classes=1)[1]

    np.testing.assert_array_equal(first, holdout(labels, 0.1, (1990, 1), num_classes=1)[1])
    assert not np.array_equal(first, holdout(labels, 0.1, (1990, 2), num_classes=1)[1])


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match="at least 0 and below 1"):
        holdout(np.zeros(5), fraction, (0,), num_classes=1)
