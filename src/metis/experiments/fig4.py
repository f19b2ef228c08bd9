"""Figure 4: how stale the first 20 updates of each learner were, uniform IID.

Effective staleness, in mini-batches, of the cell that Table I has of AsyncDVW(a).
"""

from __future__ import annotations

import statistics

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting
from metis.experiments.fig3 import CLUSTER, POLICY, ROW
from metis.experiments.outcome import FIRST_CYCLES, read_outcomes
from metis.experiments.pictures import GROUPS, new_figure, plain, write_figure
from metis.experiments.study import Choice, Report, Study
from metis.experiments.words import made_with, markdown_table, write_page


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, "fig4")
    choice.must_be((CLUSTER,), (ROW,), (POLICY,), "fig4")
    return grid.cells(setting, Choice((CLUSTER,), (ROW,), (POLICY,)))


def report(setting: Setting, choice: Choice) -> Report:
    grid = table1.grid_of(choice.data, "fig4")
    name, folder = f"fig4{grid.suffix}", setting.out / grid.name / CLUSTER / ROW
    found = [one for one in read_outcomes(folder) if one.policy == POLICY and one.staleness]
    if not found:
        return write_page(setting.out, name, "## Figure 4\n\nIts cell is missing.\n")
    one = found[0]
    figure = new_figure(5 * len(one.staleness), 3.6)
    panels = figure.subplots(1, len(one.staleness), squeeze=False).ravel()
    lines = []
    for axes, (group, stale) in zip(panels, one.staleness.items(), strict=True):
        first = stale["first"]
        spread = statistics.stdev(first) if len(first) > 1 else 0.0
        numbers = (statistics.median(first), statistics.mean(first), spread)
        axes.hist(first, bins=20, color=GROUPS.get(group), alpha=0.8)
        axes.axvline(numbers[0], color="black", lw=1, label=f"median {numbers[0]:,.0f}")
        plain(axes, "effective staleness (mini-batches)", "updates")
        axes.set_title(f"{group} learners", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
        lines.append((group, str(len(first)), *(f"{number:,.0f}" for number in numbers)))
    picture = write_figure(figure, setting.out / f"{name}.png")
    heads = ("group", "updates", "median", "mean", "std")
    text = (
        f"## Figure 4: staleness of each learner's first {FIRST_CYCLES} updates\n\n"
        f"{markdown_table(heads, lines)}\n![figure 4]({name}.png)\n\n{made_with([one])}"
    )
    return write_page(setting.out, name, text, [picture])


STUDY = Study("fig4", "staleness of the first updates of fast and slow learners", cells, report)
