"""A picture of who holds what: a table for the terminal, a heat map for the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.markup import escape
from rich.table import Table

from metis.core.errors import DataError
from metis.data.partition import Partition

_MAX_COLUMNS = 12  # more classes than this do not fit beside each other in 80 columns
_MAX_ROWS = 40
_MAX_NUMBERS = 240  # cells of a heat map that still have room for a number


def holdings(labels: NDArray[Any], partition: Partition, num_classes: int) -> NDArray[np.int64]:
    """Return examples per learner (rows) and class (columns); a regression has one column."""
    if num_classes == 0:
        return np.array([[size] for size in partition.sizes], dtype=np.int64)
    rows = [np.bincount(labels[held], minlength=num_classes) for held in partition.indices]
    return np.array(rows, dtype=np.int64)


def table(counts: NDArray[np.int64], names: Sequence[str], note: str = "") -> Table:
    """Return the holdings as a table; many classes are summed up, many learners cut short."""
    num_learners, num_classes = counts.shape
    each = 1 < num_classes <= _MAX_COLUMNS
    grid = Table(title=escape(note) or None, box=box.SIMPLE_HEAD, padding=0)
    grid.add_column("learner", no_wrap=True)
    grid.add_column("total", justify="right", no_wrap=True)
    if num_classes > 1:
        grid.add_column("classes", justify="right")
        for heading in map(str, range(num_classes)) if each else ("least", "most"):
            grid.add_column(heading, justify="right", no_wrap=True)
    for name, row in list(zip(names, counts, strict=True))[:_MAX_ROWS]:
        held = row[row > 0]
        cells = [escape(name), str(int(row.sum()))]
        if num_classes > 1:
            cells.append(str(len(held)))
            if each:
                cells += [str(int(n)) if n else "." for n in row]
            else:
                cells += [str(int(held.min(initial=row.max()))), str(int(row.max()))]
        grid.add_row(*cells)
    if num_learners > _MAX_ROWS:
        rest = counts[_MAX_ROWS:]
        grid.add_row(f"{len(rest)} more", str(int(rest.sum())))
    return grid


def plot(counts: NDArray[np.int64], names: Sequence[str], path: Path, note: str = "") -> None:
    """Write the holdings as a PNG: sizes as bars, classes as a heat map."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError(
            "a picture needs matplotlib, which is not installed: pip install 'metis-fl[plot]'"
        ) from None

    num_learners, num_classes = counts.shape
    height = min(12.0, 1.6 + 0.32 * num_learners)
    figure = Figure(figsize=(10, height), layout="constrained")
    bars, heat = figure.subplots(1, 2, sharey=True, width_ratios=(1, 3))
    rows = np.arange(num_learners)
    bars.barh(rows, counts.sum(axis=1), color="#4c72b0")
    bars.invert_xaxis()
    bars.set_xlabel("examples")
    if num_learners <= _MAX_ROWS:
        bars.set_yticks(rows, names)
    else:
        bars.set_ylabel("learner")
    heat.imshow(counts, aspect="auto", cmap="Blues", interpolation="nearest")
    heat.set_xlabel("class" if num_classes > 1 else "all examples")
    if num_classes == 1:
        heat.set_xticks([])
    elif num_classes <= 2 * _MAX_COLUMNS:
        heat.set_xticks(np.arange(num_classes))
    if counts.size <= _MAX_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = count > 0.6 * counts.max()
                heat.text(
                    column,
                    row,
                    str(count),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
    if note:
        figure.suptitle(note, fontsize=10)
    figure.savefig(path, dpi=120)
