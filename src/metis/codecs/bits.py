"""Ascending numbers as bytes, by the gaps between them. No loop over elements.

fixed    every gap in as many bits as the largest needs
golomb   Golomb-Rice: of a gap g, g >> b in unary and its lowest b bits. All unary parts lie in one
         stream and all low bits in another: as long as one code after the other, but both can be
         written and read by whole arrays. Near the entropy if places are random.
deflate  gaps as bytes (LEB128), compressed by zlib. Shorter where few gaps make up most of all, as
         in real updates, whose layers differ in how much of them is kept.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metis.codecs.packet import Reader
from metis.core.errors import ModelError

Indices = NDArray[np.int64]
Coding: TypeAlias = Literal["golomb", "fixed", "deflate"]
#: The number of each coding in a packet.
CODINGS: dict[Coding, int] = {"golomb": 0, "fixed": 1, "deflate": 2}

_RICE = struct.Struct("<BI")  # parameter, bytes of the unary stream
_FIXED = struct.Struct("<B")  # width
_DEFLATE = struct.Struct("<I")  # bytes of the compressed stream
_MAX_WIDTH = 48  # bits of a gap: more values than any model has
_MAX_BYTES = 7  # of a gap, seven bits each
_MANY = 1 << 18  # gaps: looking for what repeats among more would take longer than all the rest


def best_parameter(density: float) -> int:
    """Return the Rice parameter for random positions, each taken with this probability.

    b* = 1 + floor(log2(log(phi - 1) / log(1 - p))), phi the golden ratio (Sattler et al. 2019).
    """
    if not 0.0 < density < 1.0:
        return 0
    golden = (math.sqrt(5.0) + 1.0) / 2.0
    ratio = math.log(golden - 1.0) / math.log1p(-density)
    return min(_MAX_WIDTH, max(0, 1 + math.floor(math.log2(ratio))))


def rice_bits(density: float) -> float:
    """Return the mean bits of a Rice-coded gap between random positions, each taken with this
    probability: b* + 1 / (1 - (1 - p)^(2^b*)) (Sattler et al. 2019)."""
    if density >= 1.0:
        return 1.0
    parameter = best_parameter(density)
    return parameter - 1.0 / math.expm1(2**parameter * math.log1p(-density)) if density else 0.0


def entropy_bits(density: float) -> float:
    """Return the entropy of such a gap: no code of single gaps at random places is shorter."""
    if density in (0.0, 1.0):
        return 0.0
    other = 1.0 - density
    return -(density * math.log2(density) + other * math.log2(other)) / density


def write_shortest(numbers: Indices, coding: str) -> tuple[Coding, list[bytes]]:
    """Return ascending numbers as bytes, and how they are coded: as asked, or as is shortest."""
    if coding in CODINGS:
        chosen: Coding = coding
        return chosen, write_ascending(numbers, chosen)
    golomb, deflate = (write_ascending(numbers, one) for one in ("golomb", "deflate"))
    if sum(map(len, golomb)) <= sum(map(len, deflate)):
        return "golomb", golomb
    return "deflate", deflate


def write_ascending(numbers: Indices, coding: str) -> list[bytes]:
    """Return ascending numbers, none twice, as bytes."""
    gaps = np.diff(numbers, prepend=-1) - 1
    if coding == "fixed":
        width = int(gaps.max(initial=0)).bit_length()
        return [_FIXED.pack(width), _pack_low_bits(gaps, width)]
    if coding == "deflate":
        strategy = zlib.Z_HUFFMAN_ONLY if len(gaps) > _MANY else zlib.Z_DEFAULT_STRATEGY
        deflater = zlib.compressobj(6, strategy=strategy)
        stream = deflater.compress(_leb128(gaps)) + deflater.flush()
        return [_DEFLATE.pack(len(stream)), stream]
    parameter = _smallest(gaps)
    high = gaps >> parameter
    ends = np.cumsum(high + 1)
    unary = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    unary[ends - 1] = 1
    stream = np.packbits(unary).tobytes()
    return [_RICE.pack(parameter, len(stream)), stream, _pack_low_bits(gaps, parameter)]


def read_ascending(reader: Reader, count: int, limit: int, coding: Coding) -> Indices:
    """Read so many numbers below a limit; ModelError if that is not what is there."""
    if count > limit:
        raise ModelError(f"packet names {count} of only {limit} places")
    if coding == "fixed":
        (width,) = reader.numbers(_FIXED)
        gaps = _unpack_low_bits(reader, count, width)
    elif coding == "deflate":
        (num_bytes,) = reader.numbers(_DEFLATE)
        # All gaps together are below the limit, and a byte more is for a gap of 128 or more.
        most = count + (limit >> 7)
        gaps = _from_leb128(_inflated(reader.take(num_bytes), most), count)
    else:
        gaps = _read_rice(reader, count, limit)
    if count and int(gaps.max()) >= limit:
        raise ModelError(f"packet has an index beyond {limit - 1}")
    numbers = np.cumsum(gaps + 1) - 1  # below limit * limit, so this cannot have wrapped around
    if count and int(numbers[-1]) >= limit:
        raise ModelError(f"packet has an index of {int(numbers[-1])}, beyond {limit - 1}")
    return numbers


def _read_rice(reader: Reader, count: int, limit: int) -> Indices:
    parameter, num_bytes = reader.numbers(_RICE)
    if 8 * num_bytes > count + (limit >> parameter) + 7:
        raise ModelError(f"packet has an index stream of {num_bytes} bytes: more than it needs")
    ones = np.flatnonzero(np.unpackbits(reader.array("u1", num_bytes)))
    if len(ones) != count or num_bytes != (int(ones[-1]) // 8 + 1 if count else 0):
        raise ModelError(f"packet says {count} indices, but its index stream has {len(ones)}")
    gaps = _unpack_low_bits(reader, count, parameter)
    high = np.diff(ones, prepend=-1) - 1
    if count and int(high.max()) > limit >> parameter:
        raise ModelError(f"packet has an index beyond {limit - 1}")
    gaps += high << parameter
    return gaps


def write_flags(flags: NDArray[np.bool_]) -> bytes:
    """Return one bit each."""
    return np.packbits(flags).tobytes()


def read_flags(reader: Reader, count: int) -> NDArray[np.bool_]:
    """Read so many bits; ModelError unless those that fill the last byte are zero."""
    bits = np.unpackbits(reader.array("u1", -(-count // 8)))
    if bits[count:].any():
        raise ModelError("packet has bits set beyond its last flag")
    return bits[:count].astype(bool)


def _leb128(values: Indices) -> bytes:
    """Return numbers as bytes, seven bits each, the lowest first; all but the last have bit 7."""
    lengths = np.ones(len(values), dtype=np.int64)
    for place in range(1, _MAX_BYTES):
        lengths += values >= 1 << 7 * place
    ends = np.cumsum(lengths)
    found = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        more = (lengths[here] > place + 1).astype(np.int64) << 7
        found[(ends - lengths)[here] + place] = (values[here] >> 7 * place) & 0x7F | more
    return found.tobytes()


def _from_leb128(stream: bytes, count: int) -> Indices:
    found = np.frombuffer(stream, dtype=np.uint8)
    ends = np.flatnonzero(found < 0x80)
    if len(ends) != count or len(found) != (int(ends[-1]) + 1 if count else 0):
        raise ModelError(f"packet says {count} indices, but its index stream has {len(ends)}")
    lengths = np.diff(ends, prepend=-1)
    longest = int(lengths.max(initial=0))
    if longest > _MAX_BYTES:
        raise ModelError(f"packet has an index gap of more than {_MAX_BYTES} bytes")
    values = found[ends].astype(np.int64)
    for place in range(1, longest):  # from the last byte of a gap to its first
        here = np.flatnonzero(lengths > place)
        values[here] = values[here] << 7 | found[ends[here] - place] & 0x7F
    return values


def _inflated(stream: memoryview, max_bytes: int) -> bytes:
    """Return what was compressed, if it is no longer than it can be and nothing follows it."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(stream, max_bytes + 1)
    except zlib.error as error:
        raise ModelError(f"packet has an index stream that cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data or len(found) > max_bytes:
        raise ModelError("packet has an index stream that is longer or shorter than it says")
    return found


def _smallest(gaps: Indices) -> int:
    """Return the Rice parameter that takes the fewest bits for just these gaps."""
    if not len(gaps):
        return 0
    # The size is convex in the parameter: walk down from a guess, or up.
    best = max(0, int(gaps.mean() + 1.0).bit_length() - 1)
    size = _rice_size(gaps, best)
    for step in (-1, 1):
        while best + step >= 0:
            other = _rice_size(gaps, best + step)
            if other >= size:
                break
            best, size = best + step, other
    return best


def _rice_size(gaps: Indices, parameter: int) -> int:
    return int((gaps >> parameter).sum()) + len(gaps) * (1 + parameter)


def _pack_low_bits(values: Indices, width: int) -> bytes:
    """Return the lowest bits of each value, the highest of them first."""
    if width in (8, 16, 32):
        return values.astype(f">u{width // 8}").tobytes()  # what packing would come to
    bits = np.empty((len(values), width), dtype=np.uint8)
    for place in range(width):
        bits[:, place] = (values >> (width - 1 - place)) & 1
    return np.packbits(bits).tobytes()


def _unpack_low_bits(reader: Reader, count: int, width: int) -> Indices:
    if width > _MAX_WIDTH:
        raise ModelError(f"packet has gaps of {width} bits; at most {_MAX_WIDTH} are allowed")
    flags = read_flags(reader, count * width).reshape(count, width)
    values = np.zeros(count, dtype=np.int64)
    for place in range(width):
        values = (values << 1) | flags[:, place]
    return values
