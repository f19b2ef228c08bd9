"""Table II: CIFAR-100 and a residual network of 50 layers, heterogeneous cluster.

For CIFAR-100 no constants of validation cycles are known; those of CIFAR-10 under the same
distribution are taken.
"""

from __future__ import annotations

from metis_papers.cells import Cell, Domain, Horizon, Setting
from metis_papers.published import TABLE2_ROWS
from metis_papers.study import Choice, Grid, Report, Study
from metis_papers.tables import table_report

GRID = Grid(
    name="table2",
    domain=Domain("cifar100", "resnet50_cifar"),
    rows=TABLE2_ROWS,
    policies={
        "heterogeneous": (
            "async-fedavg",
            "fedasync",
            "async-dvw",
            "async-dvw-adaptive",
            "async-uniform",
        )
    },
    horizons={"heterogeneous": Horizon(seconds=14_000.0)},
    smoke_row=TABLE2_ROWS[0],
)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    choice.must_be_the_papers_data(GRID.name)
    return GRID.cells(setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    title = "Table II: CIFAR-100, resnet50_cifar"
    return table_report(GRID, title, {"heterogeneous": "fig7"}, setting, "table2")


STUDY = Study("table2", "CIFAR-100 with resnet50_cifar, six distributions", cells, report)
