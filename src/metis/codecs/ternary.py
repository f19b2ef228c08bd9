"""Sparse ternary compression: few of an update's weights, and of those only the sign.

STC (Sattler et al. 2019) keeps the share p of all weights that changed most and sends sign * mu,
mu their mean magnitude. SSTC (Mora et al. 2022) first keeps the share f of all convolution kernels
that changed most, then looks for the weights only there and in layers without kernels; so it can
name kernels instead of single weights. With f = 1 both keep the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metis.codecs.bits import (
    CODINGS,
    Coding,
    read_ascending,
    read_flags,
    write_flags,
    write_shortest,
)
from metis.codecs.joined import Indices, JoinedLayout, joined
from metis.codecs.packet import Reader, as_bytes, seal, unseal
from metis.codecs.selection import blank_kernels, kept_kernels, largest, rounded
from metis.codecs.settings import SHORTEST
from metis.core.errors import ModelError
from metis.core.types import Layout, Sparse, Vector

#: form of the kernel maps, coding of kernel and of weight indices, mu, p, f (zero for STC),
#: number of weights that are named one by one.
BODY = struct.Struct("<BBBxfffI")
_KERNELS = struct.Struct("<I")  # number of kernels

#: Forms of kernel maps: none at all; a bit for each cell and a sign for each that is kept; or two
#: bits for each cell, as in the paper.
NO_MAPS, SHORT_MAPS, PAPER_MAPS = range(3)


@dataclass(frozen=True, slots=True)
class Ternary:
    """STC, or SSTC if a share of kernels is given. The base is what the learner started from."""

    layout: Layout
    sparsity: float  # p
    kernels: float | None = None  # f; None: STC
    of_kept: bool = False  # p of what the kept kernels leave, not of all weights
    coding: str = SHORTEST  # or one of `bits.CODINGS`
    error_feedback: bool = False
    needs_base: bool = True

    @property
    def name(self) -> str:
        return "stc" if self.kernels is None else "sstc"

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        """Return the packet of a model, and what was left out if that is to be made up for.

        `residual` is what was left out before. ModelError if anything is not finite.
        """
        shape = joined(self.layout)
        change = shape.difference(weights, base, residual if self.error_feedback else None)
        at = self.keep(change)
        values = change[at]
        mu = np.float32(np.abs(values).mean(dtype=np.float64)) if len(at) else np.float32(0.0)
        minus = values < 0
        packet = self._shortest(shape, at, minus, mu, shape.exact_values(weights))
        if not self.error_feedback:
            return packet, None
        change[at] -= np.where(minus, -mu, mu)
        return packet, change

    def keep(self, change: NDArray[np.float32]) -> Indices:
        """Return which of the joined weights are kept, ascending."""
        shape = joined(self.layout)
        magnitudes = np.abs(change)
        candidates = shape.num_weights
        if self.kernels is not None and self.kernels < 1.0:
            kept = kept_kernels(magnitudes, shape, rounded(self.kernels, shape.num_kernels))
            blank_kernels(magnitudes, shape, kept)
            if self.of_kept:
                cells = shape.kernel_cells(np.arange(shape.num_kernels))
                candidates = shape.num_dense + int(cells[kept].sum())
        return largest(magnitudes, rounded(self.sparsity, candidates))

    def decode(self, packet: bytes | memoryview, base: Vector) -> Sparse:
        """Return the model inside, as a change of its base; ModelError if it is not one of ours."""
        shape = joined(self.layout)
        reader = unseal(packet, self.name, self.layout)
        body = read_body(reader, self.name)
        mu, num_named, coding = body.mu, body.num_named, body.index_coding
        values = reader.array("<f4", shape.num_exact).astype(np.float32)
        if body.maps == NO_MAPS:
            at = read_ascending(reader, num_named, shape.num_weights, coding)
            minus = read_flags(reader, num_named)
        else:
            at, minus = _read_kernels(reader, shape, body)
            named = shape.dense_indices(read_ascending(reader, num_named, shape.num_dense, coding))
            at, minus = _merged(at, minus, named, read_flags(reader, num_named))
        reader.end()
        return Sparse(
            base=base,
            at=shape.places(at),
            by=np.where(minus, -mu, mu).astype(np.float32),
            spans=shape.exact,
            values=values,
        )

    def _shortest(
        self,
        shape: JoinedLayout,
        at: Indices,
        minus: NDArray[np.bool_],
        mu: np.float32,
        exact: Vector,
    ) -> bytes:
        """Return the packet with kernel maps or without, whichever is shorter.

        Maps pay where few kernels hold most of what is kept. The paper's coding always has them.
        """
        if self.kernels is None:
            return self._pack(shape, at, minus, mu, exact, NO_MAPS)
        if self.coding == "fixed":
            return self._pack(shape, at, minus, mu, exact, PAPER_MAPS)
        mapped = self._pack(shape, at, minus, mu, exact, SHORT_MAPS)
        plain = self._pack(shape, at, minus, mu, exact, NO_MAPS)
        return mapped if len(mapped) <= len(plain) else plain

    def _pack(
        self,
        shape: JoinedLayout,
        at: Indices,
        minus: NDArray[np.bool_],
        mu: np.float32,
        exact: Vector,
        maps: int,
    ) -> bytes:
        parts: list[bytes | memoryview] = [as_bytes(exact, "<f4")]
        named, named_minus, kernel_coding = at, minus, 0
        if maps != NO_MAPS:
            mapped = shape.are_in_kernels(at)
            in_kernels, in_none = at[mapped], at[~mapped]
            numbers = _each_once(shape.kernel_of(in_kernels))
            coding, index = write_shortest(numbers, self.coding)
            kernel_coding = CODINGS[coding]
            parts += [_KERNELS.pack(len(numbers)), *index]
            parts += _maps(shape, numbers, in_kernels, minus[mapped], maps)
            named, named_minus = shape.dense_positions(in_none), minus[~mapped]
        coding, index = write_shortest(named, self.coding)
        parts += [*index, write_flags(named_minus)]
        shares = self.sparsity, self.kernels or 0.0
        body = BODY.pack(maps, kernel_coding, CODINGS[coding], mu, *shares, len(named))
        return seal(self.name, self.layout, [body, *parts])


def _maps(
    shape: JoinedLayout, numbers: Indices, at: Indices, minus: NDArray[np.bool_], form: int
) -> list[bytes]:
    """Return a map of each kernel: which of its cells are kept, and with which sign."""
    starts, ends = _cell_ranges(shape, numbers)
    cells = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=bool)
    inside = np.searchsorted(starts, at, side="right") - 1
    positions = ends[inside] - shape.kernel_cells(numbers)[inside] + at - starts[inside]
    cells[positions] = True
    if form == SHORT_MAPS:
        return [write_flags(cells), write_flags(minus)]
    signs = np.zeros(len(cells), dtype=bool)
    signs[positions] = minus
    return [write_flags(np.stack([signs, cells & ~signs], axis=1).reshape(-1))]


def _read_kernels(
    reader: Reader, shape: JoinedLayout, body: Body
) -> tuple[Indices, NDArray[np.bool_]]:
    (num_kernels,) = reader.numbers(_KERNELS)
    numbers = read_ascending(reader, num_kernels, shape.num_kernels, body.kernel_coding)
    starts, ends = _cell_ranges(shape, numbers)
    num_cells = int(ends[-1]) if num_kernels else 0
    if body.maps == PAPER_MAPS:
        pairs = read_flags(reader, 2 * num_cells).reshape(num_cells, 2)
        if pairs.all(axis=1).any():
            raise ModelError("packet has a cell that is plus and minus at once")
        positions = np.flatnonzero(pairs.any(axis=1))
        minus = pairs[positions, 0]
    else:
        positions = np.flatnonzero(read_flags(reader, num_cells))
        minus = read_flags(reader, len(positions))
    inside = np.searchsorted(ends, positions, side="right")
    first = ends[inside] - shape.kernel_cells(numbers)[inside]
    return starts[inside] + positions - first, minus


@dataclass(frozen=True, slots=True)
class Body:
    """What a ternary packet says before its parts."""

    maps: int  # their form
    kernel_coding: Coding
    index_coding: Coding
    mu: np.float32
    sparsity: float
    kernels: float
    num_named: int


def read_body(reader: Reader, codec: str) -> Body:
    """Read what a packet of this ternary codec begins with."""
    maps, kernel_coding, index_coding, mu, sparsity, kernels, num_named = reader.numbers(BODY)
    codings: dict[int, Coding] = {number: coding for coding, number in CODINGS.items()}
    for number in (kernel_coding, index_coding):
        if number not in codings:
            raise ModelError(f"packet has coding number {number}; known are 0 to {max(codings)}")
    if maps > PAPER_MAPS or (maps != NO_MAPS and codec != "sstc"):
        raise ModelError(f"packet of codec {codec} has kernel maps of form {maps}")
    if not 0.0 <= mu < np.inf:
        raise ModelError(f"packet has mu = {mu}; it must be finite and not negative")
    if not (0.0 <= sparsity <= 1.0 and 0.0 <= kernels <= 1.0):
        raise ModelError(f"packet has p = {sparsity} and f = {kernels}; both are shares")
    return Body(
        maps,
        codings[kernel_coding],
        codings[index_coding],
        np.float32(mu),
        sparsity,
        kernels,
        num_named,
    )


def _each_once(ascending: Indices) -> Indices:
    return ascending[np.diff(ascending, prepend=-1) > 0]


def _cell_ranges(shape: JoinedLayout, numbers: Indices) -> tuple[Indices, Indices]:
    """Return where each kernel begins among the joined weights, and where its map ends."""
    return shape.kernel_starts(numbers), np.cumsum(shape.kernel_cells(numbers))


def _merged(
    at: Indices, minus: NDArray[np.bool_], more: Indices, more_minus: NDArray[np.bool_]
) -> tuple[Indices, NDArray[np.bool_]]:
    """Return two ascending lists as one."""
    both = np.concatenate([at, more])
    order = np.argsort(both, kind="stable")
    return both[order], np.concatenate([minus, more_minus])[order]
