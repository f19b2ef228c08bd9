"""Messages that carry a model, made and read by hand.

The same bytes as protobuf's, which would copy each chunk twice at either end.
"""

from __future__ import annotations

import threading
import weakref

from metis.service.grpc import wire_pb2 as wire
from metis.storage.packets import Piece

_CHUNK_TAG = 0x0A  # field 1 of wire.Chunk, bytes
_PART_TAG = 0x12  # field 2 of wire.DeliveryPart, bytes
_MOST_SHARED = 64  # messages


def chunk_message(piece: Piece) -> bytes:
    """Return a `Chunk` with these bytes."""
    return _packed(_CHUNK_TAG, piece)


class SharedChunks:
    """Makes `Chunk` messages, and knows the latest of them again.

    Learners fetch a version at about the same time: whoever is given a view that another one was
    given a moment ago is sent the same message. What is viewed must never change. Only messages are
    kept, a few; not the model that they are of.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._made: dict[int, tuple[weakref.ref[memoryview], bytes]] = {}  # by id, oldest first

    def message(self, piece: Piece) -> bytes:
        if isinstance(piece, bytes):
            return chunk_message(piece)
        with self._turn:
            known = self._made.get(id(piece))
        if known is not None and known[0]() is piece:  # else an earlier one had this id
            return known[1]
        made = chunk_message(piece)
        with self._turn:
            self._made.pop(id(piece), None)
            self._made[id(piece)] = (weakref.ref(piece), made)
            if len(self._made) > _MOST_SHARED:
                del self._made[next(iter(self._made))]
        return made


def chunk_content(message: bytes) -> Piece:
    """Return the bytes in a `Chunk`."""
    content = _unpacked(_CHUNK_TAG, message)
    return wire.Chunk.FromString(message).content if content is None else content


def part_message(part: wire.DeliveryPart | Piece) -> bytes:
    """Return a `DeliveryPart`, or one with these bytes."""
    if isinstance(part, wire.DeliveryPart):
        return bytes(part.SerializeToString())
    return _packed(_PART_TAG, part)


def part_of(message: bytes) -> wire.DeliveryPart | Piece:
    """Return the bytes in a `DeliveryPart`, or all of it if it holds something else."""
    content = _unpacked(_PART_TAG, message)
    return wire.DeliveryPart.FromString(message) if content is None else content


def _packed(tag: int, piece: Piece) -> bytes:
    """Return the message whose only field is these bytes, in one copy."""
    prefix, left = bytearray((tag,)), len(piece)
    while left > 0x7F:
        prefix.append(left & 0x7F | 0x80)
        left >>= 7
    prefix.append(left)
    return b"".join((prefix, piece))


def _unpacked(tag: int, message: bytes) -> memoryview | None:
    """Return the bytes inside without a copy; None if the message is not of that simple form."""
    if len(message) < 2 or message[0] != tag:
        return None
    length = 0
    for position in range(1, min(6, len(message))):
        length |= (message[position] & 0x7F) << 7 * (position - 1)
        if message[position] < 0x80:
            content = memoryview(message)[position + 1 :]
            return content if len(content) == length else None
    return None
