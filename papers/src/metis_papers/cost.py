"""Beyond the paper: what accuracy costs each policy, in time, in bytes moved, in samples trained.

The paper compares policies after the same virtual time. A federation may rather be short of traffic
(with DVW each update goes to every judge too) or of energy: what devices compute is counted
as samples trained. Drawn from the heterogeneous cells of Table I, or of that table of other data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from metis.report.steps import together
from metis.report.style import LOOKS, new_figure, plain, write_figure
from metis_papers import table1
from metis_papers.cells import Cell, Setting
from metis_papers.formatting import TITLES, made_with, markdown_table, score, write_page
from metis_papers.results import Result, read_results
from metis_papers.study import Choice, Grid, Report, Study, chosen, chosen_rows

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

NAME, CLUSTER = "cost", "heterogeneous"
ROWS = ("uniform-iid", "powerlaw-iid", "powerlaw-5", "powerlaw-3")
TARGETS = (0.8, 0.9, 0.95)  # of the best policy's accuracy over the last tenth of the time
#: Single models are noisy, so scores are means over so much of the virtual time, or of the time
#: until then while that is less: in the first climb a long mean would be far below what there is.
WINDOW, EARLY = 0.05, 0.2


@dataclass(frozen=True, slots=True)
class Spent:
    """The mean score of the last models at some moment, and what had been spent by then."""

    score: float
    seconds: float
    gigabytes: float  # moved by all: to the controller, from it to learners and to judges
    samples: float


SPENT: dict[str, Callable[[Spent], float]] = {
    "virtual time (s)": lambda point: point.seconds,
    "gigabytes moved": lambda point: point.gigabytes,
    "samples trained (M)": lambda point: point.samples / 1e6,
}


def _grid(choice: Choice) -> Grid:
    return table1.grid_of(choice.data, NAME)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    _grid(choice)
    chosen(choice.clusters, (CLUSTER,), f"cluster of {NAME}")
    rows = choice.rows or (None if setting.scale == "smoke" else ROWS)
    return table1.cells(setting, Choice((CLUSTER,), rows, choice.policies, choice.data))


def spent_by(one: Result) -> list[Spent]:
    """Return what a cell had spent at each of its tests."""
    points = []
    for (now, _, latest), (_, up, down, samples) in zip(one.curve, one.traffic, strict=True):
        since = now - min(WINDOW * one.virtual_seconds, EARLY * now)
        score = fmean([value for at, _, value in one.curve if since < at <= now] or [latest])
        points.append(Spent(score, now, (up + down) / 1e9, samples))
    return points


def reached(points: Sequence[Spent], score: float) -> Spent | None:
    """Return what had been spent when a score was reached first."""
    return next((point for point in points if point.score >= score), None)


def report(setting: Setting, choice: Choice) -> Report:
    grid = _grid(choice)
    name = NAME + grid.suffix
    rows = chosen_rows(choice.rows or ROWS, grid.rows, NAME, grid.more_rows)
    found = [
        one
        for one in read_results(setting.out, [grid.name])
        if one.cluster == CLUSTER and one.row in rows and one.traffic and one.policy in TITLES
    ]
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    parts = [
        "## What accuracy costs\n",
        "Virtual seconds, gigabytes moved and samples trained until a policy came to a share of "
        "what the best of its row has over the last tenth of the time. Scores are means over "
        f"{WINDOW:.0%} of the time, early on over {EARLY:.0%} of the time until then.\n",
    ]
    for row, horizon in dict.fromkeys((one.row, one.horizon) for one in found):
        here = [one for one in found if (one.row, one.horizon) == (row, horizon)]
        parts.append(_table(here))
    picture = draw(found, setting.out / f"{name}.png")
    parts += [f"![accuracy by time, bytes and samples]({picture.name})\n", made_with(found)]
    return write_page(setting.out, name, "\n".join(parts), [picture])


def _table(here: Sequence[Result]) -> str:
    policies = {
        policy: [one for one in here if one.policy == policy]
        for policy in TITLES
        if any(one.policy == policy for one in here)
    }
    late = {policy: [fmean(one.late_scores()) for one in mine] for policy, mine in policies.items()}
    best = max(fmean(scores) for scores in late.values())
    goals = [share * best for share in TARGETS]
    lines = [
        (
            TITLES[policy],
            score(late[policy]),
            *(_in_words([reached(spent_by(one), goal) for one in mine]) for goal in goals),
        )
        for policy, mine in policies.items()
    ]
    shares = ", ".join(f"{share:.0%}" for share in TARGETS)
    return f"{here[0].row}, {here[0].horizon}; {shares} of {best:.4f}:\n\n" + markdown_table(
        ("policy", "last tenth", *(f"until {goal:.4f}" for goal in goals)), lines
    )


def _in_words(of_seeds: Sequence[Spent | None]) -> str:
    """Return what was spent in the mean, and how many of several seeds came so far."""
    there = [point for point in of_seeds if point is not None]
    if not there:
        return "-"
    seconds = fmean(point.seconds for point in there)
    gigabytes = fmean(point.gigabytes for point in there)
    millions = fmean(point.samples for point in there) / 1e6
    some = "" if len(there) == len(of_seeds) else f" ({len(there)} of {len(of_seeds)} seeds)"
    moved = f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{1000 * gigabytes:.0f} MB"
    return f"{seconds:,.0f} s, {moved}, {millions:.1f}M{some}"


def draw(found: Sequence[Result], path: Path) -> Path:
    """Draw every policy; several seeds are their mean."""
    rows = list(dict.fromkeys((one.row, one.horizon) for one in found))
    figure = new_figure(15, 0.7 + 3.4 * len(rows))
    lines: dict[str, Line2D] = {}
    for panels, key in zip(figure.subplots(len(rows), 3, squeeze=False), rows, strict=True):
        best = 0.0
        here = [one for one in found if (one.row, one.horizon) == key]
        for policy in (policy for policy in TITLES if any(one.policy == policy for one in here)):
            every = [spent_by(one) for one in here if one.policy == policy]
            begun = [[point for point in points if point.samples > 0] for points in every]
            runs = [points for points in begun if points]
            for axes, spent in zip(panels, SPENT, strict=True):
                x, y = _mean_curve(runs, spent)
                colour, style = LOOKS[policy]
                (line,) = axes.plot(x, y, color=colour, linestyle=style, linewidth=1.3)
                line.set_drawstyle("steps-post")
                lines.setdefault(TITLES[policy], line)
                best = max([best, *y])
        for axes, what in zip(panels, SPENT, strict=True):
            plain(axes, what)
            axes.set_xscale("log")
            axes.set_ylim(bottom=best / 2)  # what is of no use is not compared
        panels[0].set_ylabel("test accuracy")
        panels[0].set_title(", ".join(map(str, key)), loc="left", fontsize=10)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=max(len(lines), 1))
    return write_figure(figure, path)


def _mean_curve(runs: Sequence[Sequence[Spent]], what: str) -> tuple[list[float], list[float]]:
    """Return what was spent and the scores it bought: the mean of runs, where all of them were.

    More buys nothing until the next test, so runs are averaged as steps.
    """
    if not runs:
        return [], []
    spent = [[SPENT[what](point) for point in points] for points in runs]
    scores = [[point.score for point in points] for points in runs]
    at, each = together([(np.array(x), np.array(y)) for x, y in zip(spent, scores, strict=True)])
    return at.tolist(), each.mean(axis=0).tolist()


STUDY = Study(NAME, "what accuracy costs: time, bytes moved, samples trained", cells, report)
