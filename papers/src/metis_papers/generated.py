"""Data of the right shape that is learned in seconds: what `--scale smoke` runs on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metis.data.dataset import Dataset
from metis.data.npz import write_npz

#: Shape of an input, classes of the data it stands for, classes that occur, training examples.
#: Few classes occur, so that even the smallest learner has two examples of one.
SHAPES = {
    "cifar10": ((3, 32, 32), 10, 10, 300),
    "cifar100": ((3, 32, 32), 100, 4, 100),
    "emnist_byclass": ((1, 28, 28), 62, 4, 100),
    "mnist_by_writer": ((1, 28, 28), 10, 10, 200),
}
NUM_TEST = 50
NUM_OWNERS = 20


def generated_file(folder: Path, like: str) -> Path:
    """Return a file of pictures that are bright where their class says, made if not there.

    Its name says what it is, and so do all results made from it.
    """
    path = (folder / f"generated_like_{like}.npz").absolute()
    if not path.is_file():
        write_npz(path, _dataset(like))
    return path


def _dataset(like: str) -> Dataset:
    shape, num_classes, occurring, num_train = SHAPES[like]
    rng = np.random.default_rng(1990)
    patterns = rng.integers(0, 160, size=(occurring, *shape))
    labels = np.arange(num_train + NUM_TEST) % occurring
    noise = rng.integers(0, 96, size=(len(labels), *shape))
    pictures = (patterns[labels] + noise).astype(np.uint8)
    labels[-1] = num_classes - 1  # the last test example, so that a reader counts all classes
    owners = np.arange(num_train) % NUM_OWNERS
    return Dataset(
        f"generated_like_{like}",
        pictures[:num_train],
        labels[:num_train].astype(np.int64),
        pictures[num_train:],
        labels[num_train:].astype(np.int64),
        num_classes,
        owners,
    )
