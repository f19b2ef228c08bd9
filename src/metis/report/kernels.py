"""Pictures of what an update says of a convolution: a column for each kernel, a row for each cell.

A layer is a plain array of that shape, so that nothing here knows of codecs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metis.report.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = NDArray[np.float32]

#: What shrinks, what stays in a kernel that is touched, what grows. Untouched kernels are white.
_SHRINKS, _STAYS, _GROWS = COLOURS[0], "#d0d0d0", COLOURS[5]

_DPI = 150
_PIXELS = 2  # that a column has, unless there are very many layers
_MAX_COLUMNS = 2048  # of more kernels, neighbours share a column
_MAX_PIXELS = 40e6  # of a picture
_INCHES_BESIDE = 1.2  # for names and numbers
_INCHES_BETWEEN = 0.75


def kept_updates(layers: Mapping[str, Matrix], title: str = "") -> Figure:
    """Draw where kept updates lie, a heat map for each layer: what is below, at or above zero."""
    figure, panels = _figure([matrix.shape for matrix in layers.values()])
    for axes, (name, matrix) in zip(panels, layers.items(), strict=True):
        _draw_signs(axes, matrix)
        _name(axes, f"{name}: {_in_words(matrix)}")
    _finish(figure, panels, title)
    return figure


def compared(change: Matrix, stc: Matrix, sstc: Matrix, title: str = "") -> Figure:
    """Draw one layer three times: how much its cells change, and what STC and SSTC send of that.

    This is Figure 2 of Mora et al. (2022), except that it tells what grows from what shrinks.
    """
    figure, panels = _figure([change.shape] * 3)
    image = _draw_sizes(panels[0], np.abs(change))
    # Inset, so that all three panels stay of one width and a kernel has one place in them.
    bar = figure.colorbar(image, cax=panels[0].inset_axes((1.008, 0.0, 0.008, 1.0)))
    bar.ax.tick_params(labelsize=_font(figure, 8))
    _name(panels[0], "uncompressed: how much each weight changes")
    for axes, codec, matrix in zip(panels[1:], ("STC", "SSTC"), (stc, sstc), strict=True):
        _draw_signs(axes, matrix)
        _name(axes, f"{codec}: {_in_words(matrix)}")
    _finish(figure, panels, title)
    return figure


def _figure(shapes: Sequence[tuple[int, ...]]) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each matrix, wide enough to tell columns apart."""
    columns = max(min(kernels, _MAX_COLUMNS) for _, kernels in shapes)
    width = max(10.0, columns * _PIXELS / _DPI + _INCHES_BESIDE)
    heights = [min(2.2, max(0.5, 0.1 * cells)) for cells, _ in shapes]
    # A wide picture is looked at from further away: all in it grows, but not as fast.
    height = (sum(heights) + _INCHES_BETWEEN * (len(heights) + 1)) * _enlarged(width)
    dpi = min(_DPI, math.sqrt(_MAX_PIXELS / (width * height)))
    figure = new_figure(width, height, dpi)
    panels = figure.subplots(len(shapes), 1, squeeze=False, height_ratios=heights)
    return figure, list(panels[:, 0])


def _enlarged(width: float) -> float:
    return float((width / 10.0) ** 0.6)


def _draw_signs(axes: Axes, matrix: Matrix) -> None:
    from matplotlib.colors import ListedColormap

    signs = np.sign(matrix)
    touched = np.broadcast_to(signs.any(axis=0), signs.shape)
    cells = np.where(touched, signs, np.nan)
    colours = ListedColormap([_SHRINKS, _STAYS, _GROWS])
    _image(axes, cells, np.abs(signs) + touched, cmap=colours, vmin=-1.0, vmax=1.0)


def _draw_sizes(axes: Axes, sizes: Matrix) -> Any:
    from matplotlib.colors import PowerNorm

    largest = float(sizes.max(initial=0.0)) or 1.0  # of a layer that did not change
    # By the square root, because few cells change much more than all others.
    return _image(axes, sizes, sizes, cmap="Greys", norm=PowerNorm(0.5, 0.0, largest))


def _image(axes: Axes, cells: Matrix, weights: Matrix, **colours: Any) -> Any:
    """Draw cells, with an x axis that counts kernels also where several share a column.

    Of the cells that share a place, the one that weighs most is shown.
    """
    num_cells, num_kernels = cells.shape
    each = _kernels_per_column(num_kernels)
    if each > 1:
        missing = ((0, 0), (0, -num_kernels % each))
        cells = np.pad(cells, missing, constant_values=np.nan).reshape(num_cells, -1, each)
        weights = np.pad(weights, missing, constant_values=-1.0).reshape(cells.shape)
        heaviest = weights.argmax(axis=2, keepdims=True)
        cells = np.take_along_axis(cells, heaviest, axis=2)[..., 0]
    right = each * cells.shape[1] - 0.5
    image = axes.imshow(
        np.ma.masked_invalid(cells),
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, right, num_cells - 0.5, -0.5),
        **colours,
    )
    axes.set_xlim(-0.5, num_kernels - 0.5)
    return image


def _kernels_per_column(num_kernels: int) -> int:
    return max(1, -(-num_kernels // _MAX_COLUMNS))


def _in_words(matrix: Matrix) -> str:
    kept, touched = np.count_nonzero(matrix), np.count_nonzero(matrix.any(axis=0))
    num_kernels = matrix.shape[1]
    each = _kernels_per_column(num_kernels)
    return (
        f"{kept:,} of {matrix.size:,} weights, in {touched:,} of {num_kernels:,} kernels"
        f"{f' ({each} in a column)' if each > 1 else ''}"
    )


def _name(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=_font(axes.get_figure(root=True), 10))


def _finish(figure: Figure, panels: Sequence[Axes], title: str) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for axes in panels:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("cell", fontsize=_font(figure, 9))
        axes.tick_params(labelsize=_font(figure, 8))
    panels[-1].set_xlabel("kernel", fontsize=_font(figure, 9))
    marks = {"grows": _GROWS, "shrinks": _SHRINKS, "not kept": _STAYS, "kernel untouched": "white"}
    figure.legend(
        handles=[
            Patch(facecolor=colour, edgecolor="#999999", linewidth=0.6, label=label)
            for label, colour in marks.items()
        ],
        loc="outside lower center",
        ncols=len(marks),
        frameon=False,
        fontsize=_font(figure, 9),
    )
    if title:
        figure.suptitle(title, fontsize=_font(figure, 11))


def _font(figure: Any, points: int) -> float:
    return points * _enlarged(figure.get_figwidth())
