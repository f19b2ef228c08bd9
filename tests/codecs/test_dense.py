"""The dense codec: exact, and deaf to everything that is not one of its packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from metis.codecs.dense import Dense
from metis.codecs.packet import FORMAT, HEADER, MAGIC, NUMBERS, read_header, seal
from metis.codecs.ternary import Ternary
from metis.core.errors import ModelError
from metis.core.types import Layout, Vector
from tests.codecs import reference
from tests.codecs.updates import layout_of, layouts, vector

LAYOUT = layout_of(("dense", (1, 2)), ("plain", (1,)))
CODEC = Dense(LAYOUT)
PACKET = CODEC.encode(vector(1, 2, 3), vector(0, 0, 0))[0]


@given(arrays(np.float32, st.integers(1, 200)))
def test_a_model_comes_back_with_the_same_bytes(weights: Vector) -> None:
    codec = Dense(layout_of(("plain", weights.shape)))

    packet, residual = codec.encode(weights, weights)

    assert codec.decode(packet).tobytes() == weights.tobytes()  # also every NaN and minus zero
    assert len(packet) == codec.num_bytes == HEADER.size + 4 * weights.size
    assert residual is None


def test_a_model_without_values_comes_back_too() -> None:
    codec = Dense(Layout(()))

    packet, _ = codec.encode(vector(), vector())

    assert codec.decode(packet).size == 0
    assert len(packet) == HEADER.size


def test_a_decoded_model_is_a_float32_vector_that_cannot_be_written_to() -> None:
    decoded = CODEC.decode(PACKET)

    assert decoded.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1.0


def test_a_model_that_is_not_contiguous_is_packed_in_its_own_order() -> None:
    every_other = np.arange(6, dtype=np.float32)[::2]

    assert CODEC.decode(CODEC.encode(every_other, every_other)[0]).tolist() == [0, 2, 4]


def test_a_packet_does_not_depend_on_the_base_or_on_a_residual() -> None:
    assert not CODEC.needs_base
    assert CODEC.encode(vector(1, 2, 3), vector(7, 8, 9), vector(5, 5))[0] == PACKET
    assert CODEC.decode(PACKET, vector(7, 8, 9)).tolist() == [1, 2, 3]


def test_a_packet_is_little_endian_on_every_machine() -> None:
    assert PACKET[:8] == MAGIC + bytes([FORMAT, NUMBERS["dense"], 0, 0])
    assert PACKET[12:20].hex() == LAYOUT.digest
    assert PACKET[20:32] == (3).to_bytes(8, "little") + b"\x00\x00\x80\x3f"


@given(layouts)
def test_a_header_is_what_the_document_says(layout: Layout) -> None:
    packet = seal("int8", layout, [b"a", b"bc"])

    assert len(packet) == reference.HEADER_BYTES + 3
    assert packet[12:20] == reference.layout_digest(layout)
    checksum = reference.crc32(packet[:8] + bytes(4) + packet[12:])
    assert packet[8:12] == checksum.to_bytes(4, "little")
    header = read_header(packet)
    assert (header.codec, header.num_values) == ("int8", layout.size)
    assert header.layout_digest == layout.digest


def test_the_numbers_of_the_codecs_are_those_of_the_document() -> None:
    assert list(NUMBERS) == list(reference.CODECS)
    assert list(NUMBERS.values()) == [0, 1, 2, 3, 4, 5]


def test_a_packet_of_another_layout_is_refused_with_both_digests() -> None:
    other = layout_of(("dense", (2, 1)), ("plain", (1,)))
    packet, _ = Dense(other).encode(vector(1, 2, 3), vector(0, 0, 0))

    with pytest.raises(ModelError, match=f"layout {other.digest} .* expected {LAYOUT.digest}"):
        CODEC.decode(packet)


def test_a_packet_of_another_codec_is_refused_with_both_names() -> None:
    with pytest.raises(ModelError, match="of codec dense, expected sstc"):
        Ternary(LAYOUT, 0.1, 0.5).decode(PACKET, vector(0, 0, 0))


def test_a_packet_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ModelError, match="not a Metis packet"):
        CODEC.decode(b"PK" + PACKET[2:])
    with pytest.raises(ModelError, match="has format 2; this version of Metis reads format 1"):
        CODEC.decode(PACKET[:4] + b"\x02" + PACKET[5:])
    for short in (b"", PACKET[:1], PACKET[: HEADER.size - 1]):
        with pytest.raises(ModelError, match=f"{len(short)} bytes is shorter than a header"):
            CODEC.decode(short)


def test_a_codec_that_is_yet_to_come_is_refused() -> None:
    header = HEADER.pack(MAGIC, FORMAT, 6, 0, bytes(8), 0)
    checksum = reference.crc32(header)

    with pytest.raises(ModelError, match="codec number 6; known are 0 to 5"):
        CODEC.decode(HEADER.pack(MAGIC, FORMAT, 6, checksum, bytes(8), 0))


def test_a_packet_of_the_wrong_length_is_refused() -> None:
    values = PACKET[HEADER.size :]

    with pytest.raises(ModelError, match="12 bytes wanted, 11 left"):
        CODEC.decode(seal("dense", LAYOUT, [values[:-1]]))
    with pytest.raises(ModelError, match="1 bytes are left over"):
        CODEC.decode(seal("dense", LAYOUT, [values, b"\x00"]))
    for damaged in (PACKET[:-1], PACKET + b"\x00", PACKET + PACKET):
        with pytest.raises(ModelError, match="checksum"):
            CODEC.decode(damaged)


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(ModelError):
        CODEC.decode(noise)
