"""What each learner trains on, and in which order: all chance of an epoch in one place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metis.core.batches import places_of_epoch, steps_of_epoch
from metis.core.errors import DataError
from metis.core.types import LearnerId
from metis.training.prepare import Preparation

#: Given whose epoch it is, its examples and its chance: their positions in the order of training.
Order = Callable[[LearnerId, NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Share:
    """Which training examples of the dataset a learner holds, and which of them it sets aside."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]  # not trained on before it is released; may be empty
    group: str = "default"

    def released(self) -> Share:
        """Return the share with all of its examples to train on."""
        everything = np.concatenate((self.train, self.validation))
        return Share(everything, self.validation[:0], self.group)


@dataclass(frozen=True, slots=True)
class Epoch:
    """All chance of one epoch: the order of the examples, their augmentation, and torch's seeds."""

    examples: Tensor  # on the CPU, as all of it is
    draws: Tensor
    seeds: list[int]  # one for each mini-batch


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive mini-batches of one epoch."""

    epoch: Epoch
    first: int  # mini-batch within the epoch
    last: int  # not included
    batch_size: int

    @property
    def rows(self) -> slice:
        """Where the examples of these mini-batches are in the epoch."""
        return slice(self.first * self.batch_size, self.last * self.batch_size)

    def sizes(self) -> list[int]:
        """Return the number of examples in each mini-batch."""
        num_examples = len(self.epoch.examples)
        return [
            min(self.batch_size, num_examples - step * self.batch_size)
            for step in range(self.first, self.last)
        ]


class Epochs:
    """The epochs of every learner. Holds no state: the same whenever they are asked for.

    The order of the examples, their augmentation and torch's seed (dropout) follow from the seed,
    the learner, how many tasks it was given before, the epoch and the mini-batch.

    `last_batch` says what becomes of an epoch's last mini-batch where the examples do not fill it.
    `fill`: the first examples of the epoch's order fill it, augmented once more. `short`: it stays
    short. `drop`: it is left out, which leaves out other examples in every epoch. A learner with
    fewer examples than a mini-batch has one mini-batch of all of them, whatever the setting.

    Batch-norm cannot be trained on a single example (`no_single`). Where `short` leaves one, the
    first example of the epoch joins it; `fill` refuses a learner that has only one.
    """

    def __init__(
        self,
        shares: Mapping[LearnerId, Share],
        preparation: Preparation,
        batch_size: int,
        seed: int,
        no_single: bool,
        order: Order,
        last_batch: str = "fill",
    ) -> None:
        self._shares = shares
        self._order = order
        self._preparation = preparation
        self._batch_size = batch_size
        self._seed = seed
        self._no_single = no_single
        self._last_batch = last_batch
        for learner, share in shares.items():
            if len(share.train) == 0:
                raise DataError(f"{learner} has no training examples")
            if len(share.train) == 1 and no_single and last_batch == "fill":
                raise DataError(
                    f"{learner} has one training example; batch-norm needs at least 2 in a batch"
                )

    def num_steps(self, learner: LearnerId) -> int:
        """Return the number of mini-batches in one of the learner's epochs."""
        num_examples = len(self._shares[learner].train)
        return steps_of_epoch(num_examples, self._batch_size, self._last_batch)

    def last_batch(self, learner: LearnerId) -> int:
        """Return the number of examples in the last mini-batch of the learner's epochs."""
        return self._places(learner) - (self.num_steps(learner) - 1) * self._batch_size

    def _places(self, learner: LearnerId) -> int:
        """Return how many examples the mini-batches of one epoch hold together."""
        num_examples = len(self._shares[learner].train)
        return places_of_epoch(num_examples, self._batch_size, self._last_batch, self._no_single)

    def stretches(
        self, learner: LearnerId, ordinal: int, first: int, num_steps: int
    ) -> Iterator[Stretch]:
        """Give the mini-batches of a task from `first` on, epoch by epoch."""
        steps_per_epoch = self.num_steps(learner)
        number, end = first, first + num_steps
        while number < end:
            epoch, step = divmod(number, steps_per_epoch)
            last = min(steps_per_epoch, step + end - number)
            yield Stretch(self.epoch(learner, ordinal, epoch), step, last, self._batch_size)
            number += last - step

    def epoch(self, learner: LearnerId, ordinal: int, number: int) -> Epoch:
        """Return what chance decides for one epoch of a learner's task."""
        train = self._shares[learner].train
        rng = np.random.default_rng([self._seed, _stable_hash(learner), ordinal, number])
        order = self._order(learner, train, rng)
        draws = self._preparation.draw(rng, len(train))
        seeds = rng.integers(2**63, size=self.num_steps(learner), dtype=np.uint64)
        places = self._places(learner)
        order, draws = order[:places], draws[:places]
        missing = places - len(order)
        if missing:
            again = draws[:missing]
            if self._last_batch == "fill":
                # Drawn after all others, so that the other settings have the same chance.
                again = self._preparation.draw(rng, missing)
            order = np.append(order, order[:missing])
            draws = np.concatenate((draws, again))
        return Epoch(
            examples=torch.from_numpy(np.asarray(train, dtype=np.int64)[order]),
            draws=torch.from_numpy(draws),
            seeds=seeds.tolist(),
        )


def order_of(shuffle_buffer: int | None, labels: NDArray[Any]) -> Order:
    """Return how epochs are ordered: all at random, or class by class through a small buffer."""
    if shuffle_buffer is None:
        return _shuffled
    return ClassByClass(labels, shuffle_buffer)


def _shuffled(
    learner: LearnerId, train: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    return rng.permutation(len(train))


@dataclass(frozen=True, slots=True)
class ClassByClass:
    """Examples lie sorted by class and are read through a shuffle buffer, as input pipelines do.

    A learner with no more examples than the buffer holds still sees them in random order; a large
    one sees one class after the other. Each has an order of classes of its own, always the same.
    """

    labels: NDArray[Any]
    buffer: int

    def __call__(
        self, learner: LearnerId, train: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        classes, which = np.unique(self.labels[train], return_inverse=True)
        ranks = np.random.default_rng(_stable_hash(learner)).permutation(len(classes))
        by_class = np.argsort(ranks[which], kind="stable")
        return by_class[_through_buffer(len(train), self.buffer, rng)]


def _through_buffer(count: int, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return 0 to count - 1 in the order in which a shuffle buffer lets them out."""
    size = min(size, count)
    held = list(range(size))
    out = []
    for newcomer, place in enumerate(rng.integers(size, size=count - size).tolist(), start=size):
        out.append(held[place])
        held[place] = newcomer
    return np.array(out + rng.permutation(held).tolist(), dtype=np.int64)


def _stable_hash(learner: LearnerId) -> int:
    """Return the same number for a name in every process, which Python's own hash does not."""
    return int.from_bytes(hashlib.sha256(learner.encode()).digest()[:8], "little")
