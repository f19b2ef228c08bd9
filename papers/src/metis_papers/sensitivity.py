"""How a policy depends on one of its settings: a curve by values, and a policy without it.

Each value is a cell with a variant of its own; the control has none. Scores are
means over the last tenth of the time: single models are too noisy to tell values apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from metis.report.style import COLOURS, GREY, new_figure, plain, write_figure
from metis_papers import table1
from metis_papers.cells import Cell, Horizon, Row, Setting, federated_cell
from metis_papers.formatting import (
    costs_table,
    made_with,
    markdown_table,
    paired,
    score,
    write_page,
)
from metis_papers.results import Result, read_results
from metis_papers.study import Choice, Grid, Report, chosen, chosen_rows

CLUSTER = "heterogeneous"
ROW = "powerlaw-3"  # if no other is asked for


@dataclass(frozen=True, slots=True)
class Plan:
    """Cells to be made: a policy, its variant, and which settings are not Table I's."""

    policy: str
    variant: str = ""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def planned(
    plans: Sequence[Plan], grid: Grid, study: str, setting: Setting, choice: Choice
) -> list[Cell]:
    """Return the cells of these plans; of data other than the paper's they have its name."""
    chosen(choice.clusters, (CLUSTER,), f"cluster of {study}")
    rows = chosen_rows(choice.rows or (ROW,), grid.rows, study, grid.more_rows)
    known = tuple(dict.fromkeys(plan.policy for plan in plans))
    policies = chosen(choice.policies, known, f"policy of {study}")
    return [
        federated_cell(
            setting,
            study + grid.suffix,
            grid.domain,
            CLUSTER,
            row,
            plan.policy,
            seed,
            grid.horizons[CLUSTER],
            variant=plan.variant,
            **plan.changes,
        )
        for row in rows
        for plan in plans
        if plan.policy in policies
        for seed in setting.seeds
    ]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One setting that is varied."""

    setting: str  # in words: what stands below the horizontal axis
    curves: Mapping[str, Mapping[int, str]]  # by label: the variant of each value
    usual: str = ""  # the variant that others are compared with
    usual_in_words: str = ""
    control: str = ""  # the policy without the setting
    control_in_words: str = ""
    looks: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by label: colour, style

    def scores(self, found: Sequence[Result], variant: str) -> list[float]:
        """Return a score of a variant for each seed."""
        return [*_late([one for one in found if one.variant == variant]).values()]

    def control_scores(self, found: Sequence[Result]) -> list[float]:
        """Return a score of the control for each seed."""
        return [*_late(self._controls(found)).values()]

    def _controls(self, found: Sequence[Result]) -> list[Result]:
        return [one for one in found if not one.variant and one.policy == self.control]

    def table(self, found: Sequence[Result], head: str, more: Mapping[str, Sequence[str]]) -> str:
        """Return scores by value, a column for each curve; `more` columns go on from there."""
        values = list(dict.fromkeys(value for curve in self.curves.values() for value in curve))
        lines = [
            (
                str(value),
                *(
                    score(self.scores(found, curve[value]) if value in curve else [])
                    for curve in self.curves.values()
                ),
                *(column[place] for column in more.values()),
            )
            for place, value in enumerate(values)
        ]
        return markdown_table((head, *self.curves, *more), lines)

    def differences(self, found: Sequence[Result]) -> str:
        """Return what each is off the usual one in the same seeds, where there are several."""
        late = {self.control: _late(self._controls(found))}
        for variant in (one for curve in self.curves.values() for one in curve.values()):
            late[variant] = _late([one for one in found if one.variant == variant])
        usual = late[self.usual]
        lines = []
        for variant, of_seeds in late.items():
            common = sorted(set(of_seeds) & set(usual))
            if len(common) > 1 and of_seeds is not usual:
                ours, theirs = ([scores[seed] for seed in common] for scores in (of_seeds, usual))
                lines.append((variant, str(len(common)), paired(ours, theirs)))
        if not lines:
            return ""
        heads = (f"instead of {self.usual_in_words}", "seeds", "difference ± standard error")
        return markdown_table(heads, lines)


def _late(found: Sequence[Result]) -> dict[int, float]:
    """Return the mean over the last tenth of the time by seed."""
    return {one.seed: fmean(one.late_scores()) for one in found if one.curve}


#: A title, what is varied, and its cells.
Panel = tuple[str, Sensitivity, Sequence[Result]]
#: Given a row, a horizon, and the cells of both, returns text and panels to be drawn.
Shown = Callable[[Row, Horizon, Sequence[Result]], tuple[list[str], list[Panel]]]


def sensitivity_page(
    setting: Setting, choice: Choice, study: str, titles: tuple[str, str], shown: Shown
) -> Report:
    """Write the page of a study: the text of each row and horizon, and one picture of all.

    `titles` are the page's and the picture's.
    """
    name, (title, caption) = study + table1.grid_of(choice.data, study).suffix, titles
    found = read_results(setting.out, [name])
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    parts, panels = [f"## {title}\n"], list[Panel]()
    for row, horizon in dict.fromkeys((one.row, one.horizon) for one in found):
        here = [one for one in found if (one.row, one.horizon) == (row, horizon)]
        more, drawn = shown(row, horizon, here)
        parts, panels = parts + more, panels + drawn
    seeds = {one.seed for one in found}
    if len(seeds) > 1:
        parts.append(
            f"Of {len(seeds)} seeds; differences are taken in the same ones, with standard error; "
            "bars and bands go from the least to the most.\n"
        )
    picture = draw(panels, setting.out / f"{name}.png")
    parts += [f"![{caption}]({picture.name})\n", costs_table(found), made_with(found)]
    return write_page(setting.out, name, "\n".join(parts), [picture])


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Draw panels side by side; bars and the band go from the least to the most of seeds."""
    figure = new_figure(5.2 * len(panels), 3.8)
    every_axes = figure.subplots(1, len(panels), squeeze=False).ravel()
    for axes, (title, varied, found) in zip(every_axes, panels, strict=True):
        ticks = set[int]()
        for number, (label, curve) in enumerate(varied.curves.items()):
            every = {value: varied.scores(found, variant) for value, variant in curve.items()}
            there = {value: scores for value, scores in every.items() if scores}
            ticks |= set(there)
            means = [fmean(scores) for scores in there.values()]
            if there:
                colour, style = varied.looks.get(label, (COLOURS[number], "-"))
                look = {"marker": "o", "markersize": 4, "color": colour, "linestyle": style}
                axes.plot(list(there), means, label=label, **look)
                low, high = map(min, there.values()), map(max, there.values())
                axes.vlines(list(there), [*low], [*high], color=colour, lw=1.5)
        control = varied.control_scores(found)
        if control:
            axes.axhspan(min(control), max(control), color=GREY, alpha=0.12, lw=0)
            label = varied.control_in_words
            axes.axhline(fmean(control), color=GREY, linestyle=":", label=label)
        plain(axes, varied.setting, "test accuracy")
        if 0 not in ticks:
            axes.set_xscale("log")
        axes.set_xticks(sorted(ticks), map(str, sorted(ticks)))
        axes.minorticks_off()
        axes.set_title(title, loc="left", fontsize=10)
        if ticks or control:
            axes.legend(fontsize=8, frameon=False, handlelength=3.2)
    return write_figure(figure, path)
