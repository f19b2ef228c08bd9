"""Beyond the paper: how DVW depends on the size of the validation set, stratified or not.

The paper holds out 5 %, stratified, and does not say what less would do. Everything but the
hold-out is AsyncDVW(na) of Table I; equal weights with the paper's hold-out stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting, federated_cell
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.pictures import new_figure, plain, write_figure
from metis.experiments.study import Choice, Report, Study, chosen
from metis.experiments.words import costs_table, made_with, markdown_table, score, write_page
from metis.report.plots import COLOURS

NAME = "validation-size"
PERCENTS = (1, 2, 5, 10)
KINDS = {"stratified": True, "random": False}
CLUSTER, POLICY, CONTROL = "heterogeneous", "async-dvw", "async-uniform"


def variant(percent: int, kind: str) -> str:
    return f"{POLICY}-{percent}percent-{kind}"


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    rows = chosen(choice.rows or ("powerlaw-3",), table1.GRID.rows, f"row of {NAME}")
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
            NAME,
            table1.GRID.domain,
            CLUSTER,
            row,
            policy,
            seed,
            table1.GRID.horizons[CLUSTER],
            variant=name,
            validation=validation,
        )
        for row in rows
        for policy, name, validation in plans
        if choice.policies is None or policy in choice.policies
        for seed in setting.seeds
    ]


def report(setting: Setting, choice: Choice) -> Report:
    found = read_outcomes(setting.out / NAME)
    if not found:
        return write_page(setting.out, NAME, f"## {NAME}\n\nAll its cells are missing.\n")
    parts = ["## Sensitivity of DVW to the size of the validation set\n"]
    for row in dict.fromkeys(one.row for one in found):
        here = [one for one in found if one.row == row]
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
            f"{row}, AsyncDVW(na), {here[0].horizon}:\n",
            markdown_table(heads, lines),
            f"Equal weights, 5 % held out: {score(control)}.\n",
        ]
    picture = draw(found, setting.out / f"{NAME}.png")
    parts += [f"![accuracy by share held out]({picture.name})\n"]
    parts += [costs_table(found), made_with(found)]
    return write_page(setting.out, NAME, "\n".join(parts), [picture])


def _scores(found: Sequence[Outcome], name: str) -> list[float]:
    return [one.final_score for one in found if one.variant == name and one.final_score is not None]


def _held_out(found: Sequence[Outcome], name: str) -> str:
    for one in found:
        if one.variant == name:
            return f"{sum(each['validation_examples'] for each in one.learners):,}"
    return "-"


def draw(found: Sequence[Outcome], path: Path) -> Path:
    rows = list(dict.fromkeys(one.row for one in found))
    figure = new_figure(5.2 * len(rows), 3.8)
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False).ravel(), rows, strict=True):
        here = [one for one in found if one.row == row]
        for colour, kind in zip(COLOURS, KINDS, strict=False):
            points = [
                (percent, value)
                for percent in PERCENTS
                for value in _scores(here, variant(percent, kind))
            ]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=kind)
        for value in _scores([one for one in here if one.policy == CONTROL], ""):
            axes.axhline(value, color="#777777", linestyle=":", label="equal weights")
        plain(axes, "held out of each learner's examples (%)", "final test accuracy")
        axes.set_xscale("log")
        axes.set_xticks(PERCENTS, [str(percent) for percent in PERCENTS])
        axes.set_title(row, loc="left", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return write_figure(figure, path)


STUDY = Study(NAME, "sensitivity of DVW to the size of the validation set", cells, report)
