"""The picture of who holds what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from metis.data.partition import Partition
from metis.data.picture import holdings, plot, table


def text(grid: Table) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(grid)
    return capture.get()


def test_holdings_count_examples_by_learner_and_class() -> None:
    parts = Partition((np.array([0, 1, 4]), np.array([2])), unplaced=1, note="")

    assert holdings(np.array([0, 0, 1, 1, 2]), parts, 3).tolist() == [[2, 0, 1], [0, 1, 0]]


def test_a_table_of_ten_classes_fits_a_terminal() -> None:
    shown = text(table(np.full((10, 10), 3133), [f"slow-{i}" for i in range(10)], "a note"))

    assert shown.split().count("3133") == 100
    assert shown.split().count("31330") == 10
    assert "classes" in shown
    assert "…" not in shown
    assert "a note" in shown


def test_many_classes_are_summed_up_and_many_learners_cut_short() -> None:
    counts = np.zeros((100, 62), dtype=np.int64)
    counts[:, :3] = [7, 8, 9]

    shown = text(table(counts, [f"l{i}" for i in range(100)])).splitlines()
    rows = [line.split() for line in shown if line.strip()]

    assert ["l0", "24", "3", "7", "9"] in rows
    assert rows[-1] == ["60", "more", "1440"]


def test_a_regression_shows_totals_only() -> None:
    assert "5" in text(table(np.array([[5]]), ["only"]))


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    shapes = ((10, 10), (4, 1), (60, 62))
    for counts in (np.arange(rows * columns).reshape(rows, columns) for rows, columns in shapes):
        path = tmp_path / f"{len(counts)}.png"
        plot(counts, [f"l{i}" for i in range(len(counts))], path, "a note")
        assert path.read_bytes().startswith(b"\x89PNG")
