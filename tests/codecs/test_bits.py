"""Ascending numbers as bits: read back by a plain reader, and as few as can be.

What is special about deflate is in test_deflate.py.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.bits import (
    Coding,
    Indices,
    best_parameter,
    entropy_bits,
    read_ascending,
    read_flags,
    rice_bits,
    write_ascending,
    write_flags,
)
from metis.codecs.packet import Reader
from metis.core.errors import ModelError
from tests.codecs import reference

CODINGS: tuple[Coding, ...] = ("golomb", "fixed", "deflate")
IN_BITS = CODINGS[:2]

#: Different numbers from close together to far apart, in order.
ascending = st.integers(0, 40).flatmap(
    lambda width: st.lists(st.integers(0, 2**width), max_size=40, unique=True).map(sorted)
)


def written(numbers: list[int], coding: str) -> bytes:
    return b"".join(write_ascending(np.array(numbers, dtype=np.int64), coding))


def read(data: bytes, count: int, limit: int, coding: Coding) -> Indices:
    """Read what must be all there is."""
    reader = Reader(data)
    numbers = read_ascending(reader, count, limit, coding)
    reader.end()
    return numbers


def number_of(coding: Coding) -> int:
    """Return how a coding is named in a packet."""
    return reference.CODINGS.index(coding)


def rice_size(gaps: list[int], parameter: int) -> int:
    return sum((gap >> parameter) + 1 + parameter for gap in gaps)


def gaps_of(numbers: list[int]) -> list[int]:
    return [b - a - 1 for a, b in zip([-1, *numbers], numbers, strict=False)]


@pytest.mark.parametrize("coding", CODINGS)
@given(ascending)
def test_numbers_come_back_from_both_readers(coding: Coding, numbers: list[int]) -> None:
    data = written(numbers, coding)
    limit = numbers[-1] + 1 if numbers else 0
    stream = reference.Stream(data)

    assert read(data, len(numbers), limit, coding).tolist() == numbers
    plain = reference.read_ascending(stream, len(numbers), limit, number_of(coding))
    assert plain == numbers
    assert stream.data == b""


@given(ascending)
def test_no_other_rice_parameter_takes_fewer_bits(numbers: list[int]) -> None:
    data, gaps = written(numbers, "golomb"), gaps_of(numbers)

    parameter = data[0]

    unary_bits = sum((gap >> parameter) + 1 for gap in gaps)
    num_bytes = 5 + -(-unary_bits // 8) + -(-len(gaps) * parameter // 8)
    assert len(data) == num_bytes
    sizes = [rice_size(gaps, other) for other in range(49)]
    assert rice_size(gaps, parameter) == min(sizes)


@given(ascending)
def test_a_fixed_width_is_that_of_the_widest_gap(numbers: list[int]) -> None:
    data, gaps = written(numbers, "fixed"), gaps_of(numbers)

    width = max((gap.bit_length() for gap in gaps), default=0)

    assert data[0] == width
    assert len(data) == 1 + -(-len(gaps) * width // 8)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_widths_of_whole_bytes_lie_as_other_widths_do(width: int) -> None:
    widest = 2**width - 1

    data = written([1, 2 + widest], "fixed")

    assert data == bytes([width]) + (1).to_bytes(width // 8, "big") + b"\xff" * (width // 8)


def test_codings_by_hand() -> None:
    # Gaps 5, 0, 9. Rice with parameter 2: 1, 0, 2 in unary and 01, 00, 01 below.
    assert written([5, 6, 16], "golomb") == bytes([2, 1, 0, 0, 0, 0b01100100, 0b01000100])
    # Four bits each: 0101, 0000, 1001.
    assert written([5, 6, 16], "fixed") == bytes([4, 0b01010000, 0b10010000])
    # A byte each, compressed in any way.
    deflated = written([5, 6, 16], "deflate")
    assert zlib.decompress(deflated[4:]) == bytes([5, 0, 9])
    assert int.from_bytes(deflated[:4], "little") == len(deflated) - 4


@pytest.mark.parametrize("density", [0.001, 0.01, 0.05, 0.1])
def test_golomb_is_within_three_percent_of_the_entropy_of_random_gaps(density: float) -> None:
    chance = np.random.default_rng(7)
    numbers = np.flatnonzero(chance.random(4_000_000) < density)

    num_bits = 8 * sum(len(part) for part in write_ascending(numbers, "golomb"))

    assert num_bits < 1.03 * entropy_bits(density) * len(numbers)
    assert num_bits == pytest.approx(rice_bits(density) * len(numbers), rel=0.01)


@pytest.mark.parametrize("density", [1e-6, 0.001, 0.0123, 0.05, 0.1, 0.3, 0.4, 0.6, 0.9])
def test_the_best_parameter_is_the_best(density: float) -> None:
    def mean_bits(parameter: int) -> float:
        return float(parameter + 1.0 / (1.0 - (1.0 - density) ** (2.0**parameter)))

    best = best_parameter(density)

    # The closed form is of Gallager and van Voorhis; beside a tie it may be one off.
    assert mean_bits(best) <= 1.001 * min(mean_bits(other) for other in range(40))
    assert rice_bits(density) == pytest.approx(mean_bits(best), rel=1e-6)
    assert rice_bits(density) >= entropy_bits(density)


def test_measures_of_no_weights_and_of_all_weights_are_finite() -> None:
    assert best_parameter(0.0) == best_parameter(1.0) == 0
    assert (rice_bits(0.0), rice_bits(1.0)) == (0.0, 1.0)
    assert entropy_bits(0.0) == entropy_bits(1.0) == 0.0


@given(st.lists(st.booleans(), max_size=40))
def test_flags_come_back_and_the_first_is_the_highest_bit(flags: list[bool]) -> None:
    data = write_flags(np.array(flags, dtype=bool))

    assert len(data) == -(-len(flags) // 8)
    assert reference.Stream(data).bits(len(flags)) == flags
    assert read_flags(Reader(data), len(flags)).tolist() == flags


def test_bits_beyond_the_last_flag_are_refused() -> None:
    with pytest.raises(ModelError, match="beyond its last flag"):
        read_flags(Reader(b"\x01"), 7)


@pytest.mark.parametrize("coding", CODINGS)
def test_numbers_at_the_limit_are_refused(coding: Coding) -> None:
    data = written([0, 3, 9], coding)

    assert read(data, 3, 10, coding).tolist() == [0, 3, 9]
    with pytest.raises(ModelError, match="beyond 8"):
        read(data, 3, 9, coding)
    with pytest.raises(ModelError, match="names 3 of only 2 places"):
        read(data, 3, 2, coding)


@pytest.mark.parametrize("coding", IN_BITS)
def test_gaps_that_are_too_wide_are_refused(coding: Coding) -> None:
    head = bytes([49]) if coding == "fixed" else struct.pack("<BI", 49, 1) + b"\x80"

    with pytest.raises(ModelError, match="gaps of 49 bits; at most 48"):
        read(head + bytes(7), 1, 100, coding)


@pytest.mark.parametrize("coding", IN_BITS)
def test_gaps_whose_sum_wraps_around_are_refused(coding: Coding) -> None:
    # 2^16 times 2^48 is nought in 64 bits, so the last number looks like -1.
    count = 2**16
    low = b"\xff" * (6 * count)
    unary = b"\xff" * (count // 8)
    head = bytes([48]) if coding == "fixed" else struct.pack("<BI", 48, len(unary)) + unary

    with pytest.raises(ModelError, match="index"):
        read(head + low, count, 2 * count, coding)


@pytest.mark.parametrize(
    ("stream", "count"),
    [(b"\xc0", 1), (b"\x80", 2), (b"\x80\x00", 1), (b"\x00", 0), (b"", 1), (b"\x00", 1)],
    ids=["more", "fewer", "a byte too many", "a byte for none", "nothing", "no one at all"],
)
def test_a_unary_stream_that_does_not_hold_what_it_should_is_refused(
    stream: bytes, count: int
) -> None:
    with pytest.raises(ModelError, match="index stream"):
        read(struct.pack("<BI", 0, len(stream)) + stream, count, 9, "golomb")
