"""Every weight's change in 16 or 8 bits. What is not a weight travels exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metis.codecs.joined import all_finite, joined
from metis.codecs.packet import Reader, as_bytes, seal, unseal
from metis.core.errors import ModelError
from metis.core.types import Layout, Vector, frozen

Number: TypeAlias = Literal["float16", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Packs what has become of each weight as a number of few bits.

    float16 and bfloat16 round to the nearest, ties to even; int8 counts steps of a 127th of the
    largest change in its tensor.
    """

    layout: Layout
    number: Number
    error_feedback: bool = False
    needs_base: bool = True

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        """Return the packet of a model, and what was left out if that is to be made up for."""
        shape = joined(self.layout)
        change = shape.difference(weights, base, residual if self.error_feedback else None)
        parts = self._pack(change)
        packet = seal(
            self.number, self.layout, [as_bytes(shape.exact_values(weights), "<f4"), *parts]
        )
        if not self.error_feedback:
            return packet, None
        return packet, change - self._unpack(Reader(b"".join(parts)))

    def decode(self, packet: bytes, base: Vector) -> Vector:
        """Return the model inside; ModelError if it is not one of ours."""
        shape = joined(self.layout)
        reader = unseal(packet, self.number, self.layout)
        exact = reader.array("<f4", shape.num_exact)
        with np.errstate(over="ignore"):  # looked at below
            change = self._unpack(reader)
        reader.end()
        if not all_finite(change):
            raise ModelError("packet has a change that is not finite")
        model = np.array(base, dtype=np.float32)
        at = 0
        with np.errstate(over="ignore"):
            for start, stop in shape.weights:
                model[start:stop] += change[at : at + stop - start]
                at += stop - start
        at = 0
        for start, stop in shape.exact:
            model[start:stop] = exact[at : at + stop - start]
            at += stop - start
        return frozen(model)

    def _pack(self, change: NDArray[np.float32]) -> list[bytes | memoryview]:
        if self.number == "bfloat16":
            halves = to_bfloat16(change)
            if ((halves & 0x7FFF) >= 0x7F80).any():
                raise ModelError("a weight changed by more than a bfloat16 can hold (3.39e38)")
            return [as_bytes(halves, "<u2")]
        if self.number == "float16":
            if np.abs(change).max(initial=0.0) >= 65520.0:
                raise ModelError("a weight changed by more than a float16 can hold (65504)")
            return [as_bytes(change, "<f2")]
        tensors = joined(self.layout).tensors
        scales = np.array(
            [np.abs(change[a:b]).max(initial=0.0) / np.float32(127) for _, (a, b) in tensors],
            dtype=np.float32,
        )
        steps = np.empty(len(change), dtype=np.int8)
        for scale, (_, (a, b)) in zip(scales, tensors, strict=True):
            quotient = change[a:b] / scale if scale > 0.0 else np.zeros(b - a, dtype=np.float32)
            steps[a:b] = np.clip(np.rint(quotient), -127, 127)
        return [as_bytes(scales, "<f4"), as_bytes(steps, "i1")]

    def _unpack(self, reader: Reader) -> NDArray[np.float32]:
        shape = joined(self.layout)
        if self.number == "bfloat16":
            return from_bfloat16(reader.array("<u2", shape.num_weights))
        if self.number == "float16":
            return reader.array("<f2", shape.num_weights).astype(np.float32)
        scales = reader.array("<f4", len(shape.tensors))
        if not (np.isfinite(scales).all() and (scales >= 0.0).all()):
            raise ModelError("packet has a scale that is negative or not finite")
        change = reader.array("i1", shape.num_weights).astype(np.float32)
        for scale, (_, (a, b)) in zip(scales, shape.tensors, strict=True):
            change[a:b] *= scale
        return change


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return finite values as the upper half of a float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (halves.astype(np.uint32) << 16).view(np.float32)
