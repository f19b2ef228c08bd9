"""Table I's power-law rows, examples read class by class through a small shuffle buffer.

Of what `beliefs` has tried so far, this comes closest to the paper's gap between FedAvg and DVW:
learners with more examples than the buffer holds train on one class after the other. The rest is
Table I's.
"""

from __future__ import annotations

from dataclasses import replace

from metis_papers import table1
from metis_papers.cells import Cell, Setting
from metis_papers.study import Choice, Grid, Report, Study
from metis_papers.tables import NOT_PUBLISHED, table_report

NAME = "table1-by-class"
BUFFER = 1000


def grid_of(data: str | None) -> Grid:
    """Return the table for the data that was asked for; other data has a name of its own."""
    grid = table1.grid_of(data, NAME)
    return replace(
        grid,
        name=NAME + grid.suffix,
        domain=replace(grid.domain, train={**grid.domain.train, "shuffle_buffer": BUFFER}),
        rows=tuple(row for row in grid.rows if row.is_power_law),
        of=table1.GRID.name,
        difference="With what we believe explains the difference changed",
    )


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    if setting.scale == "smoke":  # the rest is Table I's
        choice = replace(choice, policies=choice.policies or ("sync-fedavg",))
    return grid_of(choice.data).cells(setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    grid = grid_of(choice.data)
    is_papers = grid.domain.data == ""
    on = "" if is_papers else f" on {choice.data}"
    title = f"Table I's power law{on}, examples class by class (shuffle buffer of {BUFFER:,})"
    figures = {cluster: f"{grid.name}-{cluster}" for cluster in grid.policies}
    published = table1.GRID.name if is_papers else NOT_PUBLISHED
    return table_report(grid, title, figures, setting, published)


STUDY = Study(NAME, "its power-law rows with examples class by class", cells, report)
