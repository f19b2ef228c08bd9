"""Beyond the paper: how DVW depends on the size of the validation set, stratified or not.

The paper holds out 5 %, stratified, and does not say what less would do. Everything but the
hold-out is AsyncDVW(na) of Table I; equal weights with the paper's hold-out stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting, federated_cell
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.pictures import new_figure, plain, write_figure
from metis.experiments.study import Choice, Report, Study, chosen
from metis.experiments.words import (
    costs_table,
    made_with,
    markdown_table,
    paired,
    score,
    write_page,
)
from metis.report.plots import COLOURS

NAME = "validation-size"
PERCENTS = (1, 2, 5, 10)
KINDS = {"stratified": True, "random": False}
PAPER = (5, "stratified")
CLUSTER, POLICY, CONTROL = "heterogeneous", "async-dvw", "async-uniform"


def variant(percent: int, kind: str) -> str:
    return f"{POLICY}-{percent}percent-{kind}"


def name_of(choice: Choice) -> str:
    """Return the study's name; with other data it has one of its own."""
    return NAME + table1.grid_of(choice.data, NAME).suffix


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, NAME)
    chosen(choice.clusters, (CLUSTER,), f"cluster of {NAME}")
    rows = chosen(choice.rows or ("powerlaw-3",), grid.rows, f"row of {NAME}")
    chosen(choice.policies, (POLICY, CONTROL), f"policy of {NAME}")
    plans: list[tuple[str, str, dict[str, object]]] = [
        (POLICY, variant(percent, kind), {"fraction": percent / 100, "stratified": stratified})
        for percent in (PERCENTS if setting.scale != "smoke" else PERCENTS[:1])
        for kind, stratified in KINDS.items()
    ]
    plans.append((CONTROL, "", {}))
    return [
        federated_cell(
            setting,
            name_of(choice),
            grid.domain,
            CLUSTER,
            row,
            policy,
            seed,
            grid.horizons[CLUSTER],
            variant=kind,
            validation=validation,
        )
        for row in rows
        for policy, kind, validation in plans
        if choice.policies is None or policy in choice.policies
        for seed in setting.seeds
    ]


def report(setting: Setting, choice: Choice) -> Report:
    name = name_of(choice)
    found = read_outcomes(setting.out / name)
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    parts = ["## Sensitivity of DVW to the size of the validation set\n"]
    for row, horizon in dict.fromkeys((one.row, one.horizon) for one in found):
        here = [one for one in found if (one.row, one.horizon) == (row, horizon)]
        heads = ("held out", *(kind for kind in KINDS), "examples held out")
        lines = [
            (
                f"{percent} %",
                *(score(_scores(here, variant(percent, kind))) for kind in KINDS),
                ", ".join(_held_out(here, variant(percent, kind)) for kind in KINDS),
            )
            for percent in PERCENTS
        ]
        control = _scores([one for one in here if one.policy == CONTROL], "")
        parts += [
            f"{row}, AsyncDVW(na), {horizon}; means over the last tenth of the time:\n",
            markdown_table(heads, lines),
            f"Equal weights, 5 % held out: {score(control)}.\n",
            _differences(here),
        ]
    seeds = {one.seed for one in found}
    if len(seeds) > 1:
        parts.append(f"Of {len(seeds)} seeds; bars and the band go from the least to the most.\n")
    picture = draw(found, setting.out / f"{name}.png")
    parts += [f"![accuracy by share held out]({picture.name})\n"]
    parts += [costs_table(found), made_with(found)]
    return write_page(setting.out, name, "\n".join(parts), [picture])


def _differences(here: Sequence[Outcome]) -> str:
    """Return what each hold-out is off the paper's in the same seeds, where there are several."""
    late = {
        name: {one.seed: fmean(one.late_scores()) for one in here if one.variant == name}
        for name in ("", *(variant(percent, kind) for percent in PERCENTS for kind in KINDS))
    }
    usual = late[variant(*PAPER)]
    lines = []
    for name, of_seeds in late.items():
        common = sorted(set(of_seeds) & set(usual))
        if len(common) > 1 and of_seeds is not usual:
            ours, theirs = ([scores[seed] for seed in common] for scores in (of_seeds, usual))
            lines.append((name or CONTROL, str(len(common)), paired(ours, theirs)))
    if not lines:
        return ""
    heads = ("instead of 5 %, stratified", "seeds", "difference ± standard error")
    return markdown_table(heads, lines)


def _scores(found: Sequence[Outcome], name: str) -> list[float]:
    """Return the mean score over the last tenth of the time, for each seed: single models are too
    noisy to tell one hold-out from another."""
    return [fmean(one.late_scores()) for one in found if one.variant == name and one.curve]


def _held_out(found: Sequence[Outcome], name: str) -> str:
    for one in found:
        if one.variant == name:
            return f"{sum(each['validation_examples'] for each in one.learners):,}"
    return "-"


def draw(found: Sequence[Outcome], path: Path) -> Path:
    rows = list(dict.fromkeys((one.row, one.horizon) for one in found))
    figure = new_figure(5.2 * len(rows), 3.8)
    for axes, key in zip(figure.subplots(1, len(rows), squeeze=False).ravel(), rows, strict=True):
        here = [one for one in found if (one.row, one.horizon) == key]
        for colour, kind in zip(COLOURS, KINDS, strict=False):
            by_percent = {percent: _scores(here, variant(percent, kind)) for percent in PERCENTS}
            there = {percent: scores for percent, scores in by_percent.items() if scores}
            means = [fmean(scores) for scores in there.values()]
            below = [mean - min(each) for mean, each in zip(means, there.values(), strict=True)]
            above = [max(each) - mean for mean, each in zip(means, there.values(), strict=True)]
            if there:
                axes.errorbar(
                    list(there),
                    means,
                    (below, above),
                    fmt="o-",
                    capsize=3,
                    color=colour,
                    label=kind,
                )
        control = _scores([one for one in here if one.policy == CONTROL], "")
        if control:
            axes.axhspan(min(control), max(control), color="#777777", alpha=0.12, lw=0)
            axes.axhline(fmean(control), color="#777777", linestyle=":", label="equal weights")
        plain(axes, "held out of each learner's examples (%)", "test accuracy")
        axes.set_xscale("log")
        axes.set_xticks(PERCENTS, [str(percent) for percent in PERCENTS])
        axes.set_title(", ".join(key), loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return write_figure(figure, path)


STUDY = Study(NAME, "sensitivity of DVW to the size of the validation set", cells, report)
