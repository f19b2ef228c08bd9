"""What all packets share: the header, and a reader that trusts nothing. See docs/packets.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import ModelError
from metis.core.types import Layout

#: magic, format version, codec number, checksum, layout digest (8 bytes), number of values.
HEADER = struct.Struct("<4sBBxxI8sQ")
MAGIC = b"MTIS"
FORMAT = 1
#: The number of each codec, for ever.
NUMBERS = {"dense": 0, "float16": 1, "bfloat16": 2, "int8": 3, "stc": 4, "sstc": 5}

_CHECKSUM_AT = 8

try:  # extra `fast`: the same checksum, several times as fast
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32


@dataclass(frozen=True, slots=True)
class Header:
    """What a packet says of itself."""

    codec: str
    layout_digest: str
    num_values: int


def seal(codec: str, layout: Layout, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return a packet: the header, then the parts."""
    return b"".join(sealed(codec, layout, parts))


def sealed(
    codec: str, layout: Layout, parts: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """Return the parts of a packet, its header first."""
    digest = bytes.fromhex(layout.digest)
    header = HEADER.pack(MAGIC, FORMAT, NUMBERS[codec], 0, digest, layout.size)
    checksum = _crc32(header)
    for part in parts:
        checksum = _crc32(part, checksum)
    header = HEADER.pack(MAGIC, FORMAT, NUMBERS[codec], checksum, digest, layout.size)
    return [header, *parts]


def checksum_of(packet: bytes | memoryview) -> int:
    """Return what a packet says its checksum is; 0 if it is too short to say anything."""
    return int.from_bytes(packet[_CHECKSUM_AT : _CHECKSUM_AT + 4], "little")


def read_header(packet: bytes | memoryview) -> Header:
    """Return what a packet says of itself. ModelError if it is none, or not as it was sent."""
    if len(packet) < HEADER.size:
        raise ModelError(f"packet of {len(packet)} bytes is shorter than a header")
    magic, form, number, checksum, digest, num_values = HEADER.unpack_from(packet)
    if magic != MAGIC:
        raise ModelError("not a Metis packet: it does not begin with MTIS")
    if form != FORMAT:
        raise ModelError(f"packet has format {form}; this version of Metis reads format {FORMAT}")
    view = memoryview(packet)
    found = _crc32(view[:_CHECKSUM_AT])
    found = _crc32(b"\0\0\0\0", found)
    found = _crc32(view[_CHECKSUM_AT + 4 :], found)
    if found != checksum:
        raise ModelError("packet is damaged: its checksum does not fit")
    names = {number: name for name, number in NUMBERS.items()}
    if number not in names:
        raise ModelError(f"packet has codec number {number}; known are 0 to {max(names)}")
    return Header(names[number], digest.hex(), num_values)


def unseal(packet: bytes | memoryview, codec: str, layout: Layout) -> Reader:
    """Return a reader of what follows the header, if the packet is what was agreed on."""
    header = read_header(packet)
    if header.codec != codec:
        raise ModelError(f"packet is of codec {header.codec}, expected {codec}")
    if header.layout_digest != layout.digest or header.num_values != layout.size:
        raise ModelError(
            f"packet has layout {header.layout_digest} with {header.num_values} values, "
            f"expected {layout.digest} with {layout.size}"
        )
    return Reader(packet, HEADER.size)


@dataclass(slots=True)
class Reader:
    """Reads a packet piece by piece. Nothing is allocated that the packet does not hold."""

    packet: bytes | memoryview
    position: int = field(default=0)

    def take(self, num_bytes: int) -> memoryview:
        left = len(self.packet) - self.position
        if num_bytes > left:
            raise ModelError(f"packet ends too early: {num_bytes} bytes wanted, {left} left")
        self.position += num_bytes
        return memoryview(self.packet)[self.position - num_bytes : self.position]

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype=dtype)

    def end(self) -> None:
        """Raise ModelError if something is left."""
        left = len(self.packet) - self.position
        if left:
            raise ModelError(f"packet is longer than what is in it: {left} bytes are left over")


def as_bytes(array: NDArray[Any], dtype: str) -> memoryview:
    """Return an array's values as the bytes of a packet, without a copy where that can be."""
    if not array.size:
        return memoryview(b"")  # numpy has no view of nothing
    return np.ascontiguousarray(array, dtype=dtype).data.cast("B")
