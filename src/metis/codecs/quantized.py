"""Every weight's change in 16 or 8 bits. What is not a weight travels exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metis.codecs.joined import joined
from metis.codecs.packet import Reader, as_bytes, seal, unseal
from metis.core.errors import ModelError
from metis.core.kernels import all_finite
from metis.core.types import Layout, Vector, read_only

Number: TypeAlias = Literal["float16", "bfloat16", "int8"]

_STORED: dict[Number, str] = {"float16": "<f2", "bfloat16": "<u2", "int8": "i1"}
_BLOCK = 1 << 15  # weights


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
        for (start, _), low, block in self._unpacked(Reader(b"".join(parts))):
            change[start + low : start + low + len(block)] -= block
        return packet, change

    def decode(self, packet: bytes | memoryview, base: Vector) -> Vector:
        """Return the model inside; ModelError if it is not one of ours."""
        shape = joined(self.layout)
        reader = unseal(packet, self.number, self.layout)
        exact = reader.array("<f4", shape.num_exact)
        model = np.array(base, dtype=np.float32)
        for (_, offset), low, block in self._unpacked(reader):
            part = model[offset + low : offset + low + len(block)]
            with np.errstate(over="ignore"):  # a controller looks whether an update is finite
                np.add(part, block, out=part)
        reader.end()
        at = 0
        for start, stop in shape.exact:
            model[start:stop] = exact[at : at + stop - start]
            at += stop - start
        return read_only(model)

    def _pack(self, change: NDArray[np.float32]) -> list[bytes | memoryview]:
        if self.number == "bfloat16":
            halves = np.empty(len(change), dtype=np.uint16)
            for low in range(0, len(change), _BLOCK):  # so that it stays in the cache
                block = to_bfloat16(change[low : low + _BLOCK])
                if ((block & 0x7FFF) >= 0x7F80).any():
                    raise ModelError("a weight changed by more than a bfloat16 can hold (3.39e38)")
                halves[low : low + _BLOCK] = block
            return [as_bytes(halves, "<u2")]
        if self.number == "float16":
            if max(change.max(initial=0.0), -change.min(initial=0.0)) >= 65520.0:
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

    def _unpacked(
        self, reader: Reader
    ) -> Iterator[tuple[tuple[int, int], int, NDArray[np.float32]]]:
        """Give the changes block by block, so that they stay in the processor's cache.

        With each comes where its tensor begins, among the joined weights and in the vector, and
        where in its tensor the block does.
        """
        shape = joined(self.layout)
        scales = np.ones(len(shape.tensors), dtype=np.float32)
        if self.number == "int8":
            scales = reader.array("<f4", len(shape.tensors))
            if not (np.isfinite(scales).all() and (scales >= 0.0).all()):
                raise ModelError("packet has a scale that is negative or not finite")
        numbers = reader.array(_STORED[self.number], shape.num_weights)
        offsets = [t.offset for t in self.layout.tensors if t.kind in ("conv", "dense")]
        for scale, offset, (_, (start, stop)) in zip(scales, offsets, shape.tensors, strict=True):
            for low in range(0, stop - start, _BLOCK):
                found = numbers[start + low : min(start + low + _BLOCK, stop)]
                with np.errstate(over="ignore", invalid="ignore"):
                    block = self._as_float32(found, scale)
                if not all_finite(block):
                    raise ModelError("packet has a change that is not finite")
                yield (start, offset), low, block

    def _as_float32(self, found: NDArray[Any], scale: np.float32) -> NDArray[np.float32]:
        if self.number == "bfloat16":
            return from_bfloat16(found)
        block = found.astype(np.float32)
        if self.number == "int8":
            block *= scale
        return block


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return finite values as the upper half of a float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (halves.astype(np.uint32) << 16).view(np.float32)
