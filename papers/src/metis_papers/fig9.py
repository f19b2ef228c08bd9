"""Figure 9: update requests and models exchanged, one distribution for each kind of sizes.

Two models a request, eleven with DVW and ten learners: one up, nine to judges, one down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metis.report.style import LOOKS, new_figure, plain, write_figure
from metis_papers import table1
from metis_papers.cells import Cell, Setting
from metis_papers.formatting import TITLES, made_with, markdown_table, write_page
from metis_papers.results import Result, read_results
from metis_papers.study import Choice, Report, Study, chosen_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = ("uniform-iid", "skewed-5", "powerlaw-3")


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    table1.grid_of(choice.data, "fig9")
    rows = choice.rows or (None if setting.scale == "smoke" else ROWS)
    return table1.cells(setting, Choice(("heterogeneous",), rows, choice.policies, choice.data))


def report(setting: Setting, choice: Choice) -> Report:
    grid = table1.grid_of(choice.data, "fig9")
    name = f"fig9{grid.suffix}"
    rows = chosen_rows(choice.rows or ROWS, grid.rows, "fig9", grid.more_rows)
    found = [
        one
        for one in read_results(setting.out, [grid.name])
        if one.cluster == "heterogeneous" and one.row in rows
    ]
    if not found:
        return write_page(setting.out, name, "## Figure 9\n\nAll its cells are missing.\n")
    lines = [
        (
            str(one.row),
            TITLES[one.policy],
            str(one.seed),
            str(one.horizon),
            f"{one.requests:,}",
            f"{one.models_exchanged:,}",
            f"{one.evaluation_models:,}",
            f"{one.models_exchanged / max(one.requests, 1):.1f}",
        )
        for one in found
    ]
    heads = (
        "row",
        "policy",
        "seed",
        "horizon",
        "requests",
        "models",
        "of those to judges",
        "a request",
    )
    text = (
        "## Figure 9: update requests and models exchanged\n\n"
        f"{markdown_table(heads, lines)}\n![figure 9]({name}.png)\n\n{made_with(found)}"
    )
    picture = write_figure(_drawn(found), setting.out / f"{name}.png")
    return write_page(setting.out, name, text, [picture])


def _drawn(found: Sequence[Result]) -> Figure:
    rows = list(dict.fromkeys((one.row, one.horizon) for one in found))
    figure = new_figure(10, 1.0 + 2.4 * len(rows))
    panels = figure.subplots(len(rows), 2, squeeze=False)
    for (left, right), (row, horizon) in zip(panels, rows, strict=True):
        first: dict[str, Result] = {}
        for one in found:
            if (one.row, one.horizon) == (row, horizon):
                first.setdefault(one.policy, one)
        here = [first[policy] for policy in TITLES if policy in first]
        places = range(len(here))
        colours = [LOOKS[one.policy][0] for one in here]
        left.barh(places, [one.requests for one in here], color=colours)
        right.barh(places, [one.models_exchanged for one in here], color=colours)
        right.barh(
            places,
            [one.evaluation_models for one in here],
            left=[one.models_exchanged - one.evaluation_models for one in here],
            color="white",
            alpha=0.45,
            hatch="///",
        )
        left.set_yticks(places, [TITLES[one.policy] for one in here])
        right.set_yticks(places, [])
        for axes, what in ((left, "update requests"), (right, "models (hatched: to judges)")):
            plain(axes, what)
            axes.invert_yaxis()
        left.set_title(f"{row}, {horizon}", loc="left", fontsize=10)
    return figure


STUDY = Study("fig9", "update requests and models exchanged", cells, report)
