"""Wrong labels: how many, whose, which, and the same ones every time."""

from __future__ import annotations

import re

import numpy as np
import pytest

from metis.core.errors import ConfigError
from metis.data.dataset import Dataset
from metis.data.mistakes import with_wrong_labels

HELD = [np.arange(k, 40, 4) for k in range(4)]  # ten examples each


def dataset(num_classes: int = 3) -> Dataset:
    labels = np.arange(40) % max(num_classes, 1)
    x = np.zeros((40, 2), np.float32)
    return Dataset("few", x, labels, x, labels, num_classes)


@pytest.mark.parametrize("kind", ["next", "random"])
@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 3), (0.5, 5), (1.0, 10)])
def test_a_share_of_the_labels_of_one_learner_is_wrong(kind: str, share: float, count: int) -> None:
    right = dataset()

    wrong = with_wrong_labels(right, HELD, {2: share}, kind, seed=7)

    changed = np.flatnonzero(wrong.y_train != right.y_train)
    assert len(changed) == count
    assert set(changed) <= set(HELD[2])
    assert set(wrong.y_train) <= {0, 1, 2}
    np.testing.assert_array_equal(right.y_train, np.arange(40) % 3)  # the original is left alone
    np.testing.assert_array_equal(wrong.y_test, right.y_test)
    again = with_wrong_labels(right, HELD, {2: share, 0: 1.0}, kind, seed=7)
    np.testing.assert_array_equal(again.y_train[HELD[2]], wrong.y_train[HELD[2]])


def test_one_mistake_is_made_again_and_again_or_any() -> None:
    right = dataset().y_train[HELD[1]]

    following = with_wrong_labels(dataset(), HELD, {1: 1.0}, "next", seed=7).y_train[HELD[1]]
    any_other = [
        with_wrong_labels(dataset(), HELD, {1: 1.0}, "random", seed).y_train[HELD[1]]
        for seed in range(20)
    ]

    assert following.tolist() == [(label + 1) % 3 for label in right]
    steps = (np.array(any_other) - right) % 3
    assert set(steps.ravel()) == {1, 2}
    assert 70 < (steps == 1).sum() < 130  # of 200, as likely as not


@pytest.mark.parametrize("num_classes", [0, 1])
def test_where_there_are_no_two_classes_nothing_can_be_mixed_up(num_classes: int) -> None:
    message = "partition.wrong_labels: few has no two classes that could be mixed up"
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_wrong_labels(dataset(num_classes), HELD, {0: 0.5}, "next", seed=7)
