"""Which weights an update keeps: the largest magnitudes, and before that the largest kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.codecs.joined import Indices, Joined

_SAMPLE = 1 << 16  # values looked at to guess where the largest begin


def rounded(share: float, count: int) -> int:
    """Return that share of a count, rounded half up."""
    return math.floor(share * count + 0.5)


def largest(magnitudes: NDArray[np.float32], count: int) -> Indices:
    """Return where the largest lie, ascending; of equals the first. Zeros are never among them.

    Exact, but fast: a sample says about how large they are, and only what is no smaller is sorted.
    """
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    candidates = _candidates(magnitudes, count)
    values = magnitudes[candidates]
    chosen: Indices = candidates[_first_largest(values, count)]
    return chosen


def kept_kernels(magnitudes: NDArray[np.float32], shape: Joined, count: int) -> NDArray[np.bool_]:
    """Return for each kernel whether it is among so many with the largest mean magnitude.

    Of equals the first are kept, as are kernels of zeros if there are no others.
    """
    means = [
        magnitudes[group.start : group.start + group.count * group.cells]
        .reshape(group.count, group.cells)
        .mean(axis=1, dtype=np.float64)
        for group in shape.kernels
    ]
    kept = np.zeros(shape.num_kernels, dtype=bool)
    if count:
        kept[_first_largest(np.concatenate(means), count)] = True
    return kept


def _first_largest(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Return which are the largest, so many of them; of equals the first."""
    if count >= len(values):
        return np.ones(len(values), dtype=bool)
    last = np.partition(values, len(values) - count)[len(values) - count]
    keep: NDArray[np.bool_] = values > last
    ties = np.flatnonzero(values == last)[: count - int(keep.sum())]
    keep[ties] = True
    return keep


def blank_kernels(magnitudes: NDArray[np.float32], shape: Joined, kept: NDArray[np.bool_]) -> None:
    """Set to zero what lies in kernels that are not kept, in place."""
    first = 0
    for group in shape.kernels:
        cells = magnitudes[group.start : group.start + group.count * group.cells]
        cells.reshape(group.count, group.cells)[~kept[first : first + group.count]] = 0.0
        first += group.count


def _candidates(magnitudes: NDArray[np.float32], count: int) -> Indices:
    """Return a few more than the wanted: all that are no smaller than some value above zero."""
    size = len(magnitudes)
    if size > 4 * _SAMPLE:
        sample = magnitudes[:: size // _SAMPLE]
        wanted = count / size * len(sample)
        rank = int(wanted + 4.0 * math.sqrt(wanted) + 4.0)
        if rank < len(sample) // 2:
            guess = np.partition(sample, len(sample) - rank)[len(sample) - rank]
            if guess > 0.0:
                found = np.flatnonzero(magnitudes >= guess)
                if len(found) >= count:
                    return found
    return np.flatnonzero(magnitudes)
