"""What is told of a packet: by hand where a packet is small, and nothing worse than ModelError."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.codecs.inspect import (
    Details,
    approximations,
    describe,
    kernel_matrix,
    signs,
    weight_change,
)
from metis.codecs.packet import HEADER
from metis.codecs.quantized import Quantized
from metis.codecs.ternary import Ternary
from metis.core.codec import Codec
from metis.core.errors import ModelError
from metis.core.types import Layout, TensorSpec, Vector, read_only
from tests.vectors.make import FOLDER, ROWS

#: Six kernels of 2 x 2, a bias, a dense layer of 20 weights, running statistics.
LAYOUT = Layout(
    (
        TensorSpec("conv.weight", (2, 3, 2, 2), "conv", 0),
        TensorSpec("conv.bias", (2,), "plain", 24),
        TensorSpec("fc.weight", (4, 5), "dense", 26),
        TensorSpec("norm.mean", (3,), "buffer", 46),
    )
)
BASE = read_only(np.linspace(-1.0, 1.0, LAYOUT.size))
CODECS: list[Codec] = [
    Dense(LAYOUT),
    Quantized(LAYOUT, "float16"),
    Quantized(LAYOUT, "bfloat16"),
    Quantized(LAYOUT, "int8"),
    Ternary(LAYOUT, 0.2),
    Ternary(LAYOUT, 0.2, coding="fixed"),
    Ternary(LAYOUT, 0.2, coding="deflate"),
    Ternary(LAYOUT, 0.2, 0.5),
    Ternary(LAYOUT, 0.2, 0.5, coding="fixed"),
    Ternary(LAYOUT, 0.2, 0.5, coding="deflate"),
]


def changed(*places: tuple[int, float]) -> Vector:
    """Return the base with these values added, and every exact value set to seven."""
    weights = np.array(BASE)
    for place, by in places:
        weights[place] += by
    weights[24:26] = weights[46:] = 7.0
    return read_only(weights)


def packed(codec: Codec, weights: Vector | None = None) -> bytes:
    random = np.random.default_rng(5).normal(size=LAYOUT.size)
    return codec.encode(read_only(BASE + random) if weights is None else weights, BASE)[0]


def details(packet: bytes) -> Details:
    found = describe(packet, LAYOUT).details
    assert found is not None
    return found


def as_if_sent_so(packet: bytearray) -> bytes:
    """Give a packet the checksum of what is in it now."""
    packet[8:12] = bytes(4)
    packet[8:12] = zlib.crc32(packet).to_bytes(4, "little")
    return bytes(packet)


def test_an_sstc_packet_is_described_weight_by_weight() -> None:
    # Two cells of kernel 1 and one of kernel 4; in the dense layer one weight.
    weights = changed((4, 0.5), (7, -0.5), (16, 0.5), (30, -0.5))

    found = describe(packed(Ternary(LAYOUT, 0.1, 0.5, coding="fixed"), weights), LAYOUT)

    assert (found.codec, found.format, found.num_values) == ("sstc", 1, 49)
    assert found.layout_digest == LAYOUT.digest
    assert found.ternary is not None
    assert (found.ternary.sparsity, found.ternary.kernels) == (0.1, 0.5)
    assert (found.ternary.maps, found.ternary.kernel_coding) == ("paper", "fixed")
    assert found.ternary.index_coding == "fixed"
    assert found.ternary.mu == pytest.approx(0.5)
    assert found.ternary.num_named == 1
    assert found.details is not None
    assert (found.details.kept, found.details.num_weights) == (4, 44)
    conv, bias, dense, mean = found.details.tensors
    assert (conv.kept, conv.kernels_touched, conv.kernels, conv.exact_bytes) == (3, 2, 6, 0)
    assert (dense.kept, dense.kernels) == (1, 0)
    assert (bias.kept, bias.exact_bytes) == (None, 8)
    assert (mean.kept, mean.exact_bytes, mean.kind) == (None, 12, "buffer")


def test_the_parts_of_a_packet_are_as_long_as_the_format_says() -> None:
    weights = changed((4, 0.5), (7, -0.5), (16, 0.5), (30, -0.5))

    found = details(packed(Ternary(LAYOUT, 0.1, 0.5, coding="fixed"), weights))

    assert found.parts == {
        "header": 28,
        "settings": 20,
        "exact_values": 20,
        "kernel_indices": 4 + 1 + 1,  # how many, a width, and two gaps of two bits
        "kernel_maps": 2,  # two kernels, four cells, two bits
        "weight_indices": 1 + 1,  # a width, and one gap of three bits
        "signs": 1,
    }
    assert found.bits_per_kernel == 8 * (6 + 2) / 2
    assert found.bits_per_index == 8 * 2 / 1
    assert found.bits_per_weight == 8 * (6 + 2 + 2 + 1) / 4


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{type(c).__name__}")
def test_the_parts_of_every_packet_make_up_the_whole(codec: Codec) -> None:
    packet = packed(codec)

    found = describe(packet, LAYOUT)

    assert found.details is not None
    assert sum(found.details.parts.values()) == found.num_bytes == len(packet)
    assert all(num_bytes > 0 for num_bytes in found.details.parts.values())
    assert found.ratio == 4 * 49 / len(packet)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{type(c).__name__}")
def test_without_a_layout_only_the_beginning_is_told(codec: Codec) -> None:
    packet = packed(codec)

    alone, fully = describe(packet, None), describe(packet, LAYOUT)

    assert alone.details is None
    assert (alone.codec, alone.ternary) == (fully.codec, fully.ternary)
    assert alone.layout_digest == LAYOUT.digest


@pytest.mark.parametrize("name", ["sstc-auto", "sstc-deflate"])
def test_each_stream_of_a_packet_is_told_by_its_own_coding(name: str) -> None:
    record = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    packet = bytes.fromhex(record["packet"])

    found = describe(packet, ROWS)

    assert found.ternary is not None
    assert (found.ternary.maps, found.ternary.index_coding) == ("short", "deflate")
    assert found.ternary.kernel_coding == ("golomb" if name == "sstc-auto" else "deflate")
    assert found.details is not None
    assert (found.ternary.num_named, found.details.kept) == (48, 51 + 48)
    assert found.details.parts["kernel_maps"] == -(-100 // 8) + -(-51 // 8)
    assert sum(found.details.parts.values()) == len(packet)


def test_stc_names_every_weight_and_has_no_share_of_kernels() -> None:
    found = describe(packed(Ternary(LAYOUT, 0.1)), LAYOUT)

    assert found.ternary is not None
    assert found.ternary.kernels is None
    assert (found.ternary.maps, found.ternary.kernel_coding) == ("none", None)
    assert found.ternary.index_coding == "golomb"  # the default takes what is shorter
    assert found.details is not None
    assert found.ternary.num_named == found.details.kept == 4
    assert found.details.bits_per_kernel is None


def test_a_packet_that_keeps_nothing_has_no_bits_per_weight() -> None:
    found = details(packed(Ternary(LAYOUT, 0.0, 0.5)))

    assert found.kept == 0
    assert (found.bits_per_index, found.bits_per_kernel, found.bits_per_weight) == (None,) * 3


def test_a_quantized_packet_keeps_what_is_not_rounded_to_nothing() -> None:
    # A 127th of 1.27 is a step: 0.001 is less than half of one.
    weights = changed((0, 1.27), (5, 0.001), (30, 0.001))

    found = details(packed(Quantized(LAYOUT, "int8"), weights))

    conv, _, dense, _ = found.tensors
    assert (conv.kept, conv.kernels_touched) == (1, 1)
    assert dense.kept == 1  # its tensor has a step of its own
    assert found.parts["changes"] == 2 * 4 + 44


def test_a_dense_packet_is_exact_throughout() -> None:
    found = details(packed(Dense(LAYOUT)))

    assert [part.kept for part in found.tensors] == [None] * 4
    assert sum(part.exact_bytes for part in found.tensors) == found.parts["exact_values"] == 4 * 49


@pytest.mark.parametrize("coding", ["auto", "golomb", "deflate", "fixed"])
def test_signs_stand_in_the_column_of_their_kernel(coding: str) -> None:
    weights = changed((4, 0.5), (7, -0.5), (16, 0.5), (30, -0.5))

    found = signs(packed(Ternary(LAYOUT, 0.1, 0.5, coding=coding), weights), LAYOUT)

    assert list(found) == ["conv.weight"]
    expected = np.zeros((4, 6))
    expected[0, 1], expected[3, 1], expected[0, 4] = 1, -1, 1
    assert found["conv.weight"].tolist() == expected.tolist()


def test_a_column_holds_what_one_filter_does_to_one_channel() -> None:
    weights = np.arange(LAYOUT.size, dtype=np.float32)
    filters = weights[:24].reshape(2, 3, 2, 2)

    matrix = kernel_matrix(weights, LAYOUT.tensors[0])

    assert matrix.shape == (4, 6)
    assert matrix[:, 1 * 3 + 2].tolist() == filters[1, 2].reshape(-1).tolist()


def test_a_convolution_without_weights_is_described_and_not_drawn() -> None:
    layout = Layout(
        (TensorSpec("none", (2, 0, 3, 3), "conv", 0), TensorSpec("fc", (4, 5), "dense", 0))
    )
    base = np.zeros(20, dtype=np.float32)
    packet, _ = Ternary(layout, 0.1).encode(base + 1, base)

    found = describe(packet, layout)

    assert found.details is not None
    assert [part.kept for part in found.details.tensors] == [0, 2]
    assert signs(packet, layout) == {}


# ---- what a change becomes --------------------------------------------------------------------


def test_an_approximation_that_loses_nothing_has_no_error() -> None:
    weights = changed((4, 0.5), (7, -0.5))

    stc, sstc = approximations(weights, BASE, LAYOUT, sparsity=2 / 44, kernels=1 / 6)

    for found in (stc, sstc):
        assert found.kept == 2
        assert found.cosine == pytest.approx(1.0)
        assert found.relative_error == pytest.approx(0.0, abs=1e-6)
        assert np.flatnonzero(found.sent).tolist() == [4, 7]
    assert (stc.codec, sstc.codec) == ("stc", "sstc")


def test_the_error_of_an_approximation_is_that_of_its_vectors() -> None:
    weights = changed((4, 3.0), (30, 1.0))

    stc, sstc = approximations(weights, BASE, LAYOUT, sparsity=1 / 44, kernels=0.0)

    # STC sends the 3; SSTC keeps no kernel, so it sends the 1 of the dense layer.
    assert stc.cosine == pytest.approx(3 / np.sqrt(10))
    assert stc.relative_error == pytest.approx(1 / np.sqrt(10))
    assert sstc.cosine == pytest.approx(1 / np.sqrt(10))
    assert sstc.relative_error == pytest.approx(3 / np.sqrt(10))


def test_the_bytes_of_an_approximation_are_those_of_real_packets() -> None:
    weights = read_only(BASE + np.random.default_rng(5).normal(size=LAYOUT.size))

    _, sstc = approximations(weights, BASE, LAYOUT, 0.2, 0.5)

    assert sstc.bytes_shortest == len(packed(Ternary(LAYOUT, 0.2, 0.5), weights))
    assert sstc.bytes_fixed == len(packed(Ternary(LAYOUT, 0.2, 0.5, coding="fixed"), weights))


def test_no_change_has_no_direction() -> None:
    stc, _ = approximations(BASE, BASE, LAYOUT, 0.1, 0.5)

    assert (stc.kept, stc.cosine, stc.relative_error) == (0, None, None)


def test_what_travels_exactly_is_no_part_of_a_change() -> None:
    change = weight_change(changed((4, 0.5)), BASE, LAYOUT)

    assert np.flatnonzero(change).tolist() == [4]


# ---- what is no packet ------------------------------------------------------------------------


def test_a_packet_of_another_model_is_refused_with_both_digests() -> None:
    other = Layout(LAYOUT.tensors[:2])

    with pytest.raises(ModelError, match=f"{LAYOUT.digest}.*{other.digest}"):
        describe(packed(Ternary(LAYOUT, 0.1)), other)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{type(c).__name__}")
def test_a_packet_that_is_cut_short_is_refused(codec: Codec) -> None:
    packet = packed(codec)

    for length in range(len(packet)):
        with pytest.raises(ModelError):
            describe(packet[:length], LAYOUT)
        with pytest.raises(ModelError):
            describe(as_if_sent_so(bytearray(packet[: max(length, 12)])), LAYOUT)


@pytest.mark.parametrize("codec", CODECS[4:], ids=lambda c: f"{type(c).__name__}")
def test_a_forged_packet_is_described_or_refused(codec: Codec) -> None:
    packet = packed(codec)
    num_described = num_refused = 0

    for place in range(HEADER.size, len(packet)):
        for value in (0, 1, 0x7F, 0xFF):
            forged = bytearray(packet)
            forged[place] = value
            try:
                found = details(as_if_sent_so(forged))
            except ModelError:
                num_refused += 1
            else:
                num_described += 1
                assert sum(found.parts.values()) == len(packet)

    assert num_described > 0
    assert num_refused > 0
