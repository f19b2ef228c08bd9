"""The few loops over whole models that must run at the speed of memory.

With numba installed (extra `fast`) large models go through one fused compiled loop, else through
numpy in blocks that stay in the processor's cache. Both do the same operations in the same order
on each element, without fused multiply-add, so they give the same bits, whatever the number of
threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metis.core.types import Vector, read_only

#: A running sum of weighted models: float64, because a float32 one drifts.
Sum: TypeAlias = NDArray[np.float64]

#: Float32 values as the integers they are stored as. Without the sign, larger is larger.
Bits: TypeAlias = NDArray[np.int32]

_BLOCK = 1 << 16  # elements; also the size below which a call to compiled code does not pay
_SUM_BLOCK = 1 << 18  # elements; shorter runs of each model leave memory bandwidth unused
_PARALLEL = 1 << 22  # elements; below it, starting a thread costs more than it saves
_UNSIGNED = np.int32(0x7FFFFFFF)  # all bits of a float32 but its sign
_MAX_THREADS = 4  # the loops wait for memory, more threads would only wait in company


class _Loop(Protocol):
    def __call__(
        self,
        total: Sum,
        keep: float,
        gain: float,
        new: Vector,
        loss: float,
        old: Vector | None,
        mass: float,
        out: Vector | None,
        bits: Bits | None,
    ) -> float: ...


def shift(
    total: Sum,
    keep: float,
    gain: float,
    new: Vector,
    loss: float = 0.0,
    old: Vector | None = None,
    mass: float = 1.0,
    out: Vector | None = None,
) -> float:
    """Set total to `keep * total + (gain * new - loss * old)`, in place; return the largest |new|.

    `out` is given total / mass by the same pass: 28 bytes moved per parameter.
    """
    loop = _loop_for(total, new, old, out)
    bits: Bits = new.view(np.int32)

    def part(low: int, high: int) -> float:
        here = slice(low, high)
        before, result = (None if v is None else v[here] for v in (old, out))
        return loop(total[here], keep, gain, new[here], loss, before, mass, result, bits[here])

    return _in_parts(part, total.size)


def shift_and_divide(
    total: Sum,
    keep: float,
    gain: float,
    new: Vector,
    loss: float = 0.0,
    old: Vector | None = None,
    *,
    mass: float,
) -> Vector:
    """Do `shift`, and return total / mass."""
    out: Vector = np.empty(total.size, np.float32)
    shift(total, keep, gain, new, loss, old, mass, out)
    return read_only(out)


def divide(total: Sum, mass: float) -> Vector:
    """Return total / mass, rounded once to float32."""
    out: Vector = np.empty(total.size, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a controller looks at what comes out
        np.divide(total, mass, out=out, dtype=np.float64, casting="same_kind")
    return read_only(out)


def weighted_sum(terms: Sequence[tuple[Vector, float]], onto: Sum | None = None) -> Sum:
    """Return the sum of weight * model over at least one term, added up in the order given.

    Block by block, so that the sum stays in cache and each model is read from memory once. With
    `onto` it goes on from there, in place.
    """
    size = terms[0][0].size
    total: Sum = np.zeros(size) if onto is None else onto
    loop = _loop_for(total, *(weights for weights, _ in terms))

    def part(low: int, high: int) -> float:
        for start in range(low, high, _SUM_BLOCK):
            block = slice(start, min(start + _SUM_BLOCK, high))
            for weights, weight in terms:
                loop(total[block], 1.0, weight, weights[block], 0.0, None, 1.0, None, None)
        return 0.0

    _in_parts(part, size)
    return total


def weighted_mean(terms: Sequence[tuple[Vector, float]], mass: float) -> Vector:
    """Return `weighted_sum` / mass, rounded once to float32; the sum itself never leaves cache."""
    size = terms[0][0].size
    out: Vector = np.empty(size, np.float32)
    *others, (last, last_weight) = terms
    loop = _loop_for(np.broadcast_to(np.float64(0), size), last, *(model for model, _ in others))

    def part(low: int, high: int) -> float:
        total: Sum = np.empty(min(_SUM_BLOCK, high - low))
        for start in range(low, high, _SUM_BLOCK):
            block = slice(start, min(start + _SUM_BLOCK, high))
            here = total[: block.stop - start]
            here[:] = 0.0
            for weights, weight in others:
                loop(here, 1.0, weight, weights[block], 0.0, None, 1.0, None, None)
            loop(here, 1.0, last_weight, last[block], 0.0, None, mass, out[block], None)
        return 0.0

    _in_parts(part, size)
    return read_only(out)


def all_finite(values: Vector) -> bool:
    """Whether no value is NaN or infinite. A sum tells it in a third of the time, mostly."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())


def is_compiled() -> bool:
    """Return whether large models go through the compiled loop here."""
    return _compiled() is not None


def num_threads(size: int) -> int:
    """Return how many threads share the work on a model of this size."""
    if size < _PARALLEL:
        return 1
    return max(1, min(_MAX_THREADS, os.cpu_count() or 1))


def _loop_for(total: Sum, *models: Vector | None) -> _Loop:
    """Return the loop for this size. Compiled code checks no bounds, so sizes are checked here."""
    for model in models:
        if model is not None and model.shape != total.shape:
            raise ValueError(f"a model of shape {model.shape} meets a sum of shape {total.shape}")
    return (total.size > _BLOCK and _compiled()) or _numpy_loop


def _in_parts(part: Callable[[int, int], float], size: int) -> float:
    """Run part(low, high) over the whole range, large ranges in several threads.

    Returns the largest value that a part returned.

    The threads live only as long as the call: a pool kept alive would not survive a fork, and
    numba's own may abort a process that enters it from two threads.
    """
    count = num_threads(size)
    if count == 1:
        return part(0, size)
    edges = [size * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:
        return max(pool.map(part, edges[:-1], edges[1:]))


def _numpy_loop(
    total: Sum,
    keep: float,
    gain: float,
    new: Vector,
    loss: float,
    old: Vector | None,
    mass: float,
    out: Vector | None,
    bits: Bits | None,
) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # a controller looks at what comes out
        return _numpy_blocks(total, keep, gain, new, loss, old, mass, out, bits)


def _numpy_blocks(
    total: Sum,
    keep: float,
    gain: float,
    new: Vector,
    loss: float,
    old: Vector | None,
    mass: float,
    out: Vector | None,
    bits: Bits | None,
) -> float:
    change = np.empty(min(total.size, _BLOCK))
    spare = np.empty_like(change)
    largest = 0
    for low in range(0, total.size, _BLOCK):
        block = slice(low, low + _BLOCK)
        here = total[block]
        change, spare = change[: here.size], spare[: here.size]
        # Casting first is exact, and twice as fast as a multiplication that casts on the way.
        change[:] = new[block]
        change *= gain
        if old is not None:
            spare[:] = old[block]
            spare *= loss
            change -= spare
        if keep != 1.0:
            here *= keep
        here += change
        if out is not None:
            np.divide(here, mass, out=change)
            out[block] = change
        if bits is not None:
            largest = max(largest, int((bits[block] & _UNSIGNED).max()))
    return _as_float(largest)


def _scalar_loop(
    total: Sum,
    keep: float,
    gain: float,
    new: Vector,
    loss: float,
    old: Vector | None,
    mass: float,
    out: Vector | None,
    bits: Bits | None,
) -> np.int32:
    """What numba compiles; the tests for None are resolved at compile time.

    The largest of integers is found as fast as memory is read; that of floats is not.
    """
    largest = np.int32(0)
    for i in range(total.size):
        change = gain * new[i]
        if old is not None:
            change -= loss * old[i]
        value = keep * total[i] + change
        total[i] = value
        if out is not None:
            out[i] = value / mass
        if bits is not None:
            largest = max(largest, bits[i] & _UNSIGNED)
    return largest


@cache
def _compiled() -> _Loop | None:
    """Return the compiled loop, or None without numba. Imported on first use: it takes a second.

    Compiled anew in each process. numba's cache on disk saves half a second, and two processes that
    fill it at the same time can each be left with the other's code for its own types.
    """
    try:
        import numba
    except ImportError:  # not installed, or not for this numpy
        return None
    njit: Any = numba.njit  # typed in some releases only
    loop = njit(nogil=True, error_model="numpy")(_scalar_loop)

    def through(*operands: Any) -> float:
        return _as_float(loop(*operands))

    compiled: Any = through
    found: _Loop = compiled
    return found


def _as_float(bits: int | np.int32) -> float:
    return float(np.int32(bits).view(np.float32))
