"""Beyond the paper: how DVW depends on the size of the validation set, stratified or not.

The paper holds out 5 %, stratified, and does not say what less would do. Everything but the
hold-out is AsyncDVW(na) of Table I; equal weights with the paper's hold-out stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from metis.experiments import table1
from metis.experiments.cells import Cell, Setting
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.sensitivity import Plan, Sensitivity, draw, planned
from metis.experiments.study import Choice, Report, Study
from metis.experiments.words import costs_table, made_with, score, write_page

NAME = "validation-size"
PERCENTS = (1, 2, 5, 10)
KINDS = {"stratified": True, "random": False}
POLICY, CONTROL = "async-dvw", "async-uniform"


def variant(percent: int, kind: str) -> str:
    return f"{POLICY}-{percent}percent-{kind}"


SENSITIVITY = Sensitivity(
    setting="held out of each learner's examples (%)",
    curves={kind: {percent: variant(percent, kind) for percent in PERCENTS} for kind in KINDS},
    usual=variant(5, "stratified"),
    usual_in_words="5 %, stratified",
    beside=CONTROL,
    beside_in_words="equal weights",
)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    plans: list[Plan] = [
        (
            POLICY,
            variant(percent, kind),
            {"validation": {"fraction": percent / 100, "stratified": KINDS[kind]}},
        )
        for percent in (PERCENTS if setting.scale != "smoke" else PERCENTS[:1])
        for kind in KINDS
    ]
    plans.append((CONTROL, "", {}))
    return planned(plans, table1.grid_of(choice.data, NAME), NAME, setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    name = NAME + table1.grid_of(choice.data, NAME).suffix
    found = read_outcomes(setting.out / name)
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    parts = ["## Sensitivity of DVW to the size of the validation set\n"]
    for row, horizon in dict.fromkeys((one.row, one.horizon) for one in found):
        here = [one for one in found if (one.row, one.horizon) == (row, horizon)]
        held_out = [
            ", ".join(_held_out(here, variant(percent, kind)) for kind in KINDS)
            for percent in PERCENTS
        ]
        parts += [
            f"{row}, AsyncDVW(na), {horizon}; means over the last tenth of the time:\n",
            SENSITIVITY.table(here, "held out (%)", {"examples held out": held_out}),
            f"Equal weights, 5 % held out: {score(SENSITIVITY.scores(here, ''))}.\n",
            SENSITIVITY.differences(here),
        ]
    seeds = {one.seed for one in found}
    if len(seeds) > 1:
        parts.append(f"Of {len(seeds)} seeds; bars and the band go from the least to the most.\n")
    picture = draw(SENSITIVITY.panels(found), setting.out / f"{name}.png")
    parts += [f"![accuracy by share held out]({picture.name})\n"]
    parts += [costs_table(found), made_with(found)]
    return write_page(setting.out, name, "\n".join(parts), [picture])


def _held_out(found: Sequence[Outcome], name: str) -> str:
    for one in found:
        if one.variant == name:
            return f"{sum(each['validation_examples'] for each in one.learners):,}"
    return "-"


STUDY = Study(NAME, "sensitivity of DVW to the size of the validation set", cells, report)
