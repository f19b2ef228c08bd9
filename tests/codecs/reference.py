"""STC, SSTC, rounding and packets once more: slow and plain, without a line of `metis.codecs`.

Written from the two papers and from docs/packets.md. A value is a Python float that happens to be a
float32; an operation is done in float64 and then rounded, which for one operation is the same.
Only for inflating it relies on zlib, as readers in other languages would.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction

from metis.core.types import Layout

CODECS = ("dense", "float16", "bfloat16", "int8", "stc", "sstc")
CODINGS = ("golomb", "fixed", "deflate")
GOLOMB, FIXED, DEFLATE = range(3)
#: Forms of kernel maps.
NO_MAPS, SHORT_MAPS, PAPER_MAPS = range(3)
HEADER_BYTES = 28
BODY_BYTES = 20


class Refused(Exception):  # noqa: N818 (a reader's right)
    """The packet is not what the format says it must be."""


def single(value: float) -> float:
    """Return the nearest float32; infinity beyond the largest."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


# ---- layouts --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie. Kernels, tensors and the dense part count among the joined weights."""

    weights: list[int]  # in the vector
    exact: list[int]  # in the vector
    kernels: list[list[int]]
    dense: list[int]
    tensors: list[list[int]]


def places_of(layout: Layout) -> Places:
    """Return where weights, kernels and the rest lie, one value at a time."""
    found = Places([], [], [], [], [])
    for tensor in layout.tensors:
        numbers = range(tensor.offset, tensor.offset + math.prod(tensor.shape))
        if tensor.kind not in ("conv", "dense"):
            found.exact.extend(numbers)
            continue
        indices = [len(found.weights) + n for n in range(len(numbers))]
        found.weights.extend(numbers)
        found.tensors.append(indices)
        if tensor.kind == "dense":
            found.dense.extend(indices)
            continue
        cells = math.prod(tensor.shape[2:])
        while indices:
            found.kernels.append(indices[:cells])
            indices = indices[cells:]
    return found


def layout_digest(layout: Layout) -> bytes:
    """Return the eight bytes that name a layout."""
    lines = []
    for tensor in layout.tensors:
        sides = ", ".join(str(side) for side in tensor.shape)
        shape = f"({sides},)" if len(tensor.shape) == 1 else f"({sides})"
        lines.append(f"{tensor.name} {shape} {tensor.kind} {tensor.offset}")
    return hashlib.sha256("\n".join(lines).encode("utf-8")).digest()[:8]


# ---- what a codec keeps ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What the other end makes of an update, and what it was not told."""

    model: list[float]
    residual: list[float]
    kept: list[int]  # joined indices; of a quantized update all
    mu: float = 0.0


def half_up(share: float, count: int) -> int:
    return math.floor(share * count + 0.5)


def largest(values: list[float], among: list[int], count: int) -> list[int]:
    """Return the indices with the largest magnitudes: of equals the first, never a zero."""
    order = sorted(among, key=lambda index: (-abs(values[index]), index))
    return sorted(index for index in order[:count] if values[index] != 0.0)


def kept_weights(
    layout: Layout, change: list[float], p: float, f: float | None = None, of_kept: bool = False
) -> list[int]:
    """Return which joined weights STC (no f) or SSTC keeps."""
    places = places_of(layout)
    everything = list(range(len(places.weights)))
    if f is None:
        return largest(change, everything, half_up(p, len(everything)))
    scores = []
    for kernel in places.kernels:
        scores.append(math.fsum(abs(change[index]) for index in kernel) / len(kernel))
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    among = list(places.dense)
    for number in order[: half_up(f, len(scores))]:
        among.extend(places.kernels[number])
    return largest(change, among, half_up(p, len(among) if of_kept else len(everything)))


def changes(
    layout: Layout, base: list[float], local: list[float], residual: list[float] | None
) -> list[float]:
    """Return local - base of the joined weights, with what was left out before."""
    found = [single(local[place] - base[place]) for place in places_of(layout).weights]
    if residual is not None:
        found = [single(new + old) for new, old in zip(found, residual, strict=True)]
    return found


def ternary(
    layout: Layout,
    base: list[float],
    local: list[float],
    p: float,
    f: float | None = None,
    of_kept: bool = False,
    residual: list[float] | None = None,
) -> Answer:
    """Return what STC or SSTC makes of an update."""
    change = changes(layout, base, local, residual)
    kept = kept_weights(layout, change, p, f, of_kept)
    mu = single(math.fsum(abs(change[index]) for index in kept) / len(kept)) if kept else 0.0
    told = [0.0] * len(change)
    for index in kept:
        told[index] = mu if change[index] > 0.0 else -mu
    return _answer(layout, base, local, change, told, kept, mu)


def quantized(
    layout: Layout,
    number: str,
    base: list[float],
    local: list[float],
    residual: list[float] | None = None,
) -> Answer:
    """Return what float16, bfloat16 or int8 makes of an update."""
    change = changes(layout, base, local, residual)
    if number == "float16":
        told = [nearest(value, 11, -24) for value in change]
    elif number == "bfloat16":
        told = [nearest(value, 8, -133) for value in change]
    else:
        told = [0.0] * len(change)
        for tensor in places_of(layout).tensors:
            scale = single(max((abs(change[index]) for index in tensor), default=0.0) / 127.0)
            for index in tensor:
                steps = round(single(change[index] / scale)) if scale else 0
                told[index] = single(max(-127, min(127, steps)) * scale)
    return _answer(layout, base, local, change, told, list(range(len(change))))


def nearest(value: float, bits: int, lowest: int) -> float:
    """Return the nearest number of so many bits, the last at least 2^lowest; ties to even."""
    if value == 0.0:
        return value
    step = Fraction(2) ** max(math.frexp(value)[1] - bits, lowest)
    return math.copysign(float(round(Fraction(value) / step) * step), value)


def _answer(
    layout: Layout,
    base: list[float],
    local: list[float],
    change: list[float],
    told: list[float],
    kept: list[int],
    mu: float = 0.0,
) -> Answer:
    places = places_of(layout)
    model = list(local)
    for place in places.weights:
        model[place] = base[place]
    for index in kept:
        place = places.weights[index]
        model[place] = single(base[place] + told[index])
    left = [single(whole - part) for whole, part in zip(change, told, strict=True)]
    return Answer(model, left, kept, mu)


# ---- packets, bit by bit ----------------------------------------------------------------------


def crc32(data: bytes) -> int:
    """Return the checksum of Ethernet and zip files, one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@dataclass(slots=True)
class Stream:
    """What is left of a packet."""

    data: bytes

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self.data):
            raise Refused(f"{num_bytes} bytes wanted, {len(self.data)} left")
        taken, self.data = self.data[:num_bytes], self.data[num_bytes:]
        return taken

    def integer(self, num_bytes: int) -> int:
        value = 0
        for position, byte in enumerate(self.take(num_bytes)):
            value += byte << (8 * position)
        return value

    def floats(self, count: int) -> list[float]:
        return list(struct.unpack(f"<{count}f", self.take(4 * count)))

    def bits(self, count: int) -> list[int]:
        """Return bits, the highest of a byte first; what fills the last byte must be zero."""
        found = bits_of(self.take((count + 7) // 8))
        if 1 in found[count:]:
            raise Refused("bits set beyond the last")
        return found[:count]


def bits_of(data: bytes) -> list[int]:
    return [(byte >> (7 - place)) & 1 for byte in data for place in range(8)]


def read_ascending(stream: Stream, count: int, limit: int, coding: int) -> list[int]:
    """Read so many different numbers below a limit."""
    if count > limit:
        raise Refused(f"{count} numbers below {limit}")
    if coding == DEFLATE:
        gaps = _deflated(stream.take(stream.integer(4)), count, count + limit // 128)
    else:
        gaps = _in_bits(stream, count, coding)
    numbers, last = [], -1
    for gap in gaps:
        last += 1 + gap
        numbers.append(last)
    if last >= limit:
        raise Refused(f"{last} is not below {limit}")
    return numbers


def _in_bits(stream: Stream, count: int, coding: int) -> list[int]:
    """Return gaps in so many bits each or, if the coding is golomb, the lowest bits of each."""
    high = [0] * count
    width = stream.integer(1)
    if coding == GOLOMB:
        high = _unary(stream.take(stream.integer(4)), count)
    if width > 48:
        raise Refused(f"{width} bits")
    bits = stream.bits(count * width)
    gaps = []
    for position in range(count):
        low = 0
        for bit in bits[position * width : (position + 1) * width]:
            low = 2 * low + bit
        gaps.append((high[position] << width) + low)
    return gaps


def _deflated(data: bytes, count: int, most: int) -> list[int]:
    """Return gaps of a few bytes each from one whole zlib stream with nothing behind it."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise Refused(f"zlib: {error}") from None
    if not inflater.eof or inflater.unused_data or len(found) > most:
        raise Refused("not one whole zlib stream")
    gaps = gaps_of_bytes(found)
    if len(gaps) != count:
        raise Refused(f"{len(gaps)} gaps, not {count}")
    return gaps


def gaps_of_bytes(data: bytes) -> list[int]:
    """Return numbers of seven bits a byte, the lowest first; the last byte of each is below 128."""
    gaps, value, length = [], 0, 0
    for byte in data:
        value += (byte % 128) * 128**length
        length += 1
        if length > 7:
            raise Refused("a gap of more than seven bytes")
        if byte < 128:
            gaps.append(value)
            value = length = 0
    if length:
        raise Refused("the last gap has no end")
    return gaps


def bytes_of_gaps(gaps: list[int]) -> bytes:
    """Return gaps in as few bytes as can be; the inverse of `gaps_of_bytes`."""
    found = []
    for gap in gaps:
        while gap >= 128:
            found.append(128 + gap % 128)
            gap //= 128
        found.append(gap)
    return bytes(found)


def _unary(data: bytes, count: int) -> list[int]:
    """Return numbers, each as so many zeros before a one; the last one is in the last byte."""
    found, zeros = [], 0
    for bit in bits_of(data):
        if bit:
            found.append(zeros)
            zeros = 0
        else:
            zeros += 1
    if len(found) != count or zeros >= 8:
        raise Refused(f"{len(found)} numbers in unary, then {zeros} zeros")
    return found


def decode(packet: bytes, layout: Layout, base: list[float]) -> list[float]:
    """Return the model in a packet of any codec, or raise Refused."""
    stream = Stream(packet)
    if stream.take(4) != b"MTIS" or stream.integer(1) != 1:
        raise Refused("not a packet of this format")
    codec = stream.integer(1)
    stream.take(2)
    checksum = stream.integer(4)
    if crc32(packet[:8] + bytes(4) + packet[12:]) != checksum:
        raise Refused("checksum")
    size = sum(math.prod(tensor.shape) for tensor in layout.tensors)
    if stream.take(8) != layout_digest(layout) or stream.integer(8) != size:
        raise Refused("another layout")
    if codec >= len(CODECS):
        raise Refused(f"codec {codec}")
    if CODECS[codec] == "dense":
        model = stream.floats(size)
    elif CODECS[codec] in ("stc", "sstc"):
        model = _ternary_model(stream, CODECS[codec], places_of(layout), base)
    else:
        model = _quantized_model(stream, CODECS[codec], places_of(layout), base)
    if stream.data:
        raise Refused(f"{len(stream.data)} bytes are left")
    return model


def _quantized_model(stream: Stream, number: str, places: Places, base: list[float]) -> list[float]:
    exact = stream.floats(len(places.exact))
    count = len(places.weights)
    if number == "float16":
        told = list(struct.unpack(f"<{count}e", stream.take(2 * count)))
    elif number == "bfloat16":
        halves = [stream.take(2) for _ in range(count)]
        told = [float(struct.unpack("<f", bytes(2) + half)[0]) for half in halves]
    else:
        scales = stream.floats(len(places.tensors))
        if any(not 0.0 <= scale < math.inf for scale in scales):
            raise Refused("a scale is negative or not finite")
        told = [0.0] * count
        for scale, tensor in zip(scales, places.tensors, strict=True):
            for index in tensor:
                (steps,) = struct.unpack("<b", stream.take(1))
                told[index] = single(steps * scale)
    if not all(math.isfinite(change) for change in told):
        raise Refused("a change is not finite")
    return _rebuilt(places, base, exact, dict(enumerate(told)))


def _ternary_model(stream: Stream, codec: str, places: Places, base: list[float]) -> list[float]:
    maps, kernel_coding, index_coding = (stream.integer(1) for _ in range(3))
    stream.take(1)
    mu, p, f = stream.floats(3)
    num_named = stream.integer(4)
    if max(kernel_coding, index_coding) > DEFLATE or not 0.0 <= mu < math.inf:
        raise Refused(f"codings {kernel_coding} and {index_coding}, mu {mu}")
    if maps > PAPER_MAPS or (codec == "stc" and maps != NO_MAPS):
        raise Refused(f"maps of form {maps} in {codec}")
    if not (0.0 <= p <= 1.0 and 0.0 <= f <= 1.0):
        raise Refused(f"p = {p}, f = {f}")
    exact = stream.floats(len(places.exact))
    told: dict[int, float] = {}
    nameable = list(range(len(places.weights)))
    if maps != NO_MAPS:
        nameable = places.dense
        numbers = read_ascending(stream, stream.integer(4), len(places.kernels), kernel_coding)
        cells = [index for number in numbers for index in places.kernels[number]]
        told = (_short_maps if maps == SHORT_MAPS else _paper_maps)(stream, cells, mu)
    named = read_ascending(stream, num_named, len(nameable), index_coding)
    for position, minus in zip(named, stream.bits(num_named), strict=True):
        told[nameable[position]] = -mu if minus else mu
    return _rebuilt(places, base, exact, told)


def _paper_maps(stream: Stream, cells: list[int], mu: float) -> dict[int, float]:
    bits, told = stream.bits(2 * len(cells)), {}
    for number, index in enumerate(cells):
        minus, plus = bits[2 * number], bits[2 * number + 1]
        if minus and plus:
            raise Refused("a cell that is plus and minus")
        if minus or plus:
            told[index] = -mu if minus else mu
    return told


def _short_maps(stream: Stream, cells: list[int], mu: float) -> dict[int, float]:
    marks = stream.bits(len(cells))
    chosen = [index for index, mark in zip(cells, marks, strict=True) if mark]
    signs = stream.bits(len(chosen))
    return {index: -mu if minus else mu for index, minus in zip(chosen, signs, strict=True)}


def _rebuilt(
    places: Places, base: list[float], exact: list[float], told: dict[int, float]
) -> list[float]:
    model = list(base)
    for place, value in zip(places.exact, exact, strict=True):
        model[place] = value
    for index, change in told.items():
        place = places.weights[index]
        model[place] = single(base[place] + change)
    return model
