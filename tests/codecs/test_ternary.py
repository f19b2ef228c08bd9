"""STC and SSTC against the reference, bit for bit, and by hand. For lengths see test_lengths.py."""

from __future__ import annotations

import struct
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.bits import Coding, write_ascending
from metis.codecs.joined import joined
from metis.codecs.packet import HEADER, Reader, seal
from metis.codecs.ternary import NO_MAPS, PAPER_MAPS, SHORT_MAPS, Body, Ternary, read_body
from metis.core.errors import ModelError
from metis.core.types import Vector, as_vector
from tests.codecs import reference
from tests.codecs.updates import (
    STYLES,
    Change,
    bits,
    changes,
    layout_of,
    make_change,
    shares,
    vector,
)

#: What a writer may be asked for.
CODINGS = (*get_args(Coding), "auto")
codings = st.sampled_from(CODINGS)
#: Two kernels of two cells, three weights in no kernel, one kernel of one cell, and a bias.
SMALL = layout_of(("conv", (2, 1, 2)), ("dense", (1, 3)), ("conv", (1, 1, 1, 1)), ("plain", (1,)))


def answer(codec: Ternary, change: Change) -> Vector:
    """Return what the other end makes of an update."""
    packet, _ = codec.encode(change.local, change.base)
    return as_vector(codec.decode(packet, change.base))


def body_of(codec: Ternary, change: Change) -> Body:
    """Return what the packet of an update begins with."""
    packet, _ = codec.encode(change.local, change.base)
    return read_body(Reader(packet, HEADER.size), codec.name)


def decoded_change(codec: Ternary, *local: float) -> list[float]:
    """Return what is decoded of a model that was all zeros before."""
    base = vector(*[0.0] * codec.layout.size)
    model: list[float] = answer(codec, Change(codec.layout, base, vector(*local))).tolist()
    return model


@given(changes, shares, codings)
def test_stc_decodes_to_what_the_reference_says(change: Change, p: float, coding: str) -> None:
    expected = reference.ternary(*change.lists(), p)

    assert bits(answer(Ternary(change.layout, p, coding=coding), change)) == bits(expected.model)


@given(changes, shares, shares, st.booleans(), codings)
def test_sstc_decodes_to_what_the_reference_says(
    change: Change, p: float, f: float, of_kept: bool, coding: Coding
) -> None:
    expected = reference.ternary(*change.lists(), p, f, of_kept)

    codec = Ternary(change.layout, p, f, of_kept, coding)

    assert bits(answer(codec, change)) == bits(expected.model)


@given(changes, shares, st.none() | shares, codings)
def test_the_plain_reader_reads_the_same(
    change: Change, p: float, f: float | None, coding: Coding
) -> None:
    codec = Ternary(change.layout, p, f, coding=coding)

    packet, _ = codec.encode(change.local, change.base)

    model = reference.decode(packet, change.layout, change.base.tolist())
    assert bits(model) == bits(codec.decode(packet, change.base))


@pytest.mark.parametrize(("coding", "form"), [("golomb", SHORT_MAPS), ("fixed", PAPER_MAPS)])
@pytest.mark.parametrize("seed", range(20))
def test_both_readers_read_kernel_maps_as_the_reference_says(
    coding: str, form: int, seed: int
) -> None:
    layout = layout_of(
        ("plain", (2,)), ("conv", (8, 3, 5, 5)), ("dense", (3, 3)), ("conv", (4, 3, 4))
    )
    change = make_change(layout, "in few kernels", seed)
    codec = Ternary(layout, 0.2, 0.3, coding=coding)

    packet, _ = codec.encode(change.local, change.base)

    expected = bits(reference.ternary(*change.lists(), 0.2, 0.3).model)
    assert body_of(codec, change).maps == form
    assert bits(codec.decode(packet, change.base)) == expected
    assert bits(reference.decode(packet, layout, change.base.tolist())) == expected


@given(changes, shares, codings, st.booleans())
def test_sstc_with_all_kernels_is_stc(change: Change, p: float, coding: str, of_kept: bool) -> None:
    stc = Ternary(change.layout, p, coding=coding, error_feedback=True)
    sstc = Ternary(change.layout, p, 1.0, of_kept, coding, error_feedback=True)

    packet, residual = stc.encode(change.local, change.base)
    other_packet, other_residual = sstc.encode(change.local, change.base)

    sparse = stc.decode(packet, change.base)
    other = sstc.decode(other_packet, change.base)
    assert sparse.at.tolist() == other.at.tolist()
    assert sparse.by.tobytes() == other.by.tobytes()
    assert bits(sparse) == bits(other)
    assert residual is not None
    assert other_residual is not None
    assert residual.tobytes() == other_residual.tobytes()


@given(changes, shares, st.none() | shares, st.booleans())
def test_all_codings_decode_alike(change: Change, p: float, f: float | None, of_kept: bool) -> None:
    models = {bits(answer(Ternary(change.layout, p, f, of_kept, c), change)) for c in CODINGS}

    assert len(models) == 1


@given(changes, shares, st.none() | shares, codings)
def test_a_decoded_update_names_each_place_once_in_order_and_leaves_the_base_alone(
    change: Change, p: float, f: float | None, coding: Coding
) -> None:
    codec = Ternary(change.layout, p, f, coding=coding)
    before = change.base.tobytes()

    sparse = codec.decode(codec.encode(change.local, change.base)[0], change.base)

    weights = set(reference.places_of(change.layout).weights)
    assert sparse.at.tolist() == sorted(set(sparse.at.tolist()) & weights)
    assert len(set(np.abs(sparse.by).tolist())) <= 1
    assert not as_vector(sparse).flags.writeable
    assert change.base.tobytes() == before


@given(st.integers(0, 2**32), shares, st.none() | shares)
def test_magnitudes_of_any_size_are_told_apart(seed: int, p: float, f: float | None) -> None:
    chance = np.random.default_rng(seed)
    change = (chance.normal(size=8) * 10.0 ** chance.integers(-40, 30, 8)).astype(np.float32)

    kept = Ternary(SMALL, p, f).keep(change)

    assert kept.tolist() == reference.kept_weights(SMALL, change.tolist(), p, f)


@pytest.mark.parametrize("coding", CODINGS)
def test_mu_is_the_mean_of_what_is_kept_and_keeps_its_sign(coding: str) -> None:
    stc = Ternary(SMALL, 0.5, coding=coding)

    assert decoded_change(stc, 1, -4, 0, 2, 3, 0, 1, 3, 9) == [0, -3, 0, 3, 3, 0, 0, 3, 9]
    # Also when all signs are equal, and of equals the first.
    assert decoded_change(stc, 1, 1, 1, 1, 1, 1, 1, 1, 0) == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert decoded_change(stc, 0, 0, 0, -1, -1, -3, -1, -1, 0) == [
        0,
        0,
        0,
        -1.5,
        -1.5,
        -1.5,
        -1.5,
        0,
        0,
    ]


def test_zeros_are_never_kept_nor_part_of_the_mean() -> None:
    stc = Ternary(SMALL, 1.0)

    assert decoded_change(stc, 0, 0, 0, 2, 0, 0, 0, -4, 0) == [0, 0, 0, 3, 0, 0, 0, -3, 0]


def test_kernels_of_all_sizes_are_one_pool_scored_by_their_mean() -> None:
    sstc = Ternary(SMALL, 1.0, 1 / 3)  # one kernel of three

    # Means 2.5, 2 and 3: the single cell wins over the kernel with the larger sum.
    assert decoded_change(sstc, 1, 4, 2, 2, 6, 0, 0, 3, 0) == [0, 0, 0, 0, 4.5, 0, 0, 4.5, 0]
    # Means 3, 3 and 3: the first wins.
    assert decoded_change(sstc, 3, -3, 3, 3, 0, 0, 0, 3, 0) == [3, -3, 0, 0, 0, 0, 0, 0, 0]


def test_p_is_a_share_of_all_weights_or_of_those_left() -> None:
    local = (4, 4, 1, 1, 1, 1, 1, 0, 0)  # the first kernel and the dense part: five weights

    of_all = decoded_change(Ternary(SMALL, 0.5, 1 / 3), *local)
    of_kept = decoded_change(Ternary(SMALL, 0.5, 1 / 3, of_kept=True), *local)

    assert of_all == [2.5, 2.5, 0, 0, 2.5, 2.5, 0, 0, 0]
    assert of_kept == [3, 3, 0, 0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("f", [None, 0.0, 0.5, 1.0])
def test_nothing_changed_and_nothing_kept_are_packets_too(coding: str, f: float | None) -> None:
    for p in (0.0, 0.5, 1.0):
        change = make_change(SMALL, "zeros" if p else "any", seed=3)

        model = answer(Ternary(SMALL, p, f, coding=coding), change)

        assert model.tolist() == [*change.base.tolist()[:-1], change.local.tolist()[-1]]


@given(changes, shares, st.none() | shares, codings)
def test_a_packet_says_what_it_was_made_with(
    change: Change, p: float, f: float | None, coding: str
) -> None:
    body = body_of(Ternary(change.layout, p, f, coding=coding), change)

    expected = reference.ternary(*change.lists(), p, f)
    told = {body.index_coding} | ({body.kernel_coding} if body.maps != NO_MAPS else set())
    assert told <= ({"golomb", "deflate"} if coding == "auto" else {coding})
    assert body.maps != NO_MAPS or body.kernel_coding == "golomb"  # its number is nought
    assert body.mu == expected.mu
    assert body.sparsity == reference.single(p)
    assert body.kernels == reference.single(f or 0.0)


# ---- error feedback -------------------------------------------------------------------------


@given(changes, shares, st.none() | shares, st.integers(2, 4))
def test_residuals_are_those_of_the_reference_round_after_round(
    change: Change, p: float, f: float | None, num_rounds: int
) -> None:
    codec = Ternary(change.layout, p, f, error_feedback=True)
    base, residual, left = change.base, None, None

    for number in range(num_rounds):
        local = make_change(change.layout, "any" if number else "ties", seed=number).local
        packet, residual = codec.encode(local, base, residual)
        before, after = base.tolist(), local.tolist()
        expected = reference.ternary(change.layout, before, after, p, f, residual=left)
        left = expected.residual
        base = as_vector(codec.decode(packet, base))

        assert residual is not None
        assert bits(base) == bits(expected.model)
        assert residual.tobytes() == bits(left)


@pytest.mark.parametrize("style", STYLES)
def test_what_is_left_out_and_what_is_told_is_all_there_was(style: str) -> None:
    # One weight a round: mu is that weight, so no rounding hides a loss.
    layout = layout_of(("conv", (3, 2, 3)), ("dense", (4, 4)))
    codec = Ternary(layout, 1 / layout.size, error_feedback=True)
    told = np.zeros(layout.size, dtype=np.float32)
    wanted = np.zeros(layout.size, dtype=np.float32)
    residual = None

    for seed in range(200):
        change = make_change(layout, style, seed)
        packet, residual = codec.encode(change.local, change.base, residual)
        wanted += change.local - change.base
        told += as_vector(codec.decode(packet, change.base)) - change.base

    assert residual is not None
    assert (told + residual).tolist() == wanted.tolist()


def test_with_error_feedback_a_small_change_is_told_in_the_end() -> None:
    local, base = vector(4, 1, 0, 0, 0, 0, 0, 0, 0), vector(*[0] * 9)
    codec = Ternary(SMALL, 1 / 8, error_feedback=True)  # one weight a round
    told, residual = vector(*base), None

    for _ in range(20):
        packet, residual = codec.encode(local, base, residual)
        told = told + as_vector(codec.decode(packet, base))

    assert told.tolist() == [76, 20, 0, 0, 0, 0, 0, 0, 0]  # 5 every fifth round
    assert residual is not None
    assert residual.tolist() == [4, 0, 0, 0, 0, 0, 0, 0]


def test_a_residual_counts_only_if_it_is_asked_for_and_is_not_written_to() -> None:
    local, base = vector(1, 2, 3, 4, 5, 6, 7, 8, 9), vector(*[0] * 9)
    residual = vector(*[100, 0, 0, 0, 0, 0, 0, 0])

    without = Ternary(SMALL, 0.125).encode(local, base, residual)
    fed_back = Ternary(SMALL, 0.125, error_feedback=True).encode(local, base, residual)

    assert without == Ternary(SMALL, 0.125).encode(local, base)
    assert fed_back[1] is not None
    assert fed_back[1].tolist() == [0, 2, 3, 4, 5, 6, 7, 8]
    assert residual.tolist() == [100, 0, 0, 0, 0, 0, 0, 0]


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [None, 0.5])
@pytest.mark.parametrize("place", [0, 5, 7, 8], ids=["conv", "dense", "1x1", "bias"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(f: float | None, place: int, bad: float) -> None:
    local = np.ones(9, dtype=np.float32)
    local[place] = bad

    with pytest.raises(ModelError, match="not finite"):
        Ternary(SMALL, 0.0, f).encode(local, vector(*[0] * 9))


def test_an_update_that_is_infinite_with_its_residual_is_refused() -> None:
    codec = Ternary(SMALL, 0.5, error_feedback=True)

    with pytest.raises(ModelError, match="not finite"):
        codec.encode(vector(*[3e38] * 9), vector(*[0] * 9), vector(*[3e38] * 8))


@pytest.mark.parametrize("mu", [np.nan, np.inf, -np.inf, -1.0])
def test_a_mu_that_cannot_be_is_refused(mu: float) -> None:
    body = struct.pack("<BBBxfffI", 0, 0, 1, mu, 0.1, 0.0, 1)
    packet = seal("stc", SMALL, [body, bytes(4), bytes([0]), b"\x80"])

    with pytest.raises(ModelError, match="mu"):
        Ternary(SMALL, 0.1).decode(packet, vector(*[0] * 9))


@pytest.mark.parametrize(("p", "f"), [(np.nan, 0.0), (1.5, 0.0), (-0.5, 0.0), (0.1, np.inf)])
def test_a_share_that_cannot_be_is_refused(p: float, f: float) -> None:
    body = struct.pack("<BBBxfffI", 0, 0, 1, 1.0, p, f, 1)
    packet = seal("stc", SMALL, [body, bytes(4), bytes([0]), b"\x80"])

    with pytest.raises(ModelError, match="both are shares"):
        Ternary(SMALL, 0.1).decode(packet, vector(*[0] * 9))


def test_a_cell_that_is_plus_and_minus_is_refused() -> None:
    body = struct.pack("<BBBxfffI", 2, 1, 1, 1.0, 0.1, 0.5, 0)
    parts = [body, bytes(4), (1).to_bytes(4, "little"), bytes([0])]

    good = seal("sstc", SMALL, [*parts, bytes([0b10010000]), bytes([0])])
    bad = seal("sstc", SMALL, [*parts, bytes([0b11010000]), bytes([0])])

    codec = Ternary(SMALL, 0.1, 0.5)
    assert as_vector(codec.decode(good, vector(*[0] * 9))).tolist()[:3] == [-1, 1, 0]
    with pytest.raises(ModelError, match="plus and minus at once"):
        codec.decode(bad, vector(*[0] * 9))


@pytest.mark.parametrize("form", [(0, 3, 0), (0, 0, 3), (1, 255, 0), (2, 1, 4)])
def test_a_coding_that_is_yet_to_come_is_refused(form: tuple[int, int, int]) -> None:
    body = struct.pack("<BBBxfffI", *form, 1.0, 0.1, 0.0, 0)

    with pytest.raises(ModelError, match=f"coding number {max(form)}; known are 0 to 2"):
        Ternary(SMALL, 0.1, 0.5).decode(seal("sstc", SMALL, [body]), vector(*[0] * 9))


@pytest.mark.parametrize(("codec", "maps"), [("stc", 1), ("stc", 2), ("stc", 3), ("sstc", 3)])
def test_maps_of_no_known_form_and_maps_in_stc_are_refused(codec: str, maps: int) -> None:
    f = None if codec == "stc" else 0.5
    body = struct.pack("<BBBxfffI", maps, 1, 1, 1.0, 0.1, f or 0.0, 0)
    packet = seal(codec, SMALL, [body, bytes(4), bytes(4), bytes([0]), bytes([0])])

    with pytest.raises(ModelError, match=f"codec {codec} has kernel maps of form {maps}"):
        Ternary(SMALL, 0.1, f).decode(packet, vector(*[0] * 9))
    with pytest.raises(reference.Refused, match=f"maps of form {maps}"):
        reference.decode(packet, SMALL, [0.0] * 9)


@pytest.mark.parametrize("maps", [NO_MAPS, SHORT_MAPS, PAPER_MAPS])
@pytest.mark.parametrize("kernel_coding", get_args(Coding))
@pytest.mark.parametrize("index_coding", get_args(Coding))
def test_every_form_of_maps_is_read_with_every_coding_of_either_index(
    maps: int, kernel_coding: str, index_coding: str
) -> None:
    # Cells 1 and 2 of the joined weights, in kernels 0 and 1, and the second weight in no kernel.
    numbers = [reference.CODINGS.index(coding) for coding in (kernel_coding, index_coding)]
    body = struct.pack("<BBBxfffI", maps, *numbers, 2.0, 0.1, 0.5, 1 if maps else 3)
    cells = {
        NO_MAPS: [],
        SHORT_MAPS: [bytes([0b01100000]), bytes([0b10000000])],
        PAPER_MAPS: [bytes([0b00100100])],
    }
    kernels = [(2).to_bytes(4, "little"), *write_ascending(np.array([0, 1]), kernel_coding)]
    named = write_ascending(np.array([1] if maps else [1, 2, 5]), index_coding)
    signs = bytes([0b00000000 if maps else 0b10000000])

    before = [body, bytes(4), *(kernels if maps else []), *cells[maps]]
    packet = seal("sstc", SMALL, [*before, *named, signs])

    expected = [0, -2, 2, 0, 0, 2, 0, 0, 0]
    model = Ternary(SMALL, 0.1, 0.5).decode(packet, vector(*[0] * 9))
    assert as_vector(model).tolist() == reference.decode(packet, SMALL, [0.0] * 9) == expected


def test_a_sum_beyond_the_largest_number_is_infinite_and_no_warning() -> None:
    base = vector(*[3e38] * 9)
    packet, _ = Ternary(SMALL, 1.0).encode(vector(*[3e38] * 8, 1), vector(*[0] * 9))

    model = as_vector(Ternary(SMALL, 1.0).decode(packet, base))

    assert model.tolist() == [np.inf] * 8 + [1]


def test_a_large_model_is_packed_as_the_reference_would() -> None:
    # Large enough for the guess of where the largest begin; sorted here by numpy.
    layout = layout_of(("conv", (64, 64, 3, 3)), ("plain", (64,)), ("dense", (600, 500)))
    chance = np.random.default_rng(11)
    change = chance.normal(size=layout.size).astype(np.float32)
    codec = Ternary(layout, 0.01)
    base = vector(*np.zeros(layout.size))

    sparse = codec.decode(codec.encode(change, base)[0], base)

    weights = np.abs(np.delete(change, np.s_[36864:36928]))
    count = reference.half_up(0.01, len(weights))
    order = np.sort(np.argsort(-weights, kind="stable")[:count])
    assert np.array_equal(np.where(sparse.at < 36864, sparse.at, sparse.at - 64), order)
    assert joined(layout).num_weights == len(weights) > 4 << 16
    assert sparse.by[0] == np.copysign(
        np.float32(weights[order].mean(dtype=np.float64)), change[sparse.at[0]]
    )
