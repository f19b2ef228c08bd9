"""Lengths by formula: the paper's numbers, recomputed by hand for its network."""

from __future__ import annotations

import numpy as np
import pytest

from metis.codecs.inspect import approximation, approximations
from metis.codecs.joined import joined
from metis.codecs.packet import HEADER
from metis.codecs.sizes import (
    most_kernels,
    paper_gain,
    paper_sstc_ratio,
    paper_stc_ratio,
    smaller,
    sstc_pays,
)
from metis.codecs.ternary import BODY
from metis.core.types import Layout, Tensor
from metis.models import build
from metis.training.flat import layout_of


@pytest.fixture(scope="module")
def femnist() -> Layout:
    return layout_of(build("femnist_cnn", (1, 28, 28), 62, seed=0))


def test_the_papers_41_and_104_are_of_convolutions_alone(femnist: Layout) -> None:
    assert paper_stc_ratio(femnist, 2_500) == pytest.approx(32 * 52_000 / (2_500 * 16))  # 41.6
    assert paper_sstc_ratio(femnist, 0.125) == pytest.approx(32 * 52_000 / (260 * (12 + 50)))
    assert round(paper_sstc_ratio(femnist, 0.125, 11), 1) == 104.9


@pytest.mark.parametrize(("kernels", "in_kernels"), [(260, 2_500), (645, 2_500), (646, 2_500)])
def test_equation_2_says_where_equation_1_is_above_one(
    kernels: int, in_kernels: int, femnist: Layout
) -> None:
    gain = paper_gain(kernels, in_kernels, femnist)

    assert gain == pytest.approx(16 * in_kernels / (kernels * (12 + 2 * 25)))
    assert sstc_pays(kernels, in_kernels, femnist) == (gain > 1)
    assert most_kernels(in_kernels, femnist) == pytest.approx(in_kernels * 16 / 62)


def small_update() -> tuple[Layout, np.ndarray, np.ndarray]:
    """Four 3x3 kernels, their biases, and a layer of 4 x 25 weights behind them."""
    layout = Layout(
        (
            Tensor("0.weight", (4, 1, 3, 3), "conv", 0),
            Tensor("0.bias", (4,), "plain", 36),
            Tensor("1.weight", (4, 25), "dense", 40),
        )
    )
    base = np.zeros(140, dtype=np.float32)
    trained = base.copy()
    trained[[9, 10, 17]] = 1.0  # all of the second kernel
    trained[[40, 139]] = -1.0
    trained[36:40] = 0.5
    return layout, trained, base


def test_an_update_is_counted_in_three_ways() -> None:
    layout, trained, base = small_update()

    stc, sstc = approximations(trained, base, layout, 5 / 136, 0.25)

    assert (stc.kept, stc.kept_in_kernels) == (sstc.kept, sstc.kept_in_kernels) == (5, 3)
    besides = HEADER.size + BODY.size + 4 * 4
    # 36 weights in kernels need 6 bits each, 136 in all 8 and a sign; 4 kernels 3 bits and 18.
    assert stc.smaller.convolutions == pytest.approx(32 * 36 / (3 * 6))
    assert sstc.smaller.convolutions == pytest.approx(32 * 36 / (1 * (3 + 18)))
    assert stc.smaller.model == pytest.approx(4 * 140 / (besides + 5 * (8 + 1) / 8))
    # Outside of kernels there are 100: 7 bits and a sign.
    assert sstc.smaller.model == pytest.approx(4 * 140 / (besides + (21 + 2 * (7 + 1)) / 8))
    for one in (stc, sstc):
        assert one.smaller.wire == 4 * 140 / one.bytes_shortest


def test_what_keeps_no_kernel_has_no_figure_of_convolutions() -> None:
    layout, trained, base = small_update()

    assert approximation(trained, base, layout, 5 / 136, 0.0).smaller.convolutions is None
    dense = Layout((Tensor("w", (4, 5), "dense", 0),))
    assert smaller(dense, np.array([3]), None, 60).convolutions is None
    assert smaller(dense, np.array([3]), 0.5, 60).convolutions is None


def test_places_in_the_vector_and_among_the_joined_weights_are_inverse() -> None:
    shape = joined(small_update()[0])
    indices = np.array([0, 35, 36, 135])

    assert shape.places(indices).tolist() == [0, 35, 40, 139]
    assert shape.indices(shape.places(indices)).tolist() == indices.tolist()
