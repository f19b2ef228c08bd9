"""Table I: CIFAR-10, nine distributions, a homogeneous and a heterogeneous cluster.

On two cores a cell of it takes half a day. The same federations, distributions and policies can be
made with Fashion-MNIST or MNIST and a small perceptron: minutes a cell, so several seeds are no
trouble. Such a table has its own name, and does not show the paper's numbers.
"""

from __future__ import annotations

from dataclasses import replace

from metis.core.errors import ConfigError, unknown
from metis_papers.cells import Cell, Domain, Horizon, Setting, rows
from metis_papers.published import TABLE1_ROWS
from metis_papers.study import Choice, Grid, Report, Study
from metis_papers.tables import NOT_PUBLISHED, table_report

#: Data that a laptop can make the table of.
SMALL = ("fashion_mnist", "mnist")

GRID = Grid(
    name="table1",
    domain=Domain("cifar10", "cifar_cnn"),
    rows=TABLE1_ROWS,
    policies={
        "homogeneous": ("sync-fedavg", "sync-dvw", "sync-uniform"),
        "heterogeneous": (
            "sync-fedavg",
            "sync-dvw",
            "async-fedavg",
            "fedasync",
            "async-dvw",
            "async-dvw-adaptive",
            "sync-uniform",
            "async-uniform",
        ),
    },
    horizons={"homogeneous": Horizon(rounds=200), "heterogeneous": Horizon(seconds=14_000.0)},
    smoke_row=TABLE1_ROWS[-1],
    # The other reading of the paper's power law, size_k ~ 1.5^-k; see papers/README.md.
    more_rows=rows("geometric-iid", "geometric-5", "geometric-3"),
)


def grid_of(data: str | None, of: str = "table1") -> Grid:
    """Return the table for the data that was asked for; other data has a name of its own.

    `of` is what the user asked for; the error names it if there is no such data.
    """
    if data is None or data == GRID.domain.name:
        return GRID
    if data not in SMALL:
        raise ConfigError(unknown(f"data of {of}", data, (GRID.domain.name, *SMALL)))
    # Rates and batches are the paper's, so that it is the data and the network that differ.
    training = {"learning_rate": 0.05, "momentum": 0.75, "batch_size": 100}
    domain = Domain(GRID.domain.name, "mlp", data=data, train=training)
    return replace(
        GRID,
        name=f"{GRID.name}-{data}",
        domain=domain,
        other_data=data,
        of=GRID.name,
        difference="The same federations, other data and a network for it",
    )


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    return grid_of(choice.data).cells(setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    grid, figures = grid_of(choice.data), {"homogeneous": "fig5", "heterogeneous": "fig6"}
    if grid is GRID:
        return table_report(grid, "Table I: CIFAR-10", figures, setting, grid.name)
    figures = {cluster: figure + grid.suffix for cluster, figure in figures.items()}
    title = f"Table I's federations on {choice.data}, {grid.domain.model}"
    return table_report(grid, title, figures, setting, NOT_PUBLISHED)


STUDY = Study("table1", "CIFAR-10, nine distributions, two clusters", cells, report)
