"""Layouts and updates for tests of codecs: of every kind, in any order, with every kind of tie.

Weights and their changes are multiples of 2^-12 below 64, so that differences and sums of them are
exact in any order, and a mean is the same however it is summed up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from metis.core.types import Kind, Layout, Model, TensorSpec, Vector, as_vector, read_only
from tests.codecs.reference import places_of

Part = tuple[Kind, tuple[int, ...]]

#: How the changes of an update may look.
STYLES = ("any", "ties", "positive", "zeros", "mostly zeros", "constant", "in few kernels")


@dataclass(frozen=True, slots=True)
class Change:
    """A model before and after training."""

    layout: Layout
    base: Vector
    local: Vector

    def lists(self) -> tuple[Layout, list[float], list[float]]:
        """Return it as the reference wants it."""
        return self.layout, self.base.tolist(), self.local.tolist()


def layout_of(*parts: Part) -> Layout:
    """Return tensors that lie one after another, by kind and shape."""
    tensors: list[TensorSpec] = []
    offset = 0
    for kind, shape in parts:
        tensors.append(TensorSpec(f"{kind}{len(tensors)}", shape, kind, offset))
        offset += tensors[-1].size
    return Layout(tuple(tensors))


def vector(*values: float) -> Vector:
    return read_only(np.array(values, dtype=np.float32))


def bits(model: Model | list[float]) -> bytes:
    """Return all values as bytes: equal for two models exactly when every bit is."""
    values = np.array(model, np.float32) if isinstance(model, list) else as_vector(model)
    return values.tobytes()


def make_change(layout: Layout, style: str, seed: int) -> Change:
    """Return a model and what training may have made of it."""
    chance = np.random.default_rng(seed)
    weights = places_of(layout).weights
    base = _exact_values(chance, layout.size)
    base[weights] = chance.integers(-(2**16), 2**16, len(weights)) / 2**12
    local = _exact_values(chance, layout.size)
    deltas = _deltas(chance, style, len(weights))
    if style == "in few kernels":
        for kernel in places_of(layout).kernels:
            deltas[kernel] *= chance.random() < 0.25
    local[weights] = base[weights] + deltas
    return Change(layout, read_only(base), read_only(local))


def _deltas(chance: np.random.Generator, style: str, count: int) -> NDArray[np.float64]:
    fine = chance.integers(-(2**14), 2**14, count) / 2**12
    if style == "ties":
        return chance.integers(-2, 3, count) / 2.0
    if style == "positive":
        return np.abs(fine)
    if style == "zeros":
        return np.zeros(count)
    if style == "mostly zeros":
        return np.where(chance.random(count) < 0.1, fine, 0.0)
    if style == "constant":
        return np.where(chance.random(count) < 0.5, -0.75, 0.75)
    return fine


def _exact_values(chance: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return finite values of any size, zeros of both signs among them."""
    raw = chance.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    odd = chance.choice(np.array([0.0, -0.0, 1e-45, -3.4e38, 1.0], dtype=np.float32), count)
    return np.where(np.isfinite(raw) & (chance.random(count) < 0.7), raw, odd)


_side = st.integers(1, 3)
_conv = st.tuples(_side, _side, st.lists(_side, min_size=1, max_size=3)).map(
    lambda drawn: (drawn[0], drawn[1], *drawn[2])
)
_wide = st.tuples(_side, st.integers(3, 5), st.just(5), st.just(5))  # maps pay in these
_parts: st.SearchStrategy[Part] = st.one_of(
    st.tuples(st.just("conv"), _conv | _wide),
    st.tuples(st.just("dense"), st.tuples(st.integers(1, 7), st.integers(1, 7))),
    st.tuples(st.just("plain"), st.tuples(st.integers(1, 5))),
    st.tuples(st.just("buffer"), st.tuples(st.integers(1, 5))),
)

layouts: st.SearchStrategy[Layout] = st.lists(_parts, max_size=6).map(
    lambda parts: layout_of(*parts)
)
changes: st.SearchStrategy[Change] = st.builds(
    make_change, layouts, st.sampled_from(STYLES), st.integers(0, 2**32 - 1)
)
#: p and f: those in use, those at which the rounding is delicate, and any other.
shares: st.SearchStrategy[float] = st.one_of(
    st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.125, 0.25, 0.5, 0.75, 1.0]), st.floats(0.0, 1.0)
)
