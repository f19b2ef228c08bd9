"""Packets that somebody has tampered with: made, read by both readers, and measured."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np

from metis.codecs.choose import reader_of
from metis.codecs.packet import HEADER
from metis.core.errors import ModelError
from metis.core.types import Layout, Vector
from tests.codecs import reference
from tests.codecs.updates import bits, layout_of

LARGE = layout_of(("conv", (30, 20, 5, 5)), ("plain", (100,)), ("dense", (50, 100)))
NUM_WEIGHTS = 20_000
#: How much memory decoding may take, as a multiple of the bytes of packet and model together.
MEMORY = 12


def mended(packet: bytes) -> bytes:
    """Return a packet with the checksum that fits what is in it."""
    if len(packet) < HEADER.size:
        return packet
    checksum = zlib.crc32(packet[:8] + bytes(4) + packet[12:])
    return packet[:8] + checksum.to_bytes(4, "little") + packet[12:]


def ternary_packet(
    codec: str, form: tuple[int, int, int], count: int, rest: bytes, layout: Layout = LARGE
) -> bytes:
    """Return a packet whose count of named weights, and all behind it, is anybody's choice.

    `form` is that of its kernel maps, and the codings of kernel and of weight indices.
    """
    number = reference.CODECS.index(codec)
    header = HEADER.pack(b"MTIS", 1, number, 0, bytes.fromhex(layout.digest), layout.size)
    body = struct.pack("<BBBxfffI", *form, 1.0, 0.1, 0.1, count)
    exact = bytes(4 * len(reference.places_of(layout).exact))
    return mended(header + body + exact + rest)


def read(packet: bytes, layout: Layout, base: Vector) -> bytes | None:
    """Return the decoded model's bytes, or None if the packet is refused."""
    try:
        return bits(reader_of(packet, layout).decode(packet, base))
    except ModelError:
        return None


def check(packet: bytes, layout: Layout, base: Vector) -> bool:
    """Compare both readers; return whether the packet was read."""
    found = read(packet, layout, base)
    try:
        expected = np.array(reference.decode(packet, layout, base.tolist()), dtype=np.float32)
    except reference.Refused:
        assert found is None, "read, but the format says it must be refused"
        return False
    assert found is not None, "refused, but the format says it can be read"
    if np.isnan(expected).any():  # there are many, and Python's floats do not keep them apart
        assert np.array_equal(np.frombuffer(found, np.float32), expected, equal_nan=True)
    else:
        assert found == expected.tobytes()
    return True


def peak_bytes(packet: bytes, layout: Layout, base: Vector) -> int:
    """Return how much more memory there was at some moment of reading a packet than before."""
    tracemalloc.start()
    try:
        read(packet, layout, base)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
