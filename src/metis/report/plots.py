"""Pictures of runs, as matplotlib figures; None where there is nothing to see."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metis.report.runs import Point, Run, Series, curve, mean, metric_name, series_of
from metis.report.steps import Floats, together
from metis.report.style import COLOURS, GREY, LINES, LOOKS, group_colours, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW_POINTS = 20  # that are marked, since steps alone do not show well where tests were
_FAR_APART = 20  # times: curves whose ends are further apart need a logarithmic axis
_MAX_NAMES = 40  # rows of the holdings that still get a name
_MAX_EPOCHS = 120  # of a learner's validation cycles


def _looks(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return a colour and a line style for each series.

    A policy has its own; a second series of the same policy, or of an unknown one, takes the first
    look that is still free.
    """
    every = [(colour, style) for style in LINES for colour in COLOURS]
    own = dict(LOOKS)
    free = [look for look in every if look not in {own.get(one.policy) for one in series}]
    looks: list[tuple[str, str]] = []
    for one in series:
        look = own.pop(one.policy, None)
        if look is None:
            look = free.pop(0) if free else every[len(looks) % len(every)]
        looks.append(look)
    return looks


# ---- accuracy ---------------------------------------------------------------------------------


def accuracy_over_time(runs: Sequence[Run]) -> Figure:
    return _accuracy_over(runs, lambda p: p.seconds, "virtual time (s)")


def accuracy_over_samples(runs: Sequence[Run]) -> Figure:
    return _accuracy_over(runs, lambda p: p.samples, "samples trained on, by all learners")


def accuracy_over_megabytes(runs: Sequence[Run]) -> Figure:
    return _accuracy_over(runs, lambda p: p.megabytes, "exchanged, up and down (MB)")


def _accuracy_over(runs: Sequence[Run], where: Callable[[Point], float], x_label: str) -> Figure:
    """Draw each series' mean, and the range of its seeds as a band; R2 where that is measured.

    A score holds from its test to the next, so lines are steps and seeds are averaged as steps.
    """
    series = series_of(runs)
    figure = new_figure(8, 4.4)
    axes = figure.add_subplot()
    ends: list[float] = []
    for one, (colour, style) in zip(series, _looks(series), strict=True):
        curves = [c for c in map(curve, one.runs) if c]
        if not curves:
            continue
        ends += [where(c[-1]) for c in curves if where(c[-1]) > 0]
        lines = [(np.array([where(p) for p in c]), np.array([p.score for p in c])) for c in curves]
        x, low, middle, high = _averaged(lines)
        few = len(x) <= _FEW_POINTS
        axes.plot(
            x,
            middle,
            drawstyle="steps-post",
            color=colour,
            linestyle=style,
            label=one.label,
            linewidth=1.7,
            marker="o" if few else None,
            markersize=4,
            markevery=list(range(max(len(x) - 1, 1))) if few else None,  # the end is no test
        )
        if len(lines) > 1:
            axes.fill_between(x, low, high, step="post", color=colour, alpha=0.18, linewidth=0)
    plain(axes, x_label, f"test {metric_name(runs)}")
    if ends and max(ends) > _FAR_APART * min(ends):  # as compressed and other updates are
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(_thousands())
    seeds = max(len(one.runs) for one in series)
    title = f"mean of up to {seeds} seeds, band: lowest to highest" if seeds > 1 else None
    _legend_beside(figure, axes, title)
    return figure


def _averaged(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return x, lowest, mean and highest of several curves, where all of them are known."""
    if len(lines) == 1:
        x, y = lines[0]
        return x, y, y, y
    x, each = together(lines)
    return x, each.min(axis=0), each.mean(axis=0), each.max(axis=0)


def _legend_beside(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """Put the legend under the picture, where it hides nothing and a phone has room for it."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(3, len(labels)),
        frameon=False,
        title=title,
        fontsize=9,
        title_fontsize=9,
    )


def _thousands() -> Any:
    from matplotlib.ticker import StrMethodFormatter

    return StrMethodFormatter("{x:,.10g}")


# ---- requests and models (the paper's Figure 9) -----------------------------------------------


def requests_and_models(runs: Sequence[Run]) -> Figure | None:
    """Draw update requests, and models exchanged with those for evaluation set apart."""
    series = series_of(runs)
    if not any(run.summary["update_requests"] for run in runs):
        return None
    figure = new_figure(8, 1.6 + 0.42 * len(series))
    left, right = figure.subplots(1, 2, sharey=True)
    for row, (one, (colour, _)) in enumerate(zip(series, _looks(series), strict=True)):
        requests, models = one.values("update_requests"), one.values("models_exchanged")
        judged = mean(one.values("evaluation_models"))
        _bar(left, row, requests, colour)
        _bar(right, row, models, colour)
        right.barh(row, judged, 0.7, mean(models) - judged, color="white", alpha=0.45, hatch="///")
    plain(left, "update requests", "", grid="x")
    plain(right, "models exchanged (hatched: to judges)", "", grid="x")
    left.set_yticks(range(len(series)), [one.label for one in series])
    left.invert_yaxis()
    for axes in (left, right):
        axes.xaxis.set_major_formatter(_thousands())
        axes.xaxis.set_major_locator(_few_ticks())
        axes.margins(x=0.22)
        axes.set_xlim(left=0)
    return figure


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=4, integer=True)


def _bar(axes: Axes, row: int, values: Sequence[float], colour: str) -> None:
    middle = mean(values)
    axes.barh(row, middle, 0.7, color=colour)
    if len(values) > 1:
        axes.hlines(row, min(values), max(values), color="black", linewidth=1.2)
    axes.annotate(
        f"{middle:,.0f}",
        (max(values), row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )


# ---- who holds what ---------------------------------------------------------------------------


def holdings(run: Run) -> Figure | None:
    """Draw how many examples of each class every learner holds, group by group."""
    colours = _group_colours(run)
    groups = list(colours)
    learners = sorted(run.learners, key=lambda o: (groups.index(o["group"]), -o["examples"]))
    if not learners:
        return None
    named = len(learners) <= _MAX_NAMES
    figure = new_figure(8, min(1.6 + 0.27 * len(learners), 6))
    panels: list[Axes] = []
    if any(one["holdings"] for one in learners):
        panels = list(figure.subplots(1, 2, sharey=True, width_ratios=(3, 1)))
        _cells(figure, panels[0], np.array([one["holdings"] for one in learners]))
    else:
        panels = [figure.add_subplot()]
    first = 0
    for group, colour in colours.items():
        held = [
            sum(one["holdings"]) or one["examples"] for one in learners if one["group"] == group
        ]
        rows = np.arange(first, first + len(held))
        if named:
            panels[-1].barh(rows, held, 0.75, color=colour)
        else:
            edges = np.append(rows - 0.5, rows[-1] + 0.5)
            panels[-1].stairs(held, edges, orientation="horizontal", fill=True, color=colour)
        if first:
            for axes in panels:
                axes.axhline(first - 0.5, color="black", linewidth=1)
        first += len(held)
    plain(panels[-1], "examples held", "", grid="x")
    panels[-1].xaxis.set_major_formatter(_thousands())
    panels[-1].xaxis.set_major_locator(_few_ticks())
    panels[0].set_ylim(len(learners) - 0.5, -0.5)
    if named:
        names = [f"{one['learner']} ({one['group']})" for one in learners]
        panels[0].set_yticks(range(len(learners)), names)
    else:
        panels[0].set_yticks([])
        panels[0].set_ylabel(f"{len(learners):,} learners: {', '.join(groups)}, largest first")
    return figure


def _cells(figure: Figure, axes: Axes, table: Any) -> None:
    from matplotlib.colors import PowerNorm

    shown = np.ma.masked_equal(table, 0)
    # The square root keeps a learner with ten examples visible beside one with thousands.
    image = axes.imshow(
        shown,
        cmap="viridis_r",
        norm=PowerNorm(0.5, vmin=0, vmax=max(table.max(), 1)),
        aspect="auto",
    )
    axes.set_xlabel("class")
    axes.set_facecolor("#f4f4f4")
    axes.xaxis.set_major_locator(_few_ticks())
    if table.shape[0] <= 20 and table.shape[1] <= 12:
        axes.set_xticks(range(table.shape[1]))
        for (row, column), count in np.ndenumerate(table):
            if count:
                dark = math.sqrt(count / table.max()) > 0.5
                colour = "white" if dark else "black"
                axes.text(
                    column, row, f"{count}", ha="center", va="center", fontsize=8, color=colour
                )
    else:
        figure.colorbar(image, ax=axes, label="examples", pad=0.01)


def _group_colours(run: Run) -> dict[str, str]:
    return group_colours(one["group"] for one in run.learners)


# ---- weights ----------------------------------------------------------------------------------


def weights_over_time(run: Run) -> Figure | None:
    """Draw what each learner's model weighed in the community, a panel for each group."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in run.records:
        if record["kind"] == "version":
            for fold in record["folds"]:
                points[fold["learner"]].append((record["at"], fold["weight"]))
    members: defaultdict[str, list[str]] = defaultdict(list)
    for learner, group in run.groups.items():
        if learner in points:
            members[group].append(learner)
    if not members:
        return None
    colours = _group_colours(run)
    figure = new_figure(8, 3.8)
    panels = figure.subplots(1, len(members), squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (group, learners) in zip(panels, members.items(), strict=True):
        named = len(learners) <= len(COLOURS)
        if named:
            for colour, learner in zip(COLOURS, learners, strict=False):
                at, weight = zip(*points[learner], strict=True)
                axes.plot(at, weight, ".-", color=colour, lw=1, ms=5, alpha=0.9, label=learner)
        else:
            at, weight = zip(*(p for learner in learners for p in points[learner]), strict=True)
            axes.plot(at, weight, ".", color=colours[group], ms=3, alpha=0.4)
        plain(axes, "virtual time (s)", "weight $p_k$ of its update" if axes is panels[0] else "")
        axes.xaxis.set_major_formatter(_thousands())
        axes.xaxis.set_major_locator(_few_ticks())
        axes.set_title(f"group {group} ({len(learners):,})", fontsize=10, loc="left")
        if named:
            axes.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.18),
                ncols=3 if len(members) < 3 else 1,
                fontsize=8,
                frameon=False,
            )
    return figure


# ---- staleness (the paper's Figure 4) ---------------------------------------------------------


def staleness(runs: Sequence[Run]) -> Figure | None:
    """Draw how stale updates were when they were taken, a panel for each policy.

    Effective staleness in mini-batches (`steps_behind`). The paper's figure shows the first 20
    validation cycles of each learner, at their trigger; this one shows every update.
    """
    panels = [(one, _staleness(one)) for one in series_of(runs)]
    panels = [(one, groups) for one, groups in panels if groups]
    if not panels:
        return None
    colours = group_colours(group for run in runs for group in _group_colours(run))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(8, 0.6 + 2.7 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes, (one, groups) in zip(grid, panels, strict=False):
        every = [value for values in groups.values() for value in values]
        edges = np.linspace(min(every), max(max(every), min(every) + 1), num=31)
        for group, values in groups.items():
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            # Shares, since a fast group makes so many more updates that it would hide the others.
            axes.hist(
                values,
                bins=edges,
                weights=[100 / len(values)] * len(values),
                color=colours[group],
                alpha=0.6,
                label=f"{group}: median {statistics.median(values):,.0f}, "
                f"mean {mean(values):,.0f}, std {spread:,.0f}",
            )
        plain(axes, "effective staleness (mini-batches)", "% of a group's updates", grid="y")
        axes.set_title(one.label, fontsize=10, loc="left")
        axes.margins(y=0.3)
        axes.legend(fontsize=8, frameon=False, loc="upper right")
        axes.xaxis.set_major_formatter(_thousands())
        axes.xaxis.set_major_locator(_few_ticks())
    return figure


def _staleness(one: Series) -> dict[str, list[int]]:
    """Return the effective staleness of every update, by device class."""
    groups: dict[str, list[int]] = {}
    for run in one.runs:
        of = run.groups
        values: defaultdict[str, list[int]] = defaultdict(list)
        for record in run.records:
            if record["kind"] == "version":
                for fold in record["folds"]:
                    values[of[fold["learner"]]].append(fold["steps_behind"])
        for group in _group_colours(run):
            if values[group]:
                groups.setdefault(group, []).extend(values[group])
    return groups


# ---- validation cycles (the paper's Figure 3) -------------------------------------------------


def validation_cycles(run: Run) -> Figure | None:
    """Draw the validation loss of one learner of each group, and where it offered its model."""
    losses: defaultdict[str, list[float]] = defaultdict(list)
    requests: defaultdict[str, list[int]] = defaultdict(list)
    for record in run.records:
        if record["kind"] == "steps" and record["loss"] is not None:
            losses[record["learner"]].append(record["loss"])
        elif record["kind"] == "arrive" and record["learner"] in losses:
            requests[record["learner"]].append(len(losses[record["learner"]]))
    chosen: dict[str, str] = {}
    for learner, group in run.groups.items():
        if learner in losses:
            best = chosen.get(group, learner)
            chosen[group] = max(best, learner, key=lambda name: len(requests[name]))
    if not chosen:
        return None
    figure = new_figure(8, 3.4)
    panels = figure.subplots(1, len(chosen), squeeze=False).ravel()
    for axes, (group, learner) in zip(panels, chosen.items(), strict=True):
        shown = losses[learner][:_MAX_EPOCHS]
        epochs = range(1, len(shown) + 1)
        marks = [epoch for epoch in requests[learner] if epoch <= len(shown)]
        colour = _group_colours(run)[group]
        axes.plot(epochs, shown, color=colour, linewidth=1.2)
        axes.vlines(marks, 0, 1, transform=axes.get_xaxis_transform(), color="#bbbbbb", lw=0.8)
        axes.plot(
            marks,
            [shown[epoch - 1] for epoch in marks],
            color=GREY,
            marker="o",
            markersize=4,
            linestyle="none",
            label="offers its model",
        )
        plain(axes, "local epochs", "validation loss", grid="y")
        axes.set_title(f"{learner} ({group})", fontsize=10, loc="left")
        axes.legend(fontsize=8, frameon=False)
    return figure
