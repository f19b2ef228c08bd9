"""Figure 4: how stale learners were when they offered their first 20 models, uniform IID.

Effective staleness, in mini-batches, of the cell that Table I has of AsyncDVW(a). At the trigger,
not at the commit: condition C3 looks at that, and a request's overhead and queue come later.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from metis.report.style import group_colours, new_figure, plain, write_figure
from metis_papers import table1
from metis_papers.cells import Cell, Setting
from metis_papers.fig3 import CLUSTER, POLICY, ROW
from metis_papers.formatting import made_with, markdown_table, write_page
from metis_papers.results import FIRST_CYCLES, read_results
from metis_papers.study import Choice, Report, Study


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, "fig4")
    choice.must_be((CLUSTER,), (ROW,), (POLICY,), "fig4")
    return grid.cells(setting, Choice((CLUSTER,), (str(ROW),), (POLICY,)))


def report(setting: Setting, choice: Choice) -> Report:
    grid = table1.grid_of(choice.data, "fig4")
    name = f"fig4{grid.suffix}"
    found = [
        one
        for one in read_results(setting.out, [grid.name])
        if (one.cluster, one.row, one.policy) == (CLUSTER, ROW, POLICY)
    ]
    there = [one for one in found if one.trigger_staleness]
    if not there:
        what = "does not tell of staleness at the trigger: make it again" if found else "is missing"
        return write_page(setting.out, name, f"## Figure 4\n\nIts cell {what}.\n")
    one = there[0]
    colours = group_colours((*(each["group"] for each in one.learners), *one.trigger_staleness))
    figure = new_figure(5 * len(one.trigger_staleness), 3.6)
    panels = figure.subplots(1, len(one.trigger_staleness), squeeze=False).ravel()
    lines = []
    for axes, (group, stale) in zip(panels, one.trigger_staleness.items(), strict=True):
        first = stale["first"]
        spread = statistics.stdev(first) if len(first) > 1 else 0.0
        numbers = (statistics.median(first), statistics.mean(first), spread)
        axes.hist(first, bins=20, color=colours[group], alpha=0.8)
        axes.axvline(numbers[0], color="black", lw=1, label=f"median (C3) {numbers[0]:,.0f}")
        plain(axes, "effective staleness at the trigger (mini-batches)", "cycles")
        axes.set_title(f"{group} learners", loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
        members = sum(learner["group"] == group for learner in one.learners)
        words = (f"{number:,.0f}" for number in numbers)
        lines.append((group, str(len(first)), *words, _thresholds(first, members)))
    picture = write_figure(figure, setting.out / f"{name}.png")
    heads = ("group", "cycles", "median", "mean", "std", "learners' own medians")
    text = (
        f"## Figure 4: staleness of each learner's first {FIRST_CYCLES} cycles\n\n"
        "Effective staleness at the trigger: when a learner offered its model, not when the model "
        "was taken into the community. The line is the median that condition C3 compares with, "
        f"over a group. C3 takes each learner's own, over its first {FIRST_CYCLES} cycles, and is "
        "off before.\n\n"
        f"{markdown_table(heads, lines)}\n![figure 4]({name}.png)\n\n{made_with([one])}"
    )
    return write_page(setting.out, name, text, [picture])


def _thresholds(first: Sequence[int], members: int) -> str:
    """Return the least and the largest of C3's thresholds, where all learners have one.

    `first` has the cycles of one learner after the other.
    """
    if not members or len(first) != members * FIRST_CYCLES:
        return "-"
    starts = range(0, len(first), FIRST_CYCLES)
    medians = [statistics.median(first[at : at + FIRST_CYCLES]) for at in starts]
    return f"{min(medians):,.0f} to {max(medians):,.0f}"


STUDY = Study("fig4", "staleness of fast and slow learners at their first offers", cells, report)
