"""Which weights an update keeps: the largest magnitudes, and before that the largest kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.codecs.joined import Indices, JoinedLayout, Kernels

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


def kept_kernels(
    magnitudes: NDArray[np.float32], shape: JoinedLayout, count: int
) -> NDArray[np.bool_]:
    """Return for each kernel whether it is among so many with the largest mean magnitude.

    Of equals the first are kept, as are kernels of zeros if there are no others.
    """
    kept = np.zeros(shape.num_kernels, dtype=bool)
    if not count:
        return kept
    scores = [_means(_cells(magnitudes, group)) for group in shape.kernels]
    candidates = _promising(scores, count, shape.num_kernels)
    values = np.concatenate(
        [found[chosen] for found, chosen in zip(scores, candidates, strict=True)], dtype=np.float64
    )
    starts = np.cumsum([0, *(group.count for group in shape.kernels[:-1])])
    numbers = np.concatenate(
        [start + chosen for start, chosen in zip(starts, candidates, strict=True)]
    )
    kept[numbers[_first_largest(values, count)]] = True
    return kept


def _cells(magnitudes: NDArray[np.float32], group: Kernels) -> NDArray[np.float32]:
    """Return the kernels of one tensor as rows, not copied."""
    part = magnitudes[group.start : group.start + group.count * group.cells]
    return part.reshape(group.count, group.cells)


def _means(cells: NDArray[np.float32]) -> NDArray[Any]:
    if cells.shape[1] == 1:  # as most are in a deep network; exact as it is
        return cells[:, 0]
    means: NDArray[Any] = cells.mean(axis=1, dtype=np.float64)
    return means


def _promising(scores: Sequence[NDArray[Any]], count: int, size: int) -> list[Indices]:
    """Return of each list a few more than the wanted: all that are no smaller than some value."""
    stride = max(1, size // _SAMPLE)
    sample = np.concatenate([found[::stride] for found in scores], dtype=np.float64)
    guess = _about(sample, count, size)
    candidates = [np.flatnonzero(found >= guess) for found in scores]
    if sum(map(len, candidates)) >= count:
        return candidates
    return [np.arange(len(found)) for found in scores]


def _first_largest(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Return which are the largest, so many of them; of equals the first."""
    if count >= len(values):
        return np.ones(len(values), dtype=bool)
    last = np.partition(values, len(values) - count)[len(values) - count]
    keep: NDArray[np.bool_] = values > last
    ties = np.flatnonzero(values == last)[: count - int(keep.sum())]
    keep[ties] = True
    return keep


def blank_kernels(
    magnitudes: NDArray[np.float32], shape: JoinedLayout, kept: NDArray[np.bool_]
) -> None:
    """Set to zero what lies in kernels that are not kept, in place."""
    first = 0
    for group in shape.kernels:
        cells = _cells(magnitudes, group)
        cells *= kept[first : first + group.count, None]
        first += group.count


def _candidates(magnitudes: NDArray[np.float32], count: int) -> Indices:
    """Return a few more than the wanted: all that are no smaller than some value above zero."""
    size = len(magnitudes)
    guess = _about(magnitudes[:: max(1, size // _SAMPLE)], count, size)
    if guess > 0.0:
        found = np.flatnonzero(magnitudes >= guess)
        if len(found) >= count:
            return found
    return np.flatnonzero(magnitudes)


def _about(sample: NDArray[Any], count: int, size: int) -> float:
    """Return a value that is likely to be a bit smaller than the largest; zero if that is hard."""
    wanted = count / size * len(sample) if size else 0.0
    rank = int(wanted + 4.0 * math.sqrt(wanted) + 4.0)
    if rank >= len(sample) // 2:
        return 0.0
    return float(np.partition(sample, len(sample) - rank)[len(sample) - rank])
