"""Labels that are wrong, on purpose: what a federation makes of learners who are mistaken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from metis.core.errors import ConfigError
from metis.data.dataset import Dataset
from metis.data.partition import Ints

_TAG = 6  # keeps this stream apart from every other one drawn from the federation's seed


def with_wrong_labels(
    dataset: Dataset,
    held: Sequence[Ints],
    shares: Mapping[int, float],
    kind: str,
    seed: int,
) -> Dataset:
    """Return the dataset with a share of what some learners hold labelled wrongly.

    `held` is what each learner holds; `shares`, by a learner's position there, how much of it
    (rounded, halves up) is wrong. `next` makes one mistake again and again, class c is called
    c + 1, which a model learns; `random` draws any of the other classes. So wrong labels are wrong
    in what a learner holds out too, and right in the test set.
    """
    if not dataset.num_classes or dataset.num_classes < 2:
        raise ConfigError(
            f"partition.wrong_labels: {dataset.name} has no two classes that could be mixed up"
        )
    labels = dataset.y_train.copy()
    for position, share in shares.items():
        rng = np.random.default_rng((seed, _TAG, position))
        mine = held[position]
        wrong = rng.permutation(mine)[: int(share * len(mine) + 0.5)]
        step = 1 if kind == "next" else rng.integers(1, dataset.num_classes, len(wrong))
        labels[wrong] = (labels[wrong] + step) % dataset.num_classes
    return replace(dataset, y_train=labels)
