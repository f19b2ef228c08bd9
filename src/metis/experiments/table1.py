"""Table I: CIFAR-10, nine distributions, a homogeneous and a heterogeneous cluster."""

from __future__ import annotations

from metis.experiments.cells import Domain, Horizon, Setting
from metis.experiments.published import TABLE1_ROWS
from metis.experiments.study import Choice, Grid, Report, Study
from metis.experiments.tables import table_report

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
    smoke_row="powerlaw-3",
    # The other reading of the paper's power law, size_k ~ 1.5^-k; see docs/reproduce.md.
    more_rows=("geometric-iid", "geometric-5", "geometric-3"),
)


def report(setting: Setting, choice: Choice) -> Report:
    figures = {"homogeneous": "fig5", "heterogeneous": "fig6"}
    return table_report(GRID, "Table I: CIFAR-10", figures, setting, "table1")


STUDY = Study("table1", "CIFAR-10, nine distributions, two clusters", GRID.cells, report)
