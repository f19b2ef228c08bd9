"""The plain codec: every value as float32, exact. Its header is the one all codecs share."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from metis.core.errors import ModelError
from metis.core.types import Vector, frozen

#: magic, format version, codec number, layout digest (8 bytes), number of values.
HEADER = struct.Struct("<4sBBxx8sQ")
MAGIC = b"MTIS"
FORMAT = 1
DENSE = 0


@dataclass(frozen=True, slots=True)
class Dense:
    """Packs a whole model as little-endian float32."""

    layout_digest: str  # 16 hexadecimal digits; a packet of another layout is refused

    def encode(self, weights: Vector) -> bytes:
        header = HEADER.pack(MAGIC, FORMAT, DENSE, bytes.fromhex(self.layout_digest), weights.size)
        body = np.ascontiguousarray(weights, dtype="<f4")
        return b"".join((header, body.data.cast("B")))

    def carry(self, weights: Vector) -> tuple[Vector, int]:
        """Return what a receiver decodes, and the bytes it took. Exact, so nothing is copied."""
        return weights, HEADER.size + 4 * weights.size

    def decode(self, packet: bytes) -> Vector:
        """Return the model inside, without a copy; ModelError if it is not one of ours."""
        if len(packet) < HEADER.size:
            raise ModelError(f"packet of {len(packet)} bytes is shorter than a header")
        magic, form, codec, digest, size = HEADER.unpack_from(packet)
        if (magic, form, codec) != (MAGIC, FORMAT, DENSE):
            raise ModelError("packet is not a dense Metis packet of format 1")
        if digest.hex() != self.layout_digest:
            raise ModelError(f"packet has layout {digest.hex()}, expected {self.layout_digest}")
        if len(packet) != HEADER.size + 4 * size:
            raise ModelError(f"packet of {len(packet)} bytes cannot hold {size} values")
        return frozen(np.frombuffer(packet, dtype="<f4", offset=HEADER.size))
