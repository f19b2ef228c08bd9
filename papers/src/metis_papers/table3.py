"""Table III: EMNIST ByClass and LEAF's CNN, heterogeneous cluster, 30,000 s.

Where EMNIST is missing, the same table can be made of data that is near to it, under its own
name: MNIST divided from the same NIST forms (10 classes, so 30 of 62 classes become 5 of 10),
Fashion-MNIST likewise, or Chars74K (62 classes, but 3,410 pictures).
"""

from __future__ import annotations

from dataclasses import replace

from metis.core.errors import ConfigError, unknown
from metis.data.sources import SOURCES, cache_directory
from metis_papers.cells import Cell, Domain, Horizon, Setting
from metis_papers.published import TABLE3_ROWS
from metis_papers.study import Choice, Grid, Report, Study
from metis_papers.tables import NOT_PUBLISHED, table_report

#: Data that can stand in for EMNIST, and how many classes a learner of the second row then holds.
DATA = {
    "emnist_byclass": 30,
    "chars74k_hnd28": 30,
    "mnist_by_writer": 5,
    "mnist": 5,
    "fashion_mnist": 5,
}

GRID = Grid(
    name="table3",
    domain=Domain(
        "emnist_byclass",
        "leaf_cnn",
        train={"learning_rate": 0.01, "momentum": 0.5, "batch_size": 100},
    ),
    rows=TABLE3_ROWS,
    policies={
        "heterogeneous": (
            "async-fedavg",
            "fedasync",
            "async-dvw",
            "async-dvw-adaptive",
            "async-uniform",
        )
    },
    horizons={"heterogeneous": Horizon(seconds=30_000.0)},
    smoke_row=TABLE3_ROWS[0],
)


def grid_of(data: str | None) -> Grid:
    """Return the table for the data that was asked for; other data has a name of its own.

    A file that is no source of its own is looked for where prepared data lies.
    """
    if data is None or data == GRID.domain.name:
        return GRID
    if data not in DATA:
        raise ConfigError(unknown("data of table3", data, DATA))
    source = data if data in SOURCES else str(cache_directory().absolute() / f"{data}.npz")
    rows = tuple(
        replace(row, classes=DATA[data]) if isinstance(row.classes, int) else row
        for row in GRID.rows
    )
    return replace(
        GRID,
        name=f"{GRID.name}-{data}",
        domain=replace(GRID.domain, data=source),
        rows=rows,
        other_data=data,
        of=GRID.name,
        difference="The same federations, other data",
    )


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    return grid_of(choice.data).cells(setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    grid = grid_of(choice.data)
    name = choice.data or "EMNIST ByClass"
    # Numbers of another dataset are not compared with the paper's.
    title, published = f"Table III: {name}, leaf_cnn", "table3" if grid is GRID else NOT_PUBLISHED
    figure = f"fig8{grid.suffix}"
    return table_report(grid, title, {"heterogeneous": figure}, setting, published)


STUDY = Study("table3", "EMNIST, or --data in its place, three distributions", cells, report)
