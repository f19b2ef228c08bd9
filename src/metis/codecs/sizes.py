"""What a ternary packet should take, by formula: the paper's, and ours with everything counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metis.codecs.bits import Coding, rice_bits
from metis.codecs.joined import Indices, joined
from metis.codecs.packet import HEADER
from metis.codecs.selection import rounded
from metis.codecs.ternary import BODY
from metis.core.types import Layout


def index_bits(count: int) -> int:
    """Return the paper's width of an index into so many: 1 + floor(log2(count))."""
    return count.bit_length()


@dataclass(frozen=True, slots=True)
class Kept:
    """What an update keeps, as far as its length depends on it."""

    in_kernels: int  # weights
    kernels: int  # in which those lie
    cells: int  # of these kernels
    named: int  # weights outside of kernels


def kept(layout: Layout, at: Indices) -> Kept:
    """Count what lies at these places among the joined weights, ascending."""
    shape = joined(layout)
    mapped = shape.are_in_kernels(at)
    in_kernels, in_none = at[mapped], at[~mapped]
    numbers = np.unique(shape.kernel_of(in_kernels))
    cells = int(shape.kernel_cells(numbers).sum())
    return Kept(len(in_kernels), len(numbers), cells, len(in_none))


# ---- our own packets --------------------------------------------------------------------------


def stc_bytes(layout: Layout, num_kept: int, coding: Coding) -> float:
    """Return the length of a packet without kernel maps, positions taken as random.

    With fixed widths it is an upper bound: an index is as wide as the paper counts it, where a
    packet has gaps.
    """
    shape = joined(layout)
    bits = _named_bits(num_kept, shape.num_weights, coding)
    return _fixed_bytes(shape.num_exact) + bits / 8


def sstc_bytes(layout: Layout, what: Kept, coding: Coding) -> float:
    """Return the length of a packet with kernel maps; kept kernels taken as random."""
    shape = joined(layout)
    bits = _named_bits(what.named, shape.num_dense, coding)
    if coding == "fixed":
        bits += what.kernels * index_bits(shape.num_kernels) + 2 * what.cells
    else:
        density = what.kernels / shape.num_kernels if shape.num_kernels else 0.0
        bits += what.kernels * rice_bits(density) + what.cells + what.in_kernels
    return _fixed_bytes(shape.num_exact) + bits / 8


def _fixed_bytes(num_exact: int) -> float:
    """Header, body, and everything that is not a weight."""
    return HEADER.size + BODY.size + 4 * num_exact


def _named_bits(count: int, places: int, coding: Coding) -> float:
    """Gaps and signs of weights that are named one by one."""
    if not count:
        return 0.0
    gap = index_bits(places) if coding == "fixed" else rice_bits(count / places)
    return count * (gap + 1)


# ---- the paper's, for convolution kernels alone -----------------------------------------------


def paper_stc_ratio(layout: Layout, num_in_kernels: int) -> float:
    """Return how much shorter STC makes the kernels' part: an index each, signs not counted."""
    shape = joined(layout)
    weights = shape.num_weights - shape.num_dense
    return 32 * weights / (num_in_kernels * index_bits(weights))


def paper_sstc_ratio(layout: Layout, share: float, bits: int | None = None) -> float:
    """Return how much shorter SSTC makes the kernels' part: an index and a map for each kernel.

    `bits` of an index are 1 + floor(log2(kernels)) unless given; the paper's 104x takes 11 where
    that gives 12. Kernels of several sizes are taken to be kept alike.
    """
    shape = joined(layout)
    weights = shape.num_weights - shape.num_dense
    width = index_bits(shape.num_kernels) if bits is None else bits
    cells = weights / shape.num_kernels
    return 32 * weights / (rounded(share, shape.num_kernels) * (width + 2 * cells))


def paper_gain(num_kernels: int, num_in_kernels: int, layout: Layout) -> float:
    """Return how many times shorter so many kernel maps are than so many indices: equation 1.

    Of convolutions alone, like all of the paper's; its Figure 3c has it as the upper axis.
    """
    shape = joined(layout)
    weights = shape.num_weights - shape.num_dense
    cells = weights / shape.num_kernels
    maps = num_kernels * (index_bits(shape.num_kernels) + 2 * cells)
    return num_in_kernels * index_bits(weights) / maps


def sstc_pays(num_kernels: int, num_in_kernels: int, layout: Layout) -> bool:
    """Whether so many kernel maps are shorter than so many indices (the paper's equation 2)."""
    return num_kernels < most_kernels(num_in_kernels, layout)


def most_kernels(num_in_kernels: int, layout: Layout) -> float:
    """Return the number of kernels from which on so many indices are not longer than their maps."""
    shape = joined(layout)
    weights = shape.num_weights - shape.num_dense
    cells = weights / shape.num_kernels
    return num_in_kernels * index_bits(weights) / (2 * cells + index_bits(shape.num_kernels))


# ---- the three figures of an update -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Smaller:
    """How many times smaller an update gets, counted in the three ways that are reported."""

    convolutions: float | None  # by the paper's formula; None: there are none, or none is kept
    model: float  # the whole of it, by formula: fixed widths, exact values and header counted
    wire: float  # by the bytes of a real packet


def smaller(layout: Layout, at: Indices, share: float | None, num_bytes: int) -> Smaller:
    """Return the three figures of a packet that keeps the weights at these joined places.

    `share` is that of kernels, None for STC. A dense update has four bytes for each value.
    """
    what, shape = kept(layout, at), joined(layout)
    convolutions = None
    if share is None:
        formula = stc_bytes(layout, len(at), "fixed")
        if what.in_kernels:
            convolutions = paper_stc_ratio(layout, what.in_kernels)
    else:
        formula = sstc_bytes(layout, what, "fixed")
        if rounded(share, shape.num_kernels):
            convolutions = paper_sstc_ratio(layout, share)
    whole = 4 * layout.size
    return Smaller(convolutions, whole / formula, whole / num_bytes)
