"""Figures 5 to 8: accuracy over virtual time, a panel for each distribution."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metis.report.steps import Floats, running_mean, together, values_at
from metis.report.style import GREY, LOOKS, group_colours, new_figure, plain, write_figure
from metis_papers.formatting import TITLES
from metis_papers.results import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

CLIMB = 0.05  # of the virtual time: so long the first climb takes
MARGIN = 0.06  # below and above what comes after it, of its range
#: A line is the mean over so much of the virtual time, or of the time until then while that is
#: less: in the first climb a long mean would be far below what there is.
WINDOW, EARLY = 0.05, 0.2
CAPTION = (
    f"Lines: means over the {WINDOW:.0%} of the virtual time before each moment, early on over "
    f"{EARLY:.0%} of the time until then. Faint: the scores themselves, each until the next test."
)
MANY = round(2 / WINDOW)  # tests: with fewer a window has hardly two, and means would be ramps
FEW = f" With fewer than {MANY} tests the scores themselves are the line."
ALL_FEW = "Lines: scores, each until the next test."
SEEDS = (
    " Of several seeds lines are means; a band goes from the least to the most of the seeds' lines."
)
_MOMENTS = 600  # at which lines are computed: more than a panel has pixels to tell apart
_INSET = (1.03, 0.52, 0.24, 0.46)  # right of its panel, where there are no lines


def draw_convergence(found: Sequence[Result], title: str, path: Path) -> Path:
    """Draw every policy of every tested row, and next to each panel which learner holds what."""
    tested = [one for one in found if one.curve]
    rows = list(dict.fromkeys(one.row for one in tested))
    columns = _columns(len(rows))
    lines = max(math.ceil(len(rows) / columns), 1)
    figure = new_figure(0.4 + 6.2 * columns, 1.3 + 3.4 * lines)
    handles: dict[str, Artist] = {}
    for place, row in enumerate(rows):
        axes = figure.add_subplot(lines, columns, place + 1)
        here = sorted(
            (one for one in tested if one.row == row), key=lambda one: [*TITLES].index(one.policy)
        )
        _curves(axes, here)
        plain(axes, "virtual time (s)", "test accuracy")
        axes.set_ylim(_limits(here))
        _inset(axes, here[0])
        axes.set_title(str(row), loc="left", fontsize=10)
        lines_here, labels = axes.get_legend_handles_labels()
        handles |= zip(labels, lines_here, strict=True)
    in_order = [name for name in TITLES.values() if name in handles]
    smooth = [_many(one) for one in tested]
    caption = CAPTION if any(smooth) else ALL_FEW
    caption += FEW if any(smooth) and not all(smooth) else ""
    caption += SEEDS if len({one.seed for one in tested}) > 1 else ""
    figure.legend(
        handles=[handles[name] for name in in_order],
        loc="outside lower center",
        ncols=(3, 4, 8)[columns - 1],
        title=textwrap.fill(caption, 62 * columns + 12),
        title_fontsize=8,
        handlelength=3,
    )
    figure.suptitle(textwrap.fill(title, 30 * columns + 33), fontsize=11)
    return write_figure(figure, path)


def _columns(panels: int) -> int:
    """Return how many panels stand in a line: at most three, and few places stay empty."""
    return 2 if panels in (2, 4) else max(min(panels, 3), 1)


def steps_of(one: Result) -> tuple[Floats, Floats]:
    """Return a cell's scores as steps up to its end."""
    at = [*(point[0] for point in one.curve), one.virtual_seconds]
    scores = [*(point[2] for point in one.curve), one.curve[-1][2]]
    return np.array(at, dtype=float), np.array(scores, dtype=float)


def smoothed(one: Result, moments: Floats) -> Floats:
    """Return running means of a cell's scores, each for as long as it was in force."""
    windows = np.minimum(WINDOW * one.virtual_seconds, EARLY * moments)
    return running_mean(*steps_of(one), moments, windows)


def _many(one: Result) -> bool:
    return len(one.curve) >= MANY


def _curves(axes: Axes, found: Sequence[Result]) -> None:
    for policy in dict.fromkeys(one.policy for one in found):
        mine = [one for one in found if one.policy == policy]
        colour, style = LOOKS[policy]
        at, each = together([steps_of(one) for one in mine])
        if smooth := all(map(_many, mine)):
            axes.plot(at, each.mean(0), drawstyle="steps-post", color=colour, lw=0.7, alpha=0.25)
            at = np.linspace(at[0], at[-1], _MOMENTS)
            each = np.stack([smoothed(one, at) for one in mine])
        if len(mine) > 1:
            axes.fill_between(
                at,
                each.min(0),
                each.max(0),
                step=None if smooth else "post",
                color=colour,
                alpha=0.12,
                linewidth=0,
            )
        (line,) = axes.plot(at, each.mean(0), color=colour, linestyle=style, lw=1.6)
        line.set(drawstyle="default" if smooth else "steps-post", label=TITLES[policy])


def _limits(found: Sequence[Result]) -> tuple[float, float] | None:
    """Return where an axis begins and ends: the first climb would hide all that comes after it.

    Lines decide, not single scores: a dip of one model may leave the panel.
    """
    after = []
    for one in found:
        since = max(CLIMB * one.virtual_seconds, one.curve[0][0])
        moments = np.linspace(since, one.virtual_seconds, _MOMENTS)
        drawn = smoothed(one, moments) if _many(one) else values_at(*steps_of(one), moments)
        after.append(drawn)
    low, high = float(np.min(after)), float(np.max(after))
    if low == high:
        return None
    margin = MARGIN * (high - low)
    return low - margin, high + margin


def _inset(axes: Axes, one: Result) -> None:
    """Draw the examples of each learner by class, largest first; learners' groups as labels."""
    inset = axes.inset_axes(_INSET)
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
        inset.bar(places, held.sum(axis=1), 0.85, color=GREY)
    inset.set_xticks(places, [each["group"][0] for each in learners], fontsize=5)
    colours = group_colours(each["group"] for each in one.learners)
    for text, each in zip(inset.get_xticklabels(), learners, strict=True):
        text.set_color(colours[each["group"]])
    inset.tick_params(labelsize=5, length=1.5, pad=1)
    inset.spines[["top", "right"]].set_visible(False)
    inset.set_title("examples by learner", fontsize=6, loc="left", pad=2)
