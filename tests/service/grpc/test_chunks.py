"""Messages made by hand are protobuf's, byte for byte, and so are those read by hand."""

from __future__ import annotations

import random
import weakref

import pytest

from metis.service.grpc import chunks
from metis.service.grpc import wire_pb2 as wire
from metis.service.grpc.chunks import (
    SharedChunks,
    chunk_content,
    chunk_message,
    part_message,
    part_of,
)

LENGTHS = [1, 2, 127, 128, 129, 16_383, 16_384, 1 << 20, (1 << 21) + 5]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_chunk_is_the_message_that_protobuf_makes(length: int) -> None:
    content = random.Random(length).randbytes(length)

    assert chunk_message(memoryview(content)) == wire.Chunk(content=content).SerializeToString()
    assert part_message(content) == wire.DeliveryPart(content=content).SerializeToString()


@pytest.mark.parametrize("length", [0, *LENGTHS])
def test_a_chunk_is_read_from_what_protobuf_makes(length: int) -> None:
    content = random.Random(length).randbytes(length)

    assert chunk_content(wire.Chunk(content=content).SerializeToString()) == content
    part = part_of(wire.DeliveryPart(content=content).SerializeToString())
    assert (part.content if isinstance(part, wire.DeliveryPart) else part) == content


def test_a_part_that_holds_no_chunk_is_read_by_protobuf() -> None:
    delivery = wire.DeliveryPart(delivery=wire.Delivery(task=7, num_steps=300))

    assert part_of(part_message(delivery)) == delivery


def test_a_chunk_with_fields_of_a_later_version_is_still_read() -> None:
    later = wire.Chunk(content=b"abc").SerializeToString() + b"\x10\x01"

    assert chunk_content(later) == b"abc"


def test_nonsense_is_read_like_protobuf_reads_it_or_refused() -> None:
    chance = random.Random(3)
    good = wire.DeliveryPart(content=bytes(300)).SerializeToString()
    for _ in range(3000):
        text = bytearray(good[: chance.randrange(1, 40)])
        for _ in range(chance.randrange(3)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        try:
            expected = wire.DeliveryPart.FromString(bytes(text))
        except Exception as error:
            with pytest.raises(type(error)):
                part_of(bytes(text))
            continue
        found = part_of(bytes(text))

        content = found.content if isinstance(found, wire.DeliveryPart) else bytes(found)
        assert content == expected.content


def test_a_view_given_to_several_is_one_message() -> None:
    shared, whole = SharedChunks(), memoryview(b"abcdef")
    view, alike = whole[:3], whole[:3]

    first = shared.message(view)

    assert first == chunk_message(b"abc")
    assert shared.message(view) is first
    assert shared.message(alike) is not first
    assert shared.message(alike) == first
    assert shared.message(b"abc") == first


def test_views_that_come_and_go_are_never_taken_for_one_another() -> None:
    shared = SharedChunks()

    for number in range(1000):  # most of them where an earlier one was
        content = b"%d" % number
        assert shared.message(memoryview(content)) == chunk_message(content)


def test_shared_messages_are_few_and_keep_no_model() -> None:
    shared, view = SharedChunks(), memoryview(bytes(8))
    gone = weakref.ref(view)
    oldest = shared.message(view)
    views = [memoryview(b"%d" % number) for number in range(chunks._MOST_SHARED)]
    latest = [shared.message(each) for each in views]

    assert shared.message(view) is not oldest
    assert shared.message(views[-1]) is latest[-1]
    del view
    assert gone() is None
