"""Pictures of kernels: a heat map each, with a column for every kernel."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

from metis.core.errors import RunError
from metis.report import kernels

pytest.importorskip("matplotlib")


def drawn(figure: Any) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=30)
    return png.getvalue()


def images(figure: Any) -> list[Any]:
    """Return what each panel shows; a colour bar is no panel."""
    shown = [image for axes in figure.axes for image in axes.get_images()]
    return [image.get_array() for image in shown]


def sparse(num_cells: int, num_kernels: int) -> kernels.Matrix:
    """Return a layer whose every tenth kernel grows in its first cell, shrinks in its last."""
    matrix = np.zeros((num_cells, num_kernels), dtype=np.float32)
    matrix[0, ::10], matrix[-1, ::10] = 0.25, -0.25
    return matrix


def test_every_layer_has_a_heat_map_with_a_column_for_each_kernel() -> None:
    figure = kernels.kept_updates({"0.weight": sparse(9, 16), "2.weight": sparse(25, 512)}, "sstc")

    assert [shown.shape for shown in images(figure)] == [(9, 16), (25, 512)]
    assert drawn(figure).startswith(b"\x89PNG")


def test_a_heat_map_shows_signs_and_leaves_untouched_kernels_white() -> None:
    (shown,) = images(kernels.kept_updates({"conv": sparse(4, 20)}))

    assert shown[:, 0].tolist() == [1, 0, 0, -1]
    assert shown[:, 10].tolist() == [1, 0, 0, -1]
    untouched = [kernel for kernel in range(20) if kernel % 10]
    assert shown.mask[:, untouched].all()
    assert not shown.mask[:, ::10].any()


def test_the_title_of_a_layer_counts_weights_and_kernels() -> None:
    figure: Any = kernels.kept_updates({"conv": sparse(4, 20)})

    title = figure.axes[0].get_title(loc="left")
    assert title == "conv: 4 of 80 weights, in 2 of 20 kernels"


def test_two_thousand_kernels_have_two_pixels_each() -> None:
    figure: Any = kernels.kept_updates({"conv": sparse(25, 2048)})
    figure.draw_without_rendering()

    assert images(figure)[0].shape == (25, 2048)
    assert figure.axes[0].get_window_extent().width >= 1.9 * 2048


def test_of_very_many_kernels_neighbours_share_a_column_and_none_is_lost() -> None:
    matrix = np.zeros((3, 10_001), dtype=np.float32)
    matrix[1, 5_003], matrix[2, 10_000] = -1.0, 1.0

    figure: Any = kernels.kept_updates({"conv": matrix})

    (shown,) = images(figure)
    assert shown.shape == (3, 2_001)  # five in a column
    assert shown[:, 1_000].tolist() == [0, -1, 0]
    assert shown[:, 2_000].tolist() == [0, 0, 1]
    assert shown.mask.sum() == 3 * 1_999
    assert figure.axes[0].get_xlim() == (-0.5, 10_000.5)
    assert "(5 in a column)" in figure.axes[0].get_title(loc="left")


def test_a_picture_of_very_many_layers_stays_of_a_size_that_can_be_opened() -> None:
    figure = kernels.kept_updates({f"{n}.weight": sparse(9, 2048) for n in range(50)})

    width, height = figure.get_size_inches() * figure.dpi
    assert width * height <= 40.1e6


def test_a_layer_is_compared_in_three_heat_maps_of_one_shape() -> None:
    change = np.random.default_rng(5).normal(size=(25, 64)).astype(np.float32)
    sent = np.where(np.abs(change) > 2.0, change, 0.0)

    figure: Any = kernels.compared(change, sent, sparse(25, 64), "conv2")
    drawn(figure)

    before, stc, sstc = images(figure)[:3]
    assert before.shape == stc.shape == sstc.shape == (25, 64)
    assert before.tolist() == np.abs(change).tolist()
    assert np.unique(stc.compressed()).tolist() == [-1, 0, 1]
    titles = [axes.get_title(loc="left").partition(":")[0] for axes in figure.axes[:3]]
    assert titles == ["uncompressed", "STC", "SSTC"]
    left_and_right = {(axes.bbox.x0, axes.bbox.x1) for axes in figure.axes[:3]}
    assert len(left_and_right) == 1  # so that a kernel is below itself


def test_a_layer_that_did_not_change_can_be_drawn() -> None:
    nothing = np.zeros((9, 12), dtype=np.float32)

    figure = kernels.compared(nothing, nothing, nothing)

    assert drawn(figure).startswith(b"\x89PNG")
    assert images(figure)[1].mask.all()


def test_drawing_kernels_leaves_pyplot_alone() -> None:
    before = "matplotlib.pyplot" in sys.modules
    drawn(kernels.kept_updates({"conv": sparse(4, 20)}))

    assert ("matplotlib.pyplot" in sys.modules) == before


def test_without_matplotlib_kernels_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(RunError, match="metis-fl\\[plot\\]"):
        kernels.kept_updates({"conv": sparse(4, 20)})
