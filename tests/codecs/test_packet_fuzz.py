"""Whatever is done to a packet, it is refused or read as the plain reader reads it.

A packet is changed in two ways: as noise on a line would, which its checksum must show, and by
somebody who then mends the checksum. Decoders answer with a model or with ModelError, never with
another exception or a warning, and take no more memory than a few times packet and model.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
import pytest

from metis.codecs.bits import Coding
from metis.codecs.dense import Dense
from metis.codecs.packet import HEADER
from metis.codecs.quantized import Number, Quantized
from metis.codecs.ternary import Ternary
from metis.core.codec import Codec
from metis.core.errors import ModelError
from metis.core.types import Layout, Vector, as_vector
from tests.codecs.forged import (
    LARGE,
    MEMORY,
    NUM_WEIGHTS,
    check,
    mended,
    peak_bytes,
    read,
    ternary_packet,
)
from tests.codecs.updates import layout_of, make_change
from tests.vectors.make import FOLDER, ROWS

LAYOUTS = (
    layout_of(("conv", (2, 2, 3, 3)), ("plain", (2,)), ("dense", (4, 3)), ("buffer", (2,))),
    layout_of(("buffer", (1,)), ("dense", (2, 9)), ("conv", (3, 1, 2)), ("conv", (2, 2, 1, 1))),
    layout_of(("dense", (2, 3)), ("conv", (3, 4, 5, 5)), ("plain", (2,)), ("conv", (2, 2, 3))),
    layout_of(("dense", (5, 5))),
    layout_of(("plain", (3,))),
    Layout(()),
)
NASTY_INTEGERS = (
    0,
    1,
    7,
    8,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**64 - 1,
)
NASTY_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, -0.0, 1e-45, 3.4e38)
#: The codings of a writer, and what it does by itself.
CODINGS = (*get_args(Coding), "auto")


@dataclass(frozen=True, slots=True)
class Sent:
    """A good packet and what is needed to read it."""

    name: str
    layout: Layout
    base: Vector
    packet: bytes


def codecs_of(layout: Layout) -> list[tuple[str, Codec]]:
    """Return every codec and coding there is."""
    found: list[tuple[str, Codec]] = [("dense", Dense(layout))]
    found += [(number, Quantized(layout, number)) for number in get_args(Number)]
    for coding in CODINGS:
        found += [(f"stc {coding}", Ternary(layout, 0.3, coding=coding))]
        for f in (0.5, 1.0):
            found += [(f"sstc {coding} f={f}", Ternary(layout, f / 2, f, coding=coding))]
    return found


@cache
def good_packets() -> list[Sent]:
    sent = []
    for seed, layout in enumerate(LAYOUTS):
        change = make_change(layout, "in few kernels", seed)
        for name, codec in codecs_of(layout):
            packet, _ = codec.encode(change.local, change.base)
            sent.append(Sent(f"{seed} {name}", layout, change.base, packet))
    for name in ("sstc-auto", "sstc-deflate"):  # in models as small as those above no maps pay
        record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        base = np.array(record["base"], dtype=np.float32)
        sent.append(Sent(name, ROWS, base, bytes.fromhex(record["packet"])))
    return sent


def tampered(packet: bytes, chance: random.Random) -> bytes:
    """Return a packet with one to three things changed, mostly behind its header."""
    data = bytearray(packet)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        start = 0 if chance.random() < 0.05 else HEADER.size
        at = chance.randint(min(start, len(data)), min(len(data), HEADER.size + 40))
        if chance.random() < 0.4:
            at = chance.randint(min(start, len(data)), len(data))
        match chance.randrange(7):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                data[at : at + 4] = chance.randbytes(4)
            case 2:
                size = chance.choice((1, 2, 4, 8))
                number = chance.choice((*NASTY_INTEGERS, chance.randrange(64)))
                data[at : at + size] = (number % 256**size).to_bytes(size, "little")
            case 3:
                data[at : at + 4] = struct.pack("<f", chance.choice(NASTY_FLOATS))
            case 4:
                del data[at : at + chance.choice((1, 2, 4, 9999))]
            case 5:
                data[at:at] = chance.randbytes(chance.choice((1, 4, 16)))
            case 6 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
    return mended(bytes(data))


def attack(first: int, count: int) -> int:
    """Read so many tampered packets; return how many of them were read as models."""
    num_read = 0
    for seed in range(first, first + count):
        chance = random.Random(seed)
        sent = chance.choice(good_packets())
        packet = tampered(sent.packet, chance)
        base = sent.base
        if chance.random() < 0.2:  # a sum may be infinite then, which is not for a codec to judge
            base = np.full(len(base), chance.choice((-3.4e38, 3.4e38)), dtype=np.float32)
        try:
            num_read += check(packet, sent.layout, base)
        except Exception as error:
            error.add_note(f"seed {seed}, {sent.name}, packet {packet.hex()}")
            raise
    return num_read


def test_the_packets_are_of_every_kind() -> None:
    bodies = {sent.packet[5:6] + sent.packet[28:31] for sent in good_packets() if sent.layout.size}

    # Codec, form of the kernel maps, coding of kernel and of weight indices.
    assert {tuple(kind) for kind in bodies if kind[0] >= 4} == {
        *((4, 0, 0, 0), (4, 0, 0, 1), (4, 0, 0, 2)),
        *((5, 0, 0, 0), (5, 0, 0, 2), (5, 2, 1, 1)),
        *((5, 1, 0, 0), (5, 1, 0, 2), (5, 1, 2, 2)),
    }
    assert {kind[0] for kind in bodies} == set(range(6))


@pytest.mark.parametrize("sent", good_packets(), ids=lambda sent: sent.name)
def test_a_packet_cut_short_anywhere_is_refused(sent: Sent) -> None:
    assert check(sent.packet, sent.layout, sent.base)

    for length in range(len(sent.packet)):
        short = sent.packet[:length]
        assert read(short, sent.layout, sent.base) is None
        assert read(mended(short), sent.layout, sent.base) is None


@pytest.mark.parametrize("sent", good_packets(), ids=lambda sent: sent.name)
def test_a_packet_with_something_behind_it_is_refused(sent: Sent) -> None:
    for more in (b"\x00", b"\xff", bytes(8), sent.packet):
        assert read(sent.packet + more, sent.layout, sent.base) is None
        assert read(mended(sent.packet + more), sent.layout, sent.base) is None


@pytest.mark.parametrize("sent", good_packets(), ids=lambda sent: sent.name)
def test_a_packet_with_any_one_bit_flipped_is_refused(sent: Sent) -> None:
    for number in range(8 * len(sent.packet)):
        damaged = bytearray(sent.packet)
        damaged[number // 8] ^= 1 << (number % 8)

        assert read(bytes(damaged), sent.layout, sent.base) is None


def test_a_packet_is_of_no_use_for_another_layout() -> None:
    for sent in good_packets():
        for layout in LAYOUTS:
            if layout != sent.layout:
                assert read(sent.packet, layout, np.zeros(layout.size, np.float32)) is None


def test_a_tampered_packet_is_refused_or_read_as_the_format_says() -> None:
    num_read = attack(first=0, count=12_000)

    assert 1200 < num_read < 10_800  # neither did nothing get through, nor did nothing matter


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_many_tampered_packets_are_refused_or_read_as_the_format_says(block: int) -> None:
    assert attack(first=1_000_000 * (block + 1), count=50_000) > 0


# ---- memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, _ in codecs_of(LARGE)])
def test_reading_a_good_packet_takes_a_few_times_its_model(name: str) -> None:
    change = make_change(LARGE, "any", seed=1)
    packet = dict(codecs_of(LARGE))[name].encode(change.local, change.base)[0]

    peak = peak_bytes(packet, LARGE, change.base)

    assert peak < MEMORY * (len(packet) + change.base.nbytes)


@pytest.mark.parametrize(
    ("form", "count", "rest"),
    [
        ((0, 0, 1), 0xFFFFFFFF, bytes([48])),
        ((0, 0, 1), NUM_WEIGHTS, bytes([48])),
        ((0, 0, 1), NUM_WEIGHTS, bytes([255])),
        ((0, 0, 1), NUM_WEIGHTS, bytes([0])),
        ((0, 0, 1), NUM_WEIGHTS, bytes([48]) + b"\xff" * 6 * NUM_WEIGHTS),
        ((0, 0, 0), 0xFFFFFFFF, struct.pack("<BI", 0, 0xFFFFFFFF)),
        ((0, 0, 0), 4, struct.pack("<BI", 0, 0xFFFFFFFF)),
        ((0, 0, 0), 4, struct.pack("<BI", 0, 500_000) + b"\xff" * 500_001),
        ((0, 0, 0), 4, struct.pack("<BI", 0, 500_000) + bytes(500_001)),
        ((0, 0, 0), NUM_WEIGHTS, struct.pack("<BI", 255, 2500) + b"\xff" * 2500),
        ((1, 0, 0), 0, struct.pack("<IBI", 0xFFFFFFFF, 0, 0xFFFFFFFF)),
        ((1, 0, 0), 0, struct.pack("<IBI", 600, 0, 75) + b"\xff" * 75),
        ((2, 1, 1), 0, struct.pack("<IB", 600, 0)),
        ((2, 1, 1), 0, struct.pack("<IB", 0xFFFFFFFF, 0) + bytes(9)),
        ((0, 0, 2), 0xFFFFFFFF, struct.pack("<I", 0xFFFFFFFF)),
        ((0, 0, 2), NUM_WEIGHTS, struct.pack("<I", 0xFFFFFFFF)),
        ((1, 2, 2), 0, struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)),
    ],
)
def test_a_packet_that_claims_much_costs_little(
    form: tuple[int, int, int], count: int, rest: bytes
) -> None:
    packet = ternary_packet("sstc", form, count, rest)
    base = np.zeros(LARGE.size, dtype=np.float32)

    peak = peak_bytes(packet, LARGE, base)

    assert read(packet, LARGE, base) is None
    assert peak < MEMORY * (len(packet) + base.nbytes)


def test_a_packet_that_claims_a_huge_model_costs_nothing() -> None:
    header = HEADER.pack(b"MTIS", 1, 0, 0, bytes.fromhex(LARGE.digest), 2**64 - 1)

    assert peak_bytes(mended(header), LARGE, np.zeros(LARGE.size, np.float32)) < 100_000


def test_tampered_packets_cost_little() -> None:
    change = make_change(LARGE, "any", seed=1)
    for name, codec in codecs_of(LARGE):
        packet = codec.encode(change.local, change.base)[0]
        for seed in range(12):
            changed = tampered(packet, random.Random(seed))

            peak = peak_bytes(changed, LARGE, change.base)

            assert peak < MEMORY * (len(packet) + change.base.nbytes), f"{name}, seed {seed}"


def test_indices_that_wrap_around_are_refused_before_anything_is_read_there() -> None:
    layout = layout_of(("dense", (300, 300)))
    count = 2**16
    gaps = b"\xff" * (6 * count)  # 2^16 steps of 2^48 come to nought in 64 bits
    packet = ternary_packet("stc", (0, 0, 1), count, bytes([48]) + gaps + bytes(count // 8), layout)

    with pytest.raises(ModelError, match="index"):
        as_vector(Ternary(layout, 0.1).decode(packet, np.zeros(layout.size, np.float32)))
