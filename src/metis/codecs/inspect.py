"""What a packet holds, in numbers and layer by layer; and what ternary packets leave of a change.

A layout is not in a packet, so whoever wants to know of tensors must have it from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metis.codecs.bits import Coding, read_ascending, read_flags
from metis.codecs.choose import reader_of
from metis.codecs.joined import Indices, joined
from metis.codecs.packet import FORMAT, HEADER, Reader, read_header, unseal
from metis.codecs.sizes import Smaller, kept, smaller
from metis.codecs.ternary import NO_MAPS, PAPER_MAPS, Body, Ternary, read_body
from metis.core.types import Kind, Layout, Sparse, TensorSpec, Vector

#: The cells of a layer's kernels: one column per kernel, one row per cell.
Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorPart:
    """What a packet tells of one tensor."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    size: int
    kept: int | None  # weights that the packet changes; None: its values are there exactly
    kernels: int  # of a convolution
    kernels_touched: int  # in which a weight changes
    exact_bytes: int


@dataclass(frozen=True, slots=True)
class TernarySettings:
    """What a ternary packet says before its parts. Shares and mu are float32 in there."""

    sparsity: float  # p
    kernels: float | None  # f; None: STC
    maps: str  # of kernels: none, short or paper
    kernel_coding: Coding | None  # of which kernels have a map
    index_coding: Coding  # of weights that are named one by one
    mu: float
    num_named: int  # weights that are named one by one, not by the map of their kernel


@dataclass(frozen=True, slots=True)
class Details:
    """What a packet holds by a layout. `parts` are bytes by what they are for, in order."""

    num_weights: int
    kept: int  # of those: all that the packet changes
    parts: dict[str, int]
    tensors: tuple[TensorPart, ...]
    bits_per_index: float | None  # of a weight that is named; ternary packets only, as are these
    bits_per_kernel: float | None  # its number and its map
    bits_per_weight: float | None  # over all that are kept: place and sign


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of a packet; `details` only if its layout is."""

    codec: str
    format: int
    layout_digest: str
    num_bytes: int
    num_values: int
    ratio: float  # of four bytes for each value to what there is
    ternary: TernarySettings | None
    details: Details | None


def describe(packet: bytes, layout: Layout | None) -> Description:
    """Return what a packet holds. ModelError if it is damaged, or not of this layout."""
    header = read_header(packet)
    settings = None
    if header.codec in ("stc", "sstc"):
        settings = _settings(header.codec, read_body(Reader(packet, HEADER.size), header.codec))
    return Description(
        codec=header.codec,
        format=FORMAT,
        layout_digest=header.layout_digest,
        num_bytes=len(packet),
        num_values=header.num_values,
        ratio=4 * header.num_values / len(packet),
        ternary=settings,
        details=None if layout is None else _details(packet, layout, header.codec),
    )


def signs(packet: bytes, layout: Layout) -> dict[str, Matrix]:
    """Return for each convolution which cells of its kernels grow (1) and which shrink (-1).

    There is nothing to tell of a dense packet: it holds a model, not what has changed.
    """
    sent = np.zeros(layout.size, dtype=np.float32)
    at, by = _changes(packet, layout, read_header(packet).codec)
    sent[at] = np.sign(by)
    return {t.name: kernel_matrix(sent, t) for t in layout.tensors if t.kind == "conv" and t.size}


def kernel_matrix(weights: Vector, tensor: TensorSpec) -> Matrix:
    """Return the kernels of a convolution as columns."""
    part = weights[tensor.offset : tensor.offset + tensor.size]
    return part.reshape(_num_kernels(tensor), -1).T


# ---- what a change becomes --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Approximation:
    """What a ternary codec makes of a change. Errors are those of all weights together."""

    codec: str
    kept: int
    bytes_shortest: int
    bytes_fixed: int  # the paper's coding
    cosine: float | None  # of the angle between the change and what is sent; None if one is zero
    relative_error: float | None  # length of what is left out by that of the change
    kept_in_kernels: int  # of convolutions
    smaller: Smaller  # by both formulas, and by the shortest packet
    sent: Vector  # the change as it is decoded, in the order of the layout


def weight_change(trained: Vector, base: Vector, layout: Layout) -> Vector:
    """Return what has become of the weights; zero where values travel exactly."""
    change = np.zeros(layout.size, dtype=np.float32)
    for start, stop in joined(layout).weights:
        np.subtract(trained[start:stop], base[start:stop], out=change[start:stop])
    return change


def approximations(
    trained: Vector, base: Vector, layout: Layout, sparsity: float, kernels: float
) -> tuple[Approximation, Approximation]:
    """Return what STC and SSTC make of a change, by packing and unpacking it."""
    stc, sstc = (approximation(trained, base, layout, sparsity, f) for f in (None, kernels))
    return stc, sstc


def approximation(
    trained: Vector, base: Vector, layout: Layout, sparsity: float, kernels: float | None
) -> Approximation:
    """Return what SSTC makes of a change with a share of kernels, or STC without one."""
    change = weight_change(trained, base, layout)
    shortest = Ternary(layout, sparsity, kernels)
    fixed = Ternary(layout, sparsity, kernels, coding="fixed")
    packet, _ = shortest.encode(trained, base)
    decoded = shortest.decode(packet, base)
    sent = np.zeros(layout.size, dtype=np.float32)
    sent[decoded.at] = decoded.by
    cosine, error = _nearness(change, sent)
    at = joined(layout).indices(decoded.at)
    return Approximation(
        codec=shortest.name,
        kept=len(decoded.at),
        bytes_shortest=len(packet),
        bytes_fixed=len(fixed.encode(trained, base)[0]),
        cosine=cosine,
        relative_error=error,
        kept_in_kernels=kept(layout, at).in_kernels,
        smaller=smaller(layout, at, kernels, len(packet)),
        sent=sent,
    )


def _nearness(change: Vector, sent: Vector) -> tuple[float | None, float | None]:
    """Return the cosine between two changes, and how long their difference is for its size."""
    wanted, got = change.astype(np.float64), sent.astype(np.float64)
    length, other = math.sqrt(wanted @ wanted), math.sqrt(got @ got)
    cosine = float(wanted @ got) / (length * other) if length and other else None
    rest = wanted - got
    return cosine, math.sqrt(rest @ rest) / length if length else None


# ---- what a packet holds ----------------------------------------------------------------------


def _settings(codec: str, body: Body) -> TernarySettings:
    return TernarySettings(
        sparsity=_short(body.sparsity),
        kernels=_short(body.kernels) if codec == "sstc" else None,
        maps=("none", "short", "paper")[body.maps],
        kernel_coding=None if body.maps == NO_MAPS else body.kernel_coding,
        index_coding=body.index_coding,
        mu=_short(body.mu),
        num_named=body.num_named,
    )


def _short(value: float | np.float32) -> float:
    """Return the shortest number that is this float32: 0.01, not 0.009999999776."""
    return float(str(np.float32(value)))


def _details(packet: bytes, layout: Layout, codec: str) -> Details:
    at, _ = _changes(packet, layout, codec)  # also finds whatever is wrong with the packet
    shape = joined(layout)
    reader = unseal(packet, codec, layout)
    parts = {"header": reader.position}

    def note(name: str) -> None:
        parts[name] = reader.position - sum(parts.values())

    per_index = per_kernel = per_weight = None
    if codec in ("stc", "sstc"):
        named, num_kernels = _walk_ternary(reader, codec, layout, note)
        places = sum(parts.get(name, 0) for name in ("kernel_indices", "kernel_maps"))
        per_kernel = 8 * places / num_kernels if num_kernels else None
        per_index = 8 * parts["weight_indices"] / named if named else None
        places += parts["weight_indices"] + parts["signs"]
        per_weight = 8 * places / len(at) if len(at) else None
    else:
        reader.take(4 * (layout.size if codec == "dense" else shape.num_exact))
        note("exact_values")
        reader.take(len(packet) - reader.position)
        if codec != "dense":
            note("changes")
    return Details(
        num_weights=shape.num_weights,
        kept=shape.num_weights if codec == "dense" else len(at),
        parts=parts,
        tensors=tuple(_tensor_part(t, at, codec == "dense") for t in layout.tensors),
        bits_per_index=per_index,
        bits_per_kernel=per_kernel,
        bits_per_weight=per_weight,
    )


def _walk_ternary(
    reader: Reader, codec: str, layout: Layout, note: Callable[[str], None]
) -> tuple[int, int]:
    """Go through a packet that is known to be good; return how many weights and kernels it names.

    `note` is told after each part what it was.
    """
    shape = joined(layout)
    body = read_body(reader, codec)
    note("settings")
    reader.take(4 * shape.num_exact)
    note("exact_values")
    limit, num_kernels = shape.num_weights, 0
    if body.maps != NO_MAPS:
        limit = shape.num_dense
        num_kernels = int.from_bytes(reader.take(4), "little")
        numbers = read_ascending(reader, num_kernels, shape.num_kernels, body.kernel_coding)
        note("kernel_indices")
        num_cells = int(shape.kernel_cells(numbers).sum())
        if body.maps == PAPER_MAPS:
            read_flags(reader, 2 * num_cells)
        else:
            read_flags(reader, int(read_flags(reader, num_cells).sum()))
        note("kernel_maps")
    read_ascending(reader, body.num_named, limit, body.index_coding)
    note("weight_indices")
    read_flags(reader, body.num_named)
    note("signs")
    return body.num_named, num_kernels


def _changes(packet: bytes, layout: Layout, codec: str) -> tuple[Indices, Vector]:
    """Return where in the vector a packet changes weights, ascending, and by how much."""
    unseal(packet, codec, layout)  # before room is made for a layout it may not be of
    model = reader_of(packet, layout).decode(packet, np.zeros(layout.size, dtype=np.float32))
    if isinstance(model, Sparse):
        return model.at, model.by
    if codec == "dense":
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    change = weight_change(model, np.zeros(layout.size, dtype=np.float32), layout)
    at = np.flatnonzero(change)
    return at, change[at]


def _tensor_part(tensor: TensorSpec, at: Indices, exact: bool) -> TensorPart:
    low, high = np.searchsorted(at, [tensor.offset, tensor.offset + tensor.size])
    exact = exact or tensor.kind not in ("conv", "dense")
    kernels = _num_kernels(tensor)
    touched = 0
    if kernels and not exact:
        cells = tensor.size // kernels
        touched = len(np.unique((at[low:high] - tensor.offset) // cells))
    return TensorPart(
        name=tensor.name,
        shape=tensor.shape,
        kind=tensor.kind,
        size=tensor.size,
        kept=None if exact else int(high - low),
        kernels=kernels,
        kernels_touched=touched,
        exact_bytes=4 * tensor.size if exact else 0,
    )


def _num_kernels(tensor: TensorSpec) -> int:
    return tensor.shape[0] * tensor.shape[1] if tensor.kind == "conv" else 0
