"""Figures 5 to 8: the convergence of the tables' cells over virtual time."""

from __future__ import annotations

from dataclasses import replace

from metis_papers import table1, table2, table3
from metis_papers.cells import Cell, Setting
from metis_papers.convergence import draw_convergence
from metis_papers.formatting import made_with, write_page
from metis_papers.results import read_results
from metis_papers.study import Choice, Grid, Report, Study
from metis_papers.tables import missing


def _grid(name: str, choice: Choice) -> tuple[Grid, str]:
    """Return the table a figure is made of, and its cluster."""
    match name:
        case "fig5":
            return table1.grid_of(choice.data, name), "homogeneous"
        case "fig6":
            return table1.grid_of(choice.data, name), "heterogeneous"
        case "fig7":
            choice.must_be_the_papers_data(name)
            return table2.GRID, "heterogeneous"
    return table3.grid_of(choice.data), "heterogeneous"


def _study(name: str, summary: str) -> Study:
    def cells(setting: Setting, choice: Choice) -> list[Cell]:
        grid, cluster = _grid(name, choice)
        return grid.cells(setting, replace(choice, clusters=choice.clusters or (cluster,)))

    def report(setting: Setting, choice: Choice) -> Report:
        grid, cluster = _grid(name, choice)
        file = name + grid.suffix
        title = f"Figure {name[3:]}: {grid.name}, {cluster} cluster, over virtual time"
        found = [one for one in read_results(setting.out, [grid.name]) if one.cluster == cluster]
        only = replace(grid, policies={cluster: grid.policies[cluster]})
        parts = [f"## {title}\n", missing(only, found)]
        pictures = []
        if found:
            pictures = [draw_convergence(found, title, setting.out / f"{file}.png")]
            parts += [f"![{title}]({file}.png)\n", made_with(found)]
        return write_page(setting.out, file, "\n".join(parts), pictures)

    return Study(name, summary, cells, report)


STUDIES = (
    _study("fig5", "Table I's homogeneous cells over virtual time"),
    _study("fig6", "Table I's heterogeneous cells over virtual time"),
    _study("fig7", "Table II's cells over virtual time"),
    _study("fig8", "Table III's cells over virtual time"),
)
