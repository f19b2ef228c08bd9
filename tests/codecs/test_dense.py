"""The dense codec: exact, and deaf to everything that is not one of its packets."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from metis.codecs.dense import FORMAT, HEADER, MAGIC, Dense
from metis.core.errors import ModelError
from metis.core.types import Vector, frozen

LAYOUT = "0123456789abcdef"
CODEC = Dense(LAYOUT)


@given(arrays(np.float32, st.integers(0, 200)))
def test_a_model_comes_back_with_the_same_bytes(weights: Vector) -> None:
    packet = CODEC.encode(weights)

    assert CODEC.decode(packet).tobytes() == weights.tobytes()  # also every NaN and minus zero
    assert len(packet) == HEADER.size + 4 * weights.size


def test_a_decoded_model_is_a_float32_vector_that_cannot_be_written_to() -> None:
    decoded = CODEC.decode(CODEC.encode(frozen(np.arange(3.0))))

    assert decoded.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        decoded[0] = 1.0


def test_a_model_that_is_not_contiguous_is_packed_in_its_own_order() -> None:
    every_other = np.arange(10, dtype=np.float32)[::2]

    assert CODEC.decode(CODEC.encode(every_other)).tolist() == [0, 2, 4, 6, 8]


def test_a_packet_is_little_endian_on_every_machine() -> None:
    packet = CODEC.encode(frozen(np.array([1.0])))

    assert packet[:5] == MAGIC + bytes([FORMAT])
    assert packet[8:16].hex() == LAYOUT
    assert packet[16:] == (1).to_bytes(8, "little") + b"\x00\x00\x80\x3f"


def test_a_packet_of_another_layout_is_refused_with_both_digests() -> None:
    packet = Dense("ff" * 8).encode(frozen(np.ones(2)))

    with pytest.raises(ModelError, match=f"layout {'ff' * 8}, expected {LAYOUT}"):
        CODEC.decode(packet)


@pytest.mark.parametrize("position", [0, 3, 4, 5], ids=["magic", "magic end", "format", "codec"])
def test_a_packet_that_is_not_ours_is_refused(position: int) -> None:
    packet = bytearray(CODEC.encode(frozen(np.ones(2))))
    packet[position] ^= 0xFF

    with pytest.raises(ModelError, match="not a dense Metis packet"):
        CODEC.decode(bytes(packet))


def test_a_packet_of_the_wrong_length_is_refused() -> None:
    packet = CODEC.encode(frozen(np.ones(2)))

    for wrong in (packet[:-1], packet[: HEADER.size], packet + b"\x00", packet + packet):
        with pytest.raises(ModelError, match=f"{len(wrong)} bytes cannot hold 2 values"):
            CODEC.decode(wrong)
    for short in (b"", packet[:1], packet[: HEADER.size - 1]):
        with pytest.raises(ModelError, match="shorter than a header"):
            CODEC.decode(short)


def test_a_packet_that_claims_a_huge_model_costs_nothing() -> None:
    header = HEADER.pack(MAGIC, FORMAT, 0, bytes.fromhex(LAYOUT), 2**64 - 1)

    with pytest.raises(ModelError, match="cannot hold"):
        CODEC.decode(header)


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(ModelError):
        CODEC.decode(noise)


@given(st.binary(max_size=60), st.integers(0, 2**64 - 1))
def test_random_bytes_behind_a_good_header_give_a_model_or_a_refusal(
    noise: bytes, size: int
) -> None:
    header = HEADER.pack(MAGIC, FORMAT, 0, bytes.fromhex(LAYOUT), size % 20)

    with contextlib.suppress(ModelError):
        assert CODEC.decode(header + noise).nbytes == len(noise)


@given(st.integers(0, HEADER.size + 11), st.integers(1, 255))
def test_a_damaged_header_gives_a_model_or_a_refusal(position: int, damage: int) -> None:
    packet = bytearray(CODEC.encode(frozen(np.ones(3))))
    packet[position] ^= damage

    if position in (6, 7) or position >= HEADER.size:  # padding, or the values themselves
        assert CODEC.decode(bytes(packet)).size == 3
    else:
        with pytest.raises(ModelError):
            CODEC.decode(bytes(packet))
