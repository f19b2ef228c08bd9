"""Beyond the paper: what each weighting makes of learners whose labels are wrong.

The paper's case for DVW is that a model should count by what it is worth, however it came to be
worth little. Here some learners number the classes differently from all others: each of their
labels is the next one's, in what they hold out for validation too. Everything else is Table I's,
but that a last mini-batch which is not full is left out: how few examples it has, which some
models suffer from, depends on whether the policy holds any back.
Where learners are of unequal sizes, it matters which are wrong: those with most examples, which
weigh most in FedAvg and whose judgement weighs most in DVW, or those with fewest. They are fast
and slow in turn: the largest is fast, the smallest slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from metis.data.partition import deal
from metis.report.style import LOOKS
from metis_papers import table1
from metis_papers.cells import LEARNERS, Cell, Horizon, Row, Setting
from metis_papers.formatting import TITLES, markdown_table, paired
from metis_papers.results import Result
from metis_papers.sensitivity import (
    Panel,
    Plan,
    Sensitivity,
    planned,
    sensitivity_page,
)
from metis_papers.study import Choice, Report, Study, chosen_rows

NAME = "wrong-labels"
ROWS = ("uniform-iid", "powerlaw-iid")  # if no others are asked for
COUNTS = (0, 1, 2, 4)  # learners whose labels are wrong
POLICIES = (
    "sync-fedavg",
    "sync-uniform",
    "sync-dvw",
    "async-fedavg",
    "async-uniform",
    "async-dvw",
)
MOST = {"largest": "most", "smallest": "fewest"}
JUDGED = ("sync-dvw", "async-dvw")
#: Differences that say what the scores bring: over sizes as weights, over equal weights.
COMPARED = (
    ("sync-dvw", "sync-fedavg"),
    ("sync-dvw", "sync-uniform"),
    ("async-dvw", "async-fedavg"),
    ("async-dvw", "async-uniform"),
)


def orders_of(row: Row) -> tuple[str, ...]:
    """Return which learners are wrong first; where all are of one size that is no question."""
    return ("",) if row.is_uniform else ("largest", "smallest")


def variant(policy: str, count: int, order: str) -> str:
    return "-".join([policy, f"{count}wrong", *([order] if order and count else [])])


def mistaken(count: int, order: str) -> list[str]:
    """Return the names of those who are wrong: fast and slow in turn, as sizes are dealt."""
    ranks = deal([LEARNERS // 2, LEARNERS // 2])  # 0 is the largest
    by_size = sorted(range(LEARNERS), key=ranks.__getitem__, reverse=order == "smallest")
    return [f"learner-{place + 1:02d}" for place in by_size[:count]]


def curves(order: str) -> Sensitivity:
    looks = {TITLES[policy]: LOOKS[policy] for policy in POLICIES}
    return Sensitivity(
        setting=f"learners with wrong labels{f', {order} first' if order else ''}",
        curves={
            TITLES[policy]: {count: variant(policy, count, order) for count in COUNTS}
            for policy in POLICIES
        },
        looks=looks,
    )


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    grid = table1.grid_of(choice.data, NAME)
    rows = chosen_rows(choice.rows or ROWS, grid.rows, NAME, grid.more_rows)
    counts: Sequence[int] = COUNTS
    if setting.scale == "smoke":
        rows, counts = rows[:1], COUNTS[1:2]
        choice = replace(choice, policies=choice.policies or POLICIES[:1])
    found = []
    for row in rows:
        plans: dict[str, Plan] = {}  # without mistakes there is no order of them
        for policy in POLICIES:
            for order in orders_of(row):
                for count in counts:
                    changes: Mapping[str, Mapping[str, Any]] = {
                        "partition": {"wrong_labels": dict.fromkeys(mistaken(count, order), 1.0)},
                    }
                    name = variant(policy, count, order)
                    plans[name] = Plan(policy, name, changes)
        found += planned([*plans.values()], grid, NAME, setting, replace(choice, rows=(str(row),)))
    return found


def report(setting: Setting, choice: Choice) -> Report:
    titles = ("Learners with wrong labels", "accuracy by learners with wrong labels")
    return sensitivity_page(setting, choice, NAME, titles, _shown)


def _shown(row: Row, horizon: Horizon, here: Sequence[Result]) -> tuple[list[str], list[Panel]]:
    parts, panels = list[str](), list[Panel]()
    for order in orders_of(row):
        varied = curves(order)
        who = f", learners with {MOST[order]} examples first" if order else ""
        parts += [
            f"{row}{who}, {horizon}; means over the last tenth of the time:\n",
            varied.table(here, "wrong", {}),
            _differences(varied, here),
            "Their share of all weight (DVW's: by the mean over each learner's updates):\n",
            _weights(varied, here, order),
        ]
        panels.append((f"{row}, {horizon}", varied, here))
    return parts, panels


def _weights(varied: Sensitivity, found: Sequence[Result], order: str) -> str:
    """Return how much the mistaken weigh in each weighting."""
    lines = []
    for count in COUNTS:
        mine = {
            policy: [one for one in found if one.variant == varied.curves[TITLES[policy]][count]]
            for policy in POLICIES
        }
        any_of = next((cells[0] for cells in mine.values() if cells), None)
        if any_of is None:
            continue
        names = mistaken(count, order)
        held = {each["learner"]: sum(each["holdings"]) for each in any_of.learners}
        line = [
            str(count),
            *(f"{_of_all(each, names):.1%}" for each in (held, dict.fromkeys(held, 1))),
        ]
        for policy in JUDGED:
            shares = [
                _of_all(
                    {each["learner"]: each["mean_weight"] or 0.0 for each in one.learners}, names
                )
                for one in mine[policy]
            ]
            line.append(f"{fmean(shares):.1%}" if shares else "-")
        lines.append(line)
    heads = ["wrong", "by examples", "equal weights", *(TITLES[policy] for policy in JUDGED)]
    return markdown_table(heads, lines)


def _of_all(values: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(values[name] for name in names) / (sum(values.values()) or 1.0)


def _differences(varied: Sensitivity, found: Sequence[Result]) -> str:
    """Return what DVW's scores bring, in the seeds that both policies have."""
    late: dict[tuple[str, int], float] = {
        (one.variant, one.seed): fmean(one.late_scores()) for one in found if one.curve
    }
    seeds = sorted({seed for _, seed in late})
    lines = []
    for count in COUNTS:
        line = [str(count)]
        for ours, theirs in COMPARED:
            names = [varied.curves[TITLES[policy]][count] for policy in (ours, theirs)]
            both = [
                (late[names[0], seed], late[names[1], seed])
                for seed in seeds
                if (names[0], seed) in late and (names[1], seed) in late
            ]
            line.append(paired(*zip(*both, strict=True)) if both else "-")
        lines.append(line)
    heads = [f"{TITLES[ours]} - {TITLES[theirs]}" for ours, theirs in COMPARED]
    return markdown_table(["wrong", *heads], lines)


STUDY = Study(NAME, "what each weighting makes of learners with wrong labels", cells, report)
