"""Changes in 16 and 8 bits, against rounding by fractions."""

from __future__ import annotations

import math
import struct
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.packet import HEADER, seal
from metis.codecs.quantized import Number, Quantized, from_bfloat16, to_bfloat16
from metis.core.errors import ModelError
from metis.core.types import Vector
from tests.codecs import reference
from tests.codecs.updates import Change, bits, changes, layout_of, make_change, vector

NUMBERS: tuple[Number, ...] = get_args(Number)
BYTES = {"float16": 2, "bfloat16": 2, "int8": 1}
LAYOUT = layout_of(("conv", (2, 1, 2)), ("plain", (1,)), ("dense", (1, 3)))
ZEROS = vector(*[0.0] * 8)

numbers = st.sampled_from(NUMBERS)
any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def answer(number: Number, *local: float) -> list[float]:
    """Return what is decoded of a model that was all zeros before."""
    codec = Quantized(LAYOUT, number)
    model: list[float] = codec.decode(codec.encode(vector(*local), ZEROS)[0], ZEROS).tolist()
    return model


@given(changes, numbers)
def test_an_update_decodes_to_what_the_reference_says(change: Change, number: Number) -> None:
    codec = Quantized(change.layout, number)

    packet, residual = codec.encode(change.local, change.base)

    decoded = codec.decode(packet, change.base)
    assert bits(decoded) == bits(
        reference.quantized(change.layout, number, *change.lists()[1:]).model
    )
    assert bits(reference.decode(packet, change.layout, change.base.tolist())) == bits(decoded)
    assert not decoded.flags.writeable
    assert residual is None


@given(changes, numbers)
def test_a_packet_is_as_long_as_its_parts(change: Change, number: Number) -> None:
    places = reference.places_of(change.layout)

    packet, _ = Quantized(change.layout, number).encode(change.local, change.base)

    num_bytes = 4 * len(places.exact) + BYTES[number] * len(places.weights)
    num_bytes += 4 * len(places.tensors) if number == "int8" else 0
    assert len(packet) == HEADER.size + num_bytes


@given(st.lists(any_float32, min_size=7, max_size=7), numbers)
def test_changes_of_any_size_are_rounded_as_by_fractions(
    values: list[float], number: Number
) -> None:
    limit = {"float16": 65504.0, "bfloat16": 3.3e38, "int8": 3.4e38}[number]
    change = [math.copysign(min(abs(value), limit), value) for value in values]
    local = [reference.single(value) for value in [*change[:4], 1.0, *change[4:]]]

    decoded = answer(number, *local)

    expected = reference.quantized(LAYOUT, number, ZEROS.tolist(), local).model
    assert bits(decoded) == bits(expected)


@given(any_float32)
def test_bfloat16_is_the_nearest_and_of_two_the_even(value: float) -> None:
    if abs(value) > 3.39e38:
        value = 0.0

    found = from_bfloat16(to_bfloat16(vector(value)))

    assert bits(found) == bits([reference.nearest(value, 8, -133)])


def test_ties_go_to_the_even_neighbour() -> None:
    assert answer("bfloat16", 1 + 2**-8, 1 + 3 * 2**-8, 1, 1, 0, 0, 0, 0)[:2] == [1, 1 + 2**-6]
    assert answer("float16", 1 + 2**-11, 1 + 3 * 2**-11, 1, 1, 0, 0, 0, 0)[:2] == [1, 1 + 2**-9]
    assert answer("int8", 127, 0.5, 1.5, -2.5, 0, 0, 0, 0)[:4] == [127, 0, 2, -2]


def test_int8_has_a_scale_for_each_tensor_and_other_values_are_exact() -> None:
    local = [254.0, -3.0, 2.0, 0.9, 1 / 3, 0.0, 12.7, -0.05]

    decoded = answer("int8", *local)

    assert decoded[:4] == [254, -4, 2, 0]  # steps of 2: -1.5 is a tie
    assert decoded[4] == np.float32(1 / 3)
    assert decoded[6] == pytest.approx(12.7)
    assert abs(decoded[7] + 0.05) <= 0.05 + 1e-6


def test_a_tensor_that_has_not_changed_stays_as_it_is() -> None:
    base = vector(1, 2, 3, 4, 5, 6, 7, 8)
    codec = Quantized(LAYOUT, "int8")

    decoded = codec.decode(codec.encode(vector(1, 2, 3, 4, 9, 6, 7, 135), base)[0], base)

    assert decoded.tolist() == [1, 2, 3, 4, 9, 6, 7, 135]


@given(changes, numbers)
def test_residuals_are_those_of_the_reference_round_after_round(
    change: Change, number: Number
) -> None:
    codec = Quantized(change.layout, number, error_feedback=True)
    base: Vector = change.base
    residual, left = None, None

    for seed in range(3):
        local = make_change(change.layout, "any", seed).local
        packet, residual = codec.encode(local, base, residual)
        expected = reference.quantized(change.layout, number, base.tolist(), local.tolist(), left)
        left = expected.residual
        base = codec.decode(packet, base)

        assert residual is not None
        assert bits(base) == bits(expected.model)
        assert residual.tobytes() == bits(left)


@pytest.mark.parametrize("number", NUMBERS)
def test_what_is_left_out_and_what_is_told_is_all_there_was(number: Number) -> None:
    codec = Quantized(LAYOUT, number, error_feedback=True)
    weights = reference.places_of(LAYOUT).weights
    told = np.zeros(len(weights))
    wanted = np.zeros(len(weights))
    residual = None

    for seed in range(200):
        change = make_change(LAYOUT, "any", seed)
        packet, residual = codec.encode(change.local, change.base, residual)
        wanted += (change.local[weights] - change.base[weights]).astype(np.float64)
        told += codec.decode(packet, np.zeros(8, dtype=np.float32))[weights]

    assert residual is not None
    assert np.abs(residual).max() < 0.1  # of changes up to 4, summed up over 200 rounds
    assert told + residual == pytest.approx(wanted, abs=1e-4)


def test_a_residual_counts_only_if_it_is_asked_for_and_is_not_written_to() -> None:
    residual = vector(*[1.0] * 7)
    local = vector(1, 2, 3, 4, 5, 6, 7, 8)

    without = Quantized(LAYOUT, "float16").encode(local, ZEROS, residual)
    fed_back, _ = Quantized(LAYOUT, "float16", error_feedback=True).encode(local, ZEROS, residual)

    assert without == Quantized(LAYOUT, "float16").encode(local, ZEROS)
    decoded = Quantized(LAYOUT, "float16").decode(fed_back, ZEROS)
    assert decoded.tolist() == [2, 3, 4, 5, 5, 7, 8, 9]
    assert residual.tolist() == [1.0] * 7


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", [0, 4, 7], ids=["conv", "bias", "dense"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(number: Number, place: int, bad: float) -> None:
    local = np.ones(8, dtype=np.float32)
    local[place] = bad

    with pytest.raises(ModelError, match="not finite"):
        Quantized(LAYOUT, number).encode(local, ZEROS)


@pytest.mark.parametrize("number", NUMBERS)
def test_an_update_that_is_infinite_with_its_residual_is_refused(number: Number) -> None:
    codec = Quantized(LAYOUT, number, error_feedback=True)

    with pytest.raises(ModelError):
        codec.encode(vector(*[3e38] * 8), ZEROS, vector(*[3e38] * 7))


@pytest.mark.parametrize(
    ("number", "largest", "above"),
    [
        ("float16", (2 - 2**-10) * 2.0**15, (2 - 2**-11) * 2.0**15),
        ("bfloat16", (2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127),
    ],
)
def test_a_change_that_rounds_to_infinity_is_refused(
    number: Number, largest: float, above: float
) -> None:

    assert answer(number, largest, -largest, *[0] * 6)[:2] == [largest, -largest]
    assert answer(number, np.nextafter(np.float32(above), 0), *[0] * 7)[0] == largest
    with pytest.raises(ModelError, match=f"more than a {number} can hold"):
        answer(number, above, *[0] * 7)
    with pytest.raises(ModelError, match=f"more than a {number} can hold"):
        answer(number, 0, -above, *[0] * 6)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0])
def test_a_scale_that_cannot_be_is_refused(scale: float) -> None:
    packet = seal("int8", LAYOUT, [bytes(4), struct.pack("<2f", 1.0, scale), bytes(7)])

    with pytest.raises(ModelError, match="scale"):
        Quantized(LAYOUT, "int8").decode(packet, ZEROS)


@pytest.mark.parametrize(
    ("number", "half"),
    [
        ("float16", 0x7C00),
        ("float16", 0xFC00),
        ("float16", 0x7C01),
        ("bfloat16", 0x7F80),
        ("bfloat16", 0xFF80),
        ("bfloat16", 0x7F81),
        ("bfloat16", 0x7FC0),
    ],
)
def test_a_packet_with_a_change_that_is_not_finite_is_refused(number: Number, half: int) -> None:
    packet = seal(number, LAYOUT, [bytes(4), half.to_bytes(2, "little"), bytes(12)])

    with pytest.raises(ModelError, match="not finite"):
        Quantized(LAYOUT, number).decode(packet, ZEROS)


def test_a_scale_whose_steps_are_infinite_is_refused() -> None:
    packet = seal("int8", LAYOUT, [bytes(4), struct.pack("<2f", 3e38, 1.0), b"\x7f" * 7])

    with pytest.raises(ModelError, match="not finite"):
        Quantized(LAYOUT, "int8").decode(packet, ZEROS)
