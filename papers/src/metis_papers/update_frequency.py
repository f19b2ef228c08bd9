"""How policies depend on the number of local epochs for an update, and adaptive learners.

The paper says that of 1 to 32 epochs 4 were best, for synchronous and asynchronous FedAvg and for
synchronous DVW, and does not show it; AsyncDVW(na) is ours. Everything but the epochs is Table I's.
AsyncDVW(a) is the policy whose learners choose them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from metis.report.style import LOOKS
from metis_papers import table1
from metis_papers.cells import Cell, Horizon, Row, Setting
from metis_papers.formatting import TITLES, markdown_table, score
from metis_papers.results import Result
from metis_papers.sensitivity import Panel, Plan, Sensitivity, planned, sensitivity_page
from metis_papers.study import Choice, Report, Study

NAME = "update-frequency"
EPOCHS = (1, 2, 4, 8, 16, 32)
ADAPTIVE = "async-dvw-adaptive"
POLICIES = ("sync-fedavg", "sync-dvw", "async-fedavg", "async-dvw")
USUAL = 4  # epochs, of the paper


def variant(policy: str, epochs: int) -> str:
    return f"{policy}-{epochs}epochs"


SENSITIVITY = Sensitivity(
    setting="local epochs for an update",
    curves={
        TITLES[policy]: {epochs: variant(policy, epochs) for epochs in EPOCHS}
        for policy in POLICIES
    },
    control=ADAPTIVE,
    control_in_words=TITLES[ADAPTIVE],
    looks={TITLES[policy]: LOOKS[policy] for policy in POLICIES},
)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    plans: list[Plan] = [
        Plan(policy, variant(policy, epochs), {"train": {"epochs": epochs}})
        for policy in POLICIES
        for epochs in (EPOCHS if setting.scale != "smoke" else EPOCHS[:1])
    ]
    plans.append(Plan(ADAPTIVE))
    return planned(plans, table1.grid_of(choice.data, NAME), NAME, setting, choice)


def report(setting: Setting, choice: Choice) -> Report:
    titles = ("Sensitivity to the number of local epochs", "accuracy by local epochs")
    return sensitivity_page(setting, choice, NAME, titles, _shown)


def _shown(row: Row, horizon: Horizon, here: Sequence[Result]) -> tuple[list[str], list[Panel]]:
    parts = [
        f"{row}, {horizon}; means over the last tenth of the time:\n",
        SENSITIVITY.table(here, "epochs", {}),
        f"{TITLES[ADAPTIVE]}: {score(SENSITIVITY.control_scores(here))}.\n",
        _best(here),
        *(_differences(policy, here) for policy in POLICIES),
        _chosen_epochs([one for one in here if one.policy == ADAPTIVE]),
    ]
    return parts, [(f"{row}, {horizon}", SENSITIVITY, here)]


def _best(here: Sequence[Result]) -> str:
    """Return which number of epochs each policy is best with, and the paper's."""
    lines = []
    for policy in POLICIES:
        scores = {n: SENSITIVITY.scores(here, variant(policy, n)) for n in EPOCHS}
        there = {n: fmean(values) for n, values in scores.items() if values}
        if len(there) > 1:
            best = max(there, key=lambda n: there[n])
            behind = f"{there[USUAL] - there[best]:+.4f}" if USUAL in there else "-"
            tried = ", ".join(map(str, there))
            lines.append((TITLES[policy], tried, str(best), f"{there[best]:.4f}", behind))
    if not lines:
        return ""
    heads = ("policy", "epochs tried", "best", "its score", f"{USUAL} epochs, the paper's best")
    return markdown_table(heads, lines)


def _differences(policy: str, here: Sequence[Result]) -> str:
    """Return what other numbers of epochs, and adaptive learners, are off the policy's usual."""
    mine = replace(
        SENSITIVITY,
        curves={TITLES[policy]: SENSITIVITY.curves[TITLES[policy]]},
        usual=variant(policy, USUAL),
        usual_in_words=f"{TITLES[policy]}, {USUAL} epochs",
    )
    return mine.differences(here)


def _chosen_epochs(adaptive: Sequence[Result]) -> str:
    """Return how many epochs adaptive learners took for an update."""
    lines = []
    for group in dict.fromkeys(group for one in adaptive for group in one.cycles):
        mine = [one.cycles[group] for one in adaptive if one.cycles.get(group, {}).get("cycles")]
        if mine:
            epochs = [each["epochs"] / each["cycles"] for each in mine]
            by_loss = [each["by_loss"] / each["cycles"] for each in mine if "by_loss" in each]
            share = f"{fmean(by_loss):.0%}" if by_loss else "-"
            lines.append((group, f"{fmean(epochs):.1f}", share))
    if not lines:
        return ""
    heads = (f"learners of {TITLES[ADAPTIVE]}", "epochs for an update", "ended by C1 or C2")
    return markdown_table(heads, lines)


STUDY = Study(NAME, "sensitivity to the number of local epochs", cells, report)
