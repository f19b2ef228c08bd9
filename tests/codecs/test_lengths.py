"""How long STC and SSTC packets are: as long as their parts, and the shorter of what there is."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.packet import HEADER, Reader, read_header
from metis.codecs.ternary import NO_MAPS, PAPER_MAPS, SHORT_MAPS, Body, Ternary, read_body
from metis.core.types import Layout, read_only
from tests.codecs import reference
from tests.codecs.updates import Change, changes, layout_of, shares, vector

codings = st.sampled_from(["auto", "golomb", "deflate", "fixed"])


def packed(codec: Ternary, change: Change) -> bytes:
    return codec.encode(change.local, change.base)[0]


def body_of(packet: bytes) -> Body:
    return read_body(Reader(packet, HEADER.size), read_header(packet).codec)


def size_of_numbers(numbers: list[int], coding: str) -> set[int]:
    """Return how many bytes ascending numbers may take: Rice parameters can be equally good."""
    gaps = [b - a - 1 for a, b in zip([-1, *numbers], numbers, strict=False)]
    if coding == "fixed":
        width = max((gap.bit_length() for gap in gaps), default=0)
        return {1 + -(-len(gaps) * width // 8)}
    if coding == "deflate":
        return {4 + len(zlib.compress(reference.bytes_of_gaps(gaps)))}
    if coding == "auto":
        (deflate,) = size_of_numbers(numbers, "deflate")
        return {min(golomb, deflate) for golomb in size_of_numbers(numbers, "golomb")}
    unary = [sum((gap >> b) + 1 for gap in gaps) for b in range(20)]
    best = min(bits + b * len(gaps) for b, bits in enumerate(unary))
    return {
        5 + -(-bits // 8) + -(-len(gaps) * b // 8)
        for b, bits in enumerate(unary)
        if bits + b * len(gaps) == best
    }


def possible_sizes(layout: Layout, kept: list[int], coding: str, maps: int) -> set[int]:
    """Return how many bytes a packet may take, part by part."""
    places = reference.places_of(layout)
    fixed = reference.HEADER_BYTES + reference.BODY_BYTES + 4 * len(places.exact)
    if maps == NO_MAPS:
        signs = -(-len(kept) // 8)
        return {fixed + signs + index for index in size_of_numbers(kept, coding)}
    numbers = [n for n, cells in enumerate(places.kernels) if set(cells) & set(kept)]
    num_cells = sum(len(places.kernels[number]) for number in numbers)
    named = [position for position, index in enumerate(places.dense) if index in set(kept)]
    in_maps = len(kept) - len(named)
    fixed += 4 + -(-len(named) // 8)
    if maps == PAPER_MAPS:
        fixed += -(-2 * num_cells // 8)
    else:
        fixed += -(-num_cells // 8) + -(-in_maps // 8)
    return {
        fixed + index + others
        for index in size_of_numbers(numbers, coding)
        for others in size_of_numbers(named, coding)
    }


@given(changes, shares, codings)
def test_an_stc_packet_is_as_long_as_its_parts(change: Change, p: float, coding: str) -> None:
    packet = packed(Ternary(change.layout, p, coding=coding), change)

    kept = reference.ternary(*change.lists(), p).kept
    assert len(packet) in possible_sizes(change.layout, kept, coding, NO_MAPS)


@given(changes, shares, shares, codings)
def test_an_sstc_packet_is_as_long_as_its_parts_and_has_maps_only_if_they_pay(
    change: Change, p: float, f: float, coding: str
) -> None:
    packet = packed(Ternary(change.layout, p, f, coding=coding), change)

    maps = body_of(packet).maps
    kept = reference.ternary(*change.lists(), p, f).kept
    forms = (PAPER_MAPS,) if coding == "fixed" else (NO_MAPS, SHORT_MAPS)
    sizes = {form: possible_sizes(change.layout, kept, coding, form) for form in forms}
    assert len(packet) in sizes[maps]
    assert all(len(packet) <= max(possible) for possible in sizes.values())


@given(changes, shares, st.none() | shares)
def test_auto_is_never_longer_than_golomb_or_deflate_alone(
    change: Change, p: float, f: float | None
) -> None:
    sizes = {
        coding: len(
            Ternary(change.layout, p, f, coding=coding).encode(change.local, change.base)[0]
        )
        for coding in ("auto", "golomb", "deflate")
    }

    assert sizes["auto"] <= min(sizes["golomb"], sizes["deflate"])


@pytest.mark.parametrize("f", [None, 0.5])
def test_units_with_the_same_dead_inputs_are_packed_by_deflate(f: float | None) -> None:
    # 12 of 200 inputs are alive, and what they change is told of each of 100 units.
    layout = layout_of(("conv", (4, 4, 3, 3)), ("dense", (100, 200)), ("plain", (100,)))
    chance = np.random.default_rng(5)
    alive = chance.choice(200, 12, replace=False)
    local = np.zeros(layout.size, dtype=np.float32)
    local[144:20144].reshape(100, 200)[:, alive] = 1.0 + chance.random((100, 12))
    change = Change(layout, vector(*np.zeros(layout.size)), read_only(local))

    auto, golomb, deflate = (
        packed(Ternary(layout, 0.06, f, coding=coding), change)
        for coding in ("auto", "golomb", "deflate")
    )

    assert body_of(auto).index_coding == "deflate"
    assert len(auto) <= len(deflate) < 0.7 * len(golomb)
