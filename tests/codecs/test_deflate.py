"""Gaps as bytes in a zlib stream: what is written, what is refused, and when it is the shorter.

Which bytes zlib makes depends on the zlib, so they are looked at only after they were inflated.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.bits import Indices, read_ascending, write_ascending, write_shortest
from metis.codecs.packet import Reader
from metis.core.errors import ModelError
from metis.core.types import Layout
from tests.codecs import reference
from tests.codecs.forged import LARGE, MEMORY, NUM_WEIGHTS, check, peak_bytes, read, ternary_packet
from tests.codecs.updates import layout_of

#: The last gap of so many bytes, and the first of one more.
EDGES = [edge for place in range(1, 7) for edge in (128**place - 1, 128**place)]
FLAT = layout_of(("dense", (40, 50)))

gaps_lists = st.lists(st.integers(0, 300) | st.integers(0, 2**49 - 1) | st.sampled_from(EDGES))
#: Bytes at which gaps begin, go on and end, and a few more.
gap_bytes = st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xFF]), max_size=30).map(bytes)


def framed(stream: bytes) -> bytes:
    """Return a stream with its length before it."""
    return struct.pack("<I", len(stream)) + stream


def ours(data: bytes, count: int, limit: int) -> list[int]:
    """Return what our reader makes of data, which must be all there is."""
    reader = Reader(data)
    numbers: list[int] = read_ascending(reader, count, limit, "deflate").tolist()
    reader.end()
    return numbers


def plain(data: bytes, count: int, limit: int) -> list[int]:
    """Return what the plain reader makes of it."""
    stream = reference.Stream(data)
    numbers = reference.read_ascending(stream, count, limit, reference.DEFLATE)
    assert stream.data == b""
    return numbers


def numbers_of(gaps: list[int]) -> Indices:
    return np.cumsum(np.array(gaps, dtype=np.int64) + 1) - 1


def size(numbers: Indices, coding: str) -> int:
    return sum(len(part) for part in write_ascending(numbers, coding))


# ---- gaps as bytes ----------------------------------------------------------------------------


@given(gaps_lists)
def test_gaps_are_written_as_plain_python_would(gaps: list[int]) -> None:
    length, stream = write_ascending(numbers_of(gaps), "deflate")

    assert struct.unpack("<I", length) == (len(stream),)
    assert zlib.decompress(stream) == reference.bytes_of_gaps(gaps)
    assert reference.gaps_of_bytes(zlib.decompress(stream)) == gaps


@given(gaps_lists)
def test_gaps_written_by_plain_python_are_read(gaps: list[int]) -> None:
    numbers = numbers_of(gaps).tolist()
    data = framed(zlib.compress(reference.bytes_of_gaps(gaps)))

    assert ours(data, len(gaps), numbers[-1] + 1 if gaps else 0) == numbers


@pytest.mark.parametrize("gap", [0, *EDGES, 2**49 - 1])
def test_a_gap_takes_one_byte_for_each_seven_bits(gap: int) -> None:
    _, stream = write_ascending(np.array([gap]), "deflate")

    written = zlib.decompress(stream)

    assert len(written) == max(1, -(-gap.bit_length() // 7))
    assert [byte >= 0x80 for byte in written] == [True] * (len(written) - 1) + [False]
    assert ours(framed(stream), 1, 2**49) == plain(framed(stream), 1, 2**49) == [gap]


def test_gaps_by_hand() -> None:
    _, stream = write_ascending(np.array([5, 134, 500]), "deflate")

    # Gaps 5, 128 = 0 + 1 * 128 and 365 = 109 + 2 * 128.
    assert zlib.decompress(stream) == bytes([5, 0x80, 1, 0x80 + 109, 2])


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("window", [9, 12, 15])
def test_any_zlib_stream_will_do(level: int, window: int) -> None:
    gaps = [7, 0, 300, 2] * 50
    deflater = zlib.compressobj(level, zlib.DEFLATED, window)
    stream = deflater.compress(reference.bytes_of_gaps(gaps[:90]))
    stream += deflater.flush(zlib.Z_FULL_FLUSH)  # blocks may end anywhere
    stream += deflater.compress(reference.bytes_of_gaps(gaps[90:])) + deflater.flush()

    numbers = ours(framed(stream), 200, 20_000)

    assert numbers == plain(framed(stream), 200, 20_000) == numbers_of(gaps).tolist()


@given(gap_bytes, st.integers(0, 12), st.integers(0, 2000), st.integers(0, 9))
def test_both_readers_read_or_refuse_the_same_bytes(
    inside: bytes, count: int, limit: int, level: int
) -> None:
    data = framed(zlib.compress(inside, level))

    try:
        expected = plain(data, count, limit)
    except reference.Refused:
        with pytest.raises(ModelError, match="packet"):
            ours(data, count, limit)
    else:
        assert ours(data, count, limit) == expected


@pytest.mark.parametrize(
    "inside", [b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x80\x80\x80\x00"], ids=len
)
def test_a_gap_with_bytes_it_does_not_need_is_read(inside: bytes) -> None:
    data = framed(zlib.compress(b"\x03" + inside + b"\x01"))

    assert ours(data, 3, 1000) == plain(data, 3, 1000) == [3, 4, 6]


def test_more_bytes_than_any_such_gaps_need_are_refused() -> None:
    # 2000 places are room for five gaps in five bytes, and 15 more for gaps of 128.
    wide = b"\x80\x80\x80\0" * 5

    assert ours(framed(zlib.compress(wide)), 5, FLAT.size) == [0, 1, 2, 3, 4]
    assert_refused(zlib.compress(b"\x80" + wide), 5, LENGTH)


# ---- streams that somebody has tampered with --------------------------------------------------


def packet_of(stream: bytes, count: int, layout: Layout = FLAT) -> bytes:
    """Return a packet with a good checksum that names so many weights by this stream."""
    return ternary_packet("stc", (0, 0, 2), count, framed(stream) + bytes(-(-count // 8)), layout)


def assert_refused(stream: bytes, count: int, words: str) -> None:
    """Both readers refuse a packet, and ours says why."""
    assert not check(packet_of(stream, count), FLAT, np.zeros(FLAT.size, np.float32))
    with pytest.raises(ModelError, match=words):
        ours(framed(stream), count, FLAT.size)


GOOD = zlib.compress(bytes([1, 2, 3, 4, 5]))
LENGTH = "longer or shorter than it says"


def test_a_stream_of_five_gaps_is_read() -> None:
    assert check(packet_of(GOOD, 5), FLAT, np.zeros(FLAT.size, np.float32))


@pytest.mark.parametrize("more", [b"\0", b"\xff", GOOD, zlib.compress(b"")], ids=lambda m: len(m))
def test_bytes_behind_a_stream_are_refused(more: bytes) -> None:
    assert_refused(GOOD + more, 5, LENGTH)


def test_a_stream_cut_short_anywhere_is_refused() -> None:
    for length in range(len(GOOD)):
        assert_refused(GOOD[:length], 5, LENGTH)


@pytest.mark.parametrize("num_gaps", [0, 1, 4, 6, 7, 34, 35])
def test_more_or_fewer_gaps_than_said_are_refused(num_gaps: int) -> None:
    assert_refused(zlib.compress(bytes(num_gaps)), 5, "index stream")


def test_gaps_of_which_none_was_said_are_refused() -> None:
    assert check(packet_of(zlib.compress(b""), 0), FLAT, np.zeros(FLAT.size, np.float32))
    for inside in (b"\0", b"\x80", bytes(100)):
        assert_refused(zlib.compress(inside), 0, "index stream")


@pytest.mark.parametrize(
    "gap", [b"\x80" * 7 + b"\0", b"\xff" * 7 + b"\x7f", b"\x80" * 9 + b"\0"], ids=len
)
def test_a_gap_of_more_than_seven_bytes_is_refused(gap: bytes) -> None:
    assert_refused(zlib.compress(b"\0" + gap + b"\0"), 3, "more than 7 bytes")


def test_a_last_gap_without_an_end_is_refused() -> None:
    assert_refused(zlib.compress(b"\1\2\x80"), 2, "index stream")
    assert_refused(zlib.compress(b"\1\2\x80"), 3, "index stream")
    assert_refused(zlib.compress(b"\x80"), 1, "index stream")


def test_gaps_that_lead_out_of_the_model_are_refused() -> None:
    for gaps in ([2000], [999, 1000], [0, 1998, 0], [2**49 - 1]):
        inside = reference.bytes_of_gaps(gaps)

        assert_refused(zlib.compress(inside), len(gaps), "beyond 1999")


def test_gaps_whose_sum_would_wrap_around_are_refused() -> None:
    # 2^15 times 2^49 is nought in 64 bits, so the last number would look like -1.
    data = framed(zlib.compress((b"\xff" * 6 + b"\x7f") * 2**15))

    with pytest.raises(ModelError, match="index"):
        ours(data, 2**15, 2**16)


@pytest.mark.parametrize(
    "stream",
    [
        GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
        bytes([0x78, 0x9D]) + GOOD[2:],
        GOOD[2:-4],
        zlib.compress(bytes(5), wbits=31),
        b"\x78\x9c\x07" + GOOD[3:],
        bytes(20),
    ],
    ids=["checksum", "header", "bare deflate", "gzip", "block type", "zeros"],
)
def test_what_is_no_zlib_stream_is_refused(stream: bytes) -> None:
    assert_refused(stream, 5, "cannot be inflated")


def test_a_stream_that_needs_a_dictionary_is_refused() -> None:
    deflater = zlib.compressobj(zdict=bytes(range(9)))
    stream = deflater.compress(bytes([1, 2, 3, 4, 5])) + deflater.flush()

    assert_refused(stream, 5, "cannot be inflated")


def test_a_length_that_is_not_the_stream_s_is_refused() -> None:
    base = np.zeros(FLAT.size, dtype=np.float32)
    for wrong in (*range(len(GOOD)), len(GOOD) + 1, len(GOOD) + 2, 0xFFFFFFFF):
        rest = struct.pack("<I", wrong) + GOOD + bytes(1)

        assert not check(ternary_packet("stc", (0, 0, 2), 5, rest, FLAT), FLAT, base)


# ---- memory -----------------------------------------------------------------------------------

CHUNK = 2**20


def bomb(num_chunks: int) -> bytes:
    """Return a good stream of so many MiB of zeros, by repeating the same thousand bytes."""
    deflater = zlib.compressobj(9)
    begin = deflater.compress(bytes(CHUNK)) + deflater.flush(zlib.Z_FULL_FLUSH)
    again = deflater.compress(bytes(CHUNK)) + deflater.flush(zlib.Z_FULL_FLUSH)
    checksum = (num_chunks * CHUNK % 65521 << 16) + 1  # Adler-32 of zeros
    end = b"\x03\x00" + checksum.to_bytes(4, "big")  # an empty last block
    return begin + again * (num_chunks - 1) + end


def test_a_bomb_is_a_good_stream() -> None:
    assert zlib.decompress(bomb(3)) == bytes(3 * CHUNK)


@pytest.mark.parametrize("form", [(0, 0, 2), (1, 2, 2)], ids=["weights", "kernels"])
@pytest.mark.parametrize("count", [0, 1, 600])
def test_a_bomb_is_refused_before_it_goes_off(form: tuple[int, int, int], count: int) -> None:
    stream = bomb(2048)  # 2 GiB
    rest = framed(stream) if form[0] == 0 else struct.pack("<I", count) + framed(stream)
    packet = ternary_packet("sstc", form, count, rest + bytes(4000))
    base = np.zeros(LARGE.size, dtype=np.float32)

    peak = peak_bytes(packet, LARGE, base)

    assert read(packet, LARGE, base) is None
    assert len(stream) < CHUNK * 2048 / 900
    assert peak < 2 * len(packet)


@pytest.mark.parametrize("gap", [b"\0", b"\x80" * 6 + b"\0", b"\xff" * 6 + b"\x7f"], ids=bytes.hex)
def test_a_stream_that_names_every_weight_costs_little(gap: bytes) -> None:
    packet = packet_of(zlib.compress(gap * NUM_WEIGHTS), NUM_WEIGHTS, LARGE)
    base = np.zeros(LARGE.size, dtype=np.float32)

    peak = peak_bytes(packet, LARGE, base)

    assert peak < MEMORY * (len(packet) + base.nbytes)


# ---- which coding is shorter ------------------------------------------------------------------


@given(gaps_lists | st.lists(st.integers(0, 9), max_size=6).map(lambda gaps: gaps * 30))
def test_auto_is_golomb_unless_deflate_is_shorter(gaps: list[int]) -> None:
    numbers = numbers_of(gaps)
    golomb, deflate = size(numbers, "golomb"), size(numbers, "deflate")

    coding, parts = write_shortest(numbers, "auto")

    assert coding == ("golomb" if golomb <= deflate else "deflate")
    assert sum(map(len, parts)) == min(golomb, deflate)
    assert parts == write_ascending(numbers, coding)


def test_on_a_tie_auto_is_golomb() -> None:
    # A bit for each gap by golomb, while deflate only counts them: somewhere they are as long.
    ties = [n for n in range(400) if size(np.arange(n), "golomb") == size(np.arange(n), "deflate")]

    assert ties
    assert {write_shortest(np.arange(n), "auto")[0] for n in ties} == {"golomb"}


@pytest.mark.parametrize("coding", ["golomb", "fixed", "deflate"])
def test_a_coding_that_is_asked_for_is_taken(coding: str) -> None:
    numbers = np.arange(0, 9000, 30)

    assert write_shortest(numbers, coding) == (coding, write_ascending(numbers, coding))


@pytest.mark.parametrize(("noise", "at_most"), [(0.0, 0.1), (0.02, 0.5), (0.1, 0.9)])
def test_deflate_is_shorter_where_rows_are_alike(noise: float, at_most: float) -> None:
    # As in a layer of 200 units of whose 400 inputs all but a few are dead.
    chance = np.random.default_rng(3)
    alive = chance.random(400) < 0.05
    differs = chance.random((200, 400)) < noise * alive.mean()
    numbers = np.flatnonzero(alive ^ differs)

    assert size(numbers, "deflate") < at_most * size(numbers, "golomb")
    assert write_shortest(numbers, "auto")[0] == "deflate"


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_golomb_is_shorter_where_places_are_random(density: float) -> None:
    numbers = np.flatnonzero(np.random.default_rng(3).random(200_000) < density)

    assert size(numbers, "golomb") < size(numbers, "deflate")
    assert write_shortest(numbers, "auto")[0] == "golomb"
