"""IID as the paper has it: all learners hold examples of all classes.

A random sample may miss a class where a learner holds few examples. One example is then exchanged
for one of another learner, so sizes stay, and what has all classes already stays as it was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def with_all_classes(
    pieces: Sequence[Ints], labels: NDArray[Any], num_classes: int
) -> tuple[list[Ints], str]:
    """Exchange as few examples as it takes; return what learners hold then, and what could not be.

    A learner with fewer examples than there are classes gets different classes, as far as there
    are examples that others can spare. Nothing random is drawn.
    """
    present = np.flatnonzero(np.bincount(labels, minlength=num_classes))
    counts = np.stack([np.bincount(labels[one], minlength=num_classes) for one in pieces])
    exchange = _Exchange([np.array(one) for one in pieces], labels, counts)
    whole = [k for k, one in enumerate(pieces) if len(one) >= len(present)]
    small = [k for k, one in enumerate(pieces) if len(one) < len(present)]
    # Learners that can hold all classes come first: those with fewer may take any class after.
    for k in whole:
        for label in present[counts[k, present] == 0]:
            exchange.take(k, int(label), small)
    by_supply = present[np.argsort(-counts.sum(axis=0)[present], kind="stable")]
    for k in small:
        for label in by_supply:
            if (counts[k] > 0).sum() == len(pieces[k]):
                break
            if not counts[k, label]:
                exchange.take(k, int(label), ())
    return exchange.pieces, _note(counts, whole, small, present)


class _Exchange:
    """What learners hold, and how many of each class; both change with every exchange."""

    def __init__(self, pieces: list[Ints], labels: NDArray[Any], counts: Ints) -> None:
        self.pieces = pieces
        self._labels = labels
        self._counts = counts

    def take(self, taker: int, label: int, yielding: Sequence[int]) -> None:
        """Give a learner an example of a class, for one of the class it holds most of.

        It comes from the learner with most of that class, who keeps one at least; else from one of
        those that yield their only one. Nothing happens where no learner can spare one.
        """
        of_class = self._counts[:, label]
        giver = int(of_class.argmax())
        if of_class[giver] < 2:
            giver = next((k for k in yielding if of_class[k]), -1)
        if giver < 0:
            return
        back = int(self._counts[taker].argmax())
        mine, theirs = self._last(taker, back), self._last(giver, label)
        self.pieces[taker][mine], self.pieces[giver][theirs] = (
            self.pieces[giver][theirs],
            self.pieces[taker][mine],
        )
        self._counts[taker, [label, back]] += (1, -1)
        self._counts[giver, [label, back]] += (-1, 1)

    def _last(self, learner: int, label: int) -> int:
        return int(np.flatnonzero(self._labels[self.pieces[learner]] == label)[-1])


def _note(counts: Ints, whole: Sequence[int], small: Sequence[int], present: Ints) -> str:
    """Return which learners do not hold all classes and why; nothing where all do."""
    missing = int((counts[whole][:, present] == 0).any(axis=0).sum())
    note = f"; classes with too few examples for all learners: {missing}" if missing else ""
    if small:
        twice = " (some hold a class more than once)" if (counts[small] > 1).any() else ""
        note += f"; learners with fewer examples than there are classes: {len(small)}{twice}"
    return note
