"""The plain codec: every value as float32, exact. Needs no base."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metis.codecs.packet import HEADER, as_bytes, sealed, unseal
from metis.core.types import Layout, Vector, read_only


@dataclass(frozen=True, slots=True)
class Dense:
    """Packs a whole model as little-endian float32."""

    layout: Layout
    needs_base: bool = False

    @property
    def num_bytes(self) -> int:
        """The length of every packet."""
        return HEADER.size + 4 * self.layout.size

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, None]:
        return b"".join(self.parts(weights)), None

    def parts(self, weights: Vector) -> list[bytes | memoryview]:
        """Return what a packet is made of, in order; the model itself is not copied."""
        return sealed("dense", self.layout, [as_bytes(weights, "<f4")])

    def decode(self, packet: bytes | memoryview, base: Vector | None = None) -> Vector:
        """Return the model inside, without a copy; ModelError if it is not one of ours."""
        reader = unseal(packet, "dense", self.layout)
        values = reader.array("<f4", self.layout.size)
        reader.end()
        return read_only(np.asarray(values, dtype=np.float32))
