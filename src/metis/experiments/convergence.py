"""Figures 5 to 8: accuracy over virtual time, a panel for each distribution."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metis.experiments.outcome import Outcome
from metis.experiments.pictures import GROUPS, LOOKS, new_figure, plain, write_figure
from metis.experiments.words import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
CLIMB = 0.02  # of the virtual time: so long the first climb takes
MARGIN = 0.08  # below and above what comes after it, of its range
_MOMENTS = 400  # at which the mean of several seeds is taken
_LEFT, _WIDTH, _HEIGHT, _LABELS = 0.68, 0.3, 0.3, 0.06  # of an inset, as shares of its panel


def draw_convergence(found: Sequence[Outcome], title: str, path: Path) -> Path:
    """Draw every policy, and who holds what as an inset.

    Several seeds are their mean, in a band from the least to the most of them.
    """
    rows = list(dict.fromkeys(one.row for one in found))
    order = list(TITLES)
    found = sorted(found, key=lambda one: order.index(one.policy))
    columns = min(COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure = new_figure(5.2 * columns, 0.9 + 3.4 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    for axes, row in zip(panels, rows, strict=False):
        here = [one for one in found if one.row == row]
        _curves(axes, here)
        plain(axes, "virtual time (s)", "test accuracy")
        axes.set_ylim(_limits(here))
        _inset(axes, here[0])
        axes.set_title(row, loc="left", fontsize=10)
    handles, labels = [], []
    for axes in panels[: len(rows)]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(2 * columns, 4))
    figure.suptitle(textwrap.fill(title, 22 * columns + 33), fontsize=11)
    return write_figure(figure, path)


def _curves(axes: Axes, found: Sequence[Outcome]) -> None:
    for policy in dict.fromkeys(one.policy for one in found):
        mine = [one for one in found if one.policy == policy and one.curve]
        if not mine:  # it was never tested
            continue
        colour, style = LOOKS[policy]
        at = np.array([*(point[0] for point in mine[0].curve), mine[0].virtual_seconds])
        scores = np.array([point[2] for point in (*mine[0].curve, mine[0].curve[-1])])
        if len(mine) > 1:
            at = np.linspace(0.0, min(one.virtual_seconds for one in mine), _MOMENTS)
            # What was not tested yet is no number; a score of nothing is one.
            each = np.array([[one.score_at(moment) for moment in at] for one in mine], dtype=float)
            scores = each.mean(axis=0)
            axes.fill_between(at, each.min(0), each.max(0), color=colour, alpha=0.1, linewidth=0)
        axes.plot(at, scores, color=colour, linestyle=style, linewidth=1.2, label=TITLES[policy])


def _limits(found: Sequence[Outcome]) -> tuple[float, float] | None:
    """Return where an axis begins and ends: the first climb would hide all that comes after it."""
    after = [
        score for one in found for at, _, score in one.curve if at >= CLIMB * one.virtual_seconds
    ]
    if len(set(after)) < 2:
        return None
    low, high = min(after), max(after)
    margin = MARGIN * (high - low)
    return low - margin, high + margin


def _inset(axes: Axes, one: Outcome) -> None:
    """Draw the examples of each learner by class, largest first; learners' groups as labels."""
    inset = axes.inset_axes((_LEFT, _emptiest(axes), _WIDTH, _HEIGHT))
    learners = sorted(one.learners, key=lambda each: -sum(each["holdings"]))
    held = np.array([each["holdings"] for each in learners])
    places = np.arange(len(learners))
    if held.shape[1] <= 20:
        from matplotlib import colormaps

        below = np.zeros(len(learners))
        for label in range(held.shape[1]):
            inset.bar(places, held[:, label], 0.85, below, color=colormaps["tab20"](label))
            below += held[:, label]
    else:
        inset.bar(places, held.sum(axis=1), 0.85, color="#777777")
    inset.set_xticks(places, [each["group"][0] for each in learners], fontsize=5)
    for text, each in zip(inset.get_xticklabels(), learners, strict=True):
        text.set_color(GROUPS.get(each["group"], "black"))
    inset.tick_params(labelsize=5, length=1.5, pad=1)
    inset.patch.set_alpha(0.8)


def _emptiest(axes: Axes) -> float:
    """Return how far up an inset hides least of the curves: at the bottom, if that is as good."""
    axes.autoscale_view()
    places = np.linspace(_LEFT, _LEFT + _WIDTH, _MOMENTS)
    points = [axes.transLimits.transform(line.get_xydata()) for line in axes.lines]
    heights = [
        np.interp(places, line[:, 0], line[:, 1], right=np.nan) for line in points if len(line)
    ]
    below = np.concatenate([np.empty(0), *heights])

    def hidden(low: float) -> int:
        return int(np.sum((below >= low - _LABELS) & (below <= low + _HEIGHT)))

    return min((0.06, 0.2, 0.35, 0.5, 0.62), key=hidden)
