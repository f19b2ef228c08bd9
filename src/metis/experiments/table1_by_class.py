"""Table I's power-law rows, examples read class by class through a small shuffle buffer.

Of what `beliefs` has tried so far, this comes closest to the paper's gap between FedAvg and DVW:
learners with more examples than the buffer holds train on one class after the other. The rest is
Table I's.
"""

from __future__ import annotations

from dataclasses import replace

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting
from metis.experiments.study import Choice, Grid, Report, Study
from metis.experiments.tables import table_report

BUFFER = 1000
GRID: Grid = replace(
    table1.GRID,
    name="table1-by-class",
    domain=replace(table1.GRID.domain, train={"shuffle_buffer": BUFFER}),
    rows=tuple(row for row in table1.GRID.rows if row.startswith("powerlaw")),
)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    choice.must_be_the_papers_data(GRID.name)
    if setting.scale == "smoke":  # the rest is Table I's
        choice = replace(choice, policies=choice.policies or ("sync-fedavg",))
    return GRID.cells(setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    title = f"Table I's power law with examples class by class (shuffle buffer of {BUFFER:,})"
    figures = {cluster: f"{GRID.name}-{cluster}" for cluster in GRID.policies}
    return table_report(GRID, title, figures, setting, table1.GRID.name)


STUDY = Study(GRID.name, "its power-law rows with examples class by class", cells, report)
