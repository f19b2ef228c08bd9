"""A model as codecs see it: weights, which are compressed, and the rest, which travels exactly.

Weights are all tensors of kind `conv` and `dense`, joined in the order of the layout; an index of
a packet counts in there. A kernel is what one filter does to one input channel: a run of
neighbouring cells of a `conv` tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import ModelError
from metis.core.kernels import all_finite
from metis.core.types import Layout, Vector

Indices = NDArray[np.int64]
Span = tuple[int, int]  # from, to


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one tensor: so many, each with so many cells, from a place on."""

    start: int  # among the joined weights
    count: int
    cells: int


@dataclass(frozen=True, slots=True)
class JoinedLayout:
    """Where weights and the rest lie in a vector. Made by `joined`."""

    weights: tuple[Span, ...]  # in the vector; neighbours are one
    exact: tuple[Span, ...]
    num_weights: int
    num_exact: int
    tensors: tuple[tuple[str, Span], ...]  # each weight tensor, by name, among the joined weights
    kernels: tuple[Kernels, ...]
    num_kernels: int
    dense: tuple[Span, ...]  # weights that are in no kernel, among the joined weights
    num_dense: int

    def difference(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> NDArray[np.float32]:
        """Return what has become of the weights, joined, and what was left out before added to it.

        ModelError unless all is finite.
        """
        found = np.empty(self.num_weights, dtype=np.float32)
        at = 0
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            for start, stop in self.weights:
                part = found[at : at + stop - start]
                np.subtract(weights[start:stop], base[start:stop], out=part)
                at += stop - start
            if residual is not None:
                found += residual
        values = self.exact_values(weights)
        if not (all_finite(found) and all_finite(values)):
            raise ModelError("the update holds values that are not finite; it cannot be packed")
        return found

    def exact_values(self, weights: Vector) -> Vector:
        """Return what travels exactly, joined."""
        return _gather(weights, self.exact)

    def places(self, indices: Indices) -> Indices:
        """Return where weights lie in the vector, by their index among the joined."""
        return _moved(indices, self.weights)

    def indices(self, places: Indices) -> Indices:
        """Return the joined index of the weights at these places; the inverse of `places`."""
        return _moved_back(places, self.weights)

    def dense_indices(self, positions: Indices) -> Indices:
        """Return the joined index of the n-th weight that is in no kernel."""
        return _moved(positions, self.dense)

    def dense_positions(self, indices: Indices) -> Indices:
        """Return which of the weights in no kernel these are; the inverse of `dense_indices`."""
        return _moved_back(indices, self.dense)

    def kernel_starts(self, numbers: Indices) -> Indices:
        """Return the joined index of the first cell of each kernel."""
        starts = np.empty(len(numbers), dtype=np.int64)
        for chosen, first, group in self._by_tensor(numbers):
            starts[chosen] = group.start + (numbers[chosen] - first) * group.cells
        return starts

    def kernel_cells(self, numbers: Indices) -> Indices:
        """Return how many cells each kernel has."""
        cells = np.empty(len(numbers), dtype=np.int64)
        for chosen, _, group in self._by_tensor(numbers):
            cells[chosen] = group.cells
        return cells

    def _by_tensor(self, numbers: Indices) -> list[tuple[slice, int, Kernels]]:
        """Divide ascending kernel numbers by the tensor they belong to."""
        found, first = [], 0
        for group in self.kernels:
            low, high = np.searchsorted(numbers, [first, first + group.count])
            found.append((slice(int(low), int(high)), first, group))
            first += group.count
        return found

    def are_in_kernels(self, indices: Indices) -> NDArray[np.bool_]:
        """Say for each of these ascending joined indices whether it lies in a kernel."""
        in_kernel = np.zeros(len(indices), dtype=bool)
        for group in self.kernels:
            bounds = [group.start, group.start + group.count * group.cells]
            low, high = np.searchsorted(indices, bounds)
            in_kernel[low:high] = True
        return in_kernel

    def kernel_of(self, indices: Indices) -> Indices:
        """Return the kernel in which each of these ascending joined indices lies."""
        numbers, first = [np.zeros(0, dtype=np.int64)], 0
        for group in self.kernels:
            bounds = [group.start, group.start + group.count * group.cells]
            low, high = np.searchsorted(indices, bounds)
            numbers.append(first + (indices[low:high] - group.start) // group.cells)
            first += group.count
        return np.concatenate(numbers)


@lru_cache(maxsize=16)
def joined(layout: Layout) -> JoinedLayout:
    """Return how a layout divides into weights and the rest."""
    weights: list[Span] = []
    exact: list[Span] = []
    tensors: list[tuple[str, Span]] = []
    kernels: list[Kernels] = []
    dense: list[Span] = []
    at = 0
    for tensor in layout.tensors:
        span = (tensor.offset, tensor.offset + tensor.size)
        if tensor.kind not in ("conv", "dense"):
            _extend(exact, span)
            continue
        _extend(weights, span)
        tensors.append((tensor.name, (at, at + tensor.size)))
        if tensor.kind == "conv" and tensor.size:
            count = tensor.shape[0] * tensor.shape[1]
            kernels.append(Kernels(at, count, tensor.size // count))
        else:
            _extend(dense, (at, at + tensor.size))
        at += tensor.size
    return JoinedLayout(
        weights=tuple(weights),
        exact=tuple(exact),
        num_weights=at,
        num_exact=layout.size - at,
        tensors=tuple(tensors),
        kernels=tuple(kernels),
        num_kernels=sum(group.count for group in kernels),
        dense=tuple(dense),
        num_dense=sum(stop - start for start, stop in dense),
    )


def _extend(spans: list[Span], span: Span) -> None:
    """Add a span; one that follows on the last becomes part of it."""
    if spans and spans[-1][1] == span[0]:
        span = (spans.pop()[0], span[1])
    if span[0] < span[1]:
        spans.append(span)


def _gather(weights: Vector, spans: Sequence[Span]) -> Vector:
    parts = [weights[start:stop] for start, stop in spans]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


def _moved(positions: Indices, spans: Sequence[Span]) -> Indices:
    """Return where ascending positions in joined spans lie outside."""
    found = np.empty_like(positions)
    at = low = 0
    for start, stop in spans:
        high = int(np.searchsorted(positions, at + stop - start))
        np.add(positions[low:high], start - at, out=found[low:high])
        at, low = at + stop - start, high
    return found


def _moved_back(indices: Indices, spans: Sequence[Span]) -> Indices:
    found = np.empty_like(indices)
    at = low = 0
    for start, stop in spans:
        high = int(np.searchsorted(indices, stop))
        np.subtract(indices[low:high], start - at, out=found[low:high])
        at, low = at + stop - start, high
    return found
