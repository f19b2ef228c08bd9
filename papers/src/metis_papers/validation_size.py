"""Beyond the paper: how DVW depends on the size of the validation set, stratified or not.

The paper holds out 5 %, stratified, and does not say what less would do. Everything but the
hold-out is AsyncDVW(na) of Table I, and that a last mini-batch which is not full is left out: how
few examples it has, which some models suffer from, depends on how many are held out. Equal weights
with the paper's hold-out are the control.
"""

from __future__ import annotations

from collections.abc import Sequence

from metis_papers import table1
from metis_papers.cells import Cell, Horizon, Row, Setting
from metis_papers.formatting import score
from metis_papers.results import Result
from metis_papers.sensitivity import (
    Panel,
    Plan,
    Sensitivity,
    planned,
    sensitivity_page,
)
from metis_papers.study import Choice, Report, Study

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
    control=CONTROL,
    control_in_words="equal weights",
)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    plans: list[Plan] = [
        Plan(
            POLICY,
            variant(percent, kind),
            {"validation": {"fraction": percent / 100, "stratified": KINDS[kind]}},
        )
        for percent in (PERCENTS if setting.scale != "smoke" else PERCENTS[:1])
        for kind in KINDS
    ]
    plans.append(Plan(CONTROL))
    return planned(plans, table1.grid_of(choice.data, NAME), NAME, setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    titles = ("Sensitivity of DVW to the size of the validation set", "accuracy by share held out")
    return sensitivity_page(setting, choice, NAME, titles, _shown)


def _shown(row: Row, horizon: Horizon, here: Sequence[Result]) -> tuple[list[str], list[Panel]]:
    held_out = [
        ", ".join(_held_out(here, variant(percent, kind)) for kind in KINDS) for percent in PERCENTS
    ]
    parts = [
        f"{row}, AsyncDVW(na), {horizon}; means over the last tenth of the time:\n",
        SENSITIVITY.table(here, "held out (%)", {"examples held out": held_out}),
        f"Equal weights, 5 % held out: {score(SENSITIVITY.control_scores(here))}.\n",
        SENSITIVITY.differences(here),
    ]
    return parts, [(f"{row}, {horizon}", SENSITIVITY, here)]


def _held_out(found: Sequence[Result], name: str) -> str:
    for one in found:
        if one.variant == name:
            return f"{sum(each['validation_examples'] for each in one.learners):,}"
    return "-"


STUDY = Study(NAME, "sensitivity of DVW to the size of the validation set", cells, report)
