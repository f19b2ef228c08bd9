"""The paper's orderings, checked over the cells that are there. A failed one is a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from metis.experiments.cells import Cell, Setting
from metis.experiments.outcome import LATE, Outcome, read_outcomes
from metis.experiments.study import Choice, Report, Study
from metis.experiments.words import CONTROLS, TITLES, markdown_table, write_page

HOLDS, FAILS, MISSING = "holds", "FAILS", "missing"
CLOSE = 0.01  # AsyncDVW(a) may be so far below the best
ALIKE = 0.02  # FedAvg and DVW on uniform rows lie within so much
ADAPTIVE = "async-dvw-adaptive"


@dataclass(frozen=True, slots=True)
class Finding:
    """One ordering in one row of one table."""

    where: str
    claim: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Line:
    """The mean final scores of one row under one horizon, by policy."""

    where: str
    cluster: str
    row: str
    scores: dict[str, float]
    late: dict[str, float]  # means of the last tests, which single rounds shake less


def lines_of(found: Sequence[Outcome]) -> list[Line]:
    """Put cells together that may be compared: one table, cluster, row and horizon."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Outcome]]] = {}
    for one in found:
        if one.final_score is not None:
            key = (one.study, one.cluster, one.row, one.horizon)
            groups.setdefault(key, {}).setdefault(one.policy, []).append(one)
    return [
        Line(
            f"{study} {cluster} {row}, {horizon}",
            cluster,
            row,
            {policy: fmean(o.final_score or 0.0 for o in seeds) for policy, seeds in here.items()},
            {
                policy: fmean(fmean(o.late_scores()) for o in seeds)
                for policy, seeds in here.items()
            },
        )
        for (study, cluster, row, horizon), here in groups.items()
    ]


def findings(found: Sequence[Outcome]) -> list[Finding]:
    """Return every ordering that the paper's tables show, for every row there is."""
    listed = []
    for line in lines_of(found):
        if line.row.startswith(("powerlaw", "geometric")):
            pairs = [("sync-dvw", "sync-fedavg")]
            if line.cluster == "heterogeneous":
                pairs += [("async-dvw", "async-fedavg"), (ADAPTIVE, "async-fedavg")]
            if not line.where.startswith("table1"):
                pairs = pairs[1:]
            listed += [_at_least(line, dvw, fedavg) for dvw, fedavg in pairs]
        if line.cluster == "heterogeneous":
            listed.append(_best(line))
        if line.row.startswith("uniform"):
            listed.append(_alike(line))
    return listed


def _at_least(line: Line, dvw: str, fedavg: str) -> Finding:
    claim = f"{TITLES[dvw]} >= {TITLES[fedavg]}"
    absent = [policy for policy in (dvw, fedavg) if policy not in line.scores]
    if absent:
        return Finding(line.where, claim, MISSING, ", ".join(absent))
    ours, theirs = line.scores[dvw], line.scores[fedavg]
    verdict = HOLDS if ours >= theirs else FAILS
    why = f"{ours:.4f}, {theirs:.4f}: {_difference(line, dvw, fedavg)}"
    return Finding(line.where, claim, verdict, why)


def _difference(line: Line, one: str, other: str) -> str:
    return f"{line.scores[one] - line.scores[other]:+.4f}{_late(line, one, other)}"


def _late(line: Line, one: str, other: str) -> str:
    """Return the difference once more, over the last tests; it decides nothing."""
    return f" (last {LATE} tests: {line.late[one] - line.late[other]:+.4f})"


def _best(line: Line) -> Finding:
    claim = f"{TITLES[ADAPTIVE]} best, or within {CLOSE:g} of the best"
    others = {p: s for p, s in line.scores.items() if p != ADAPTIVE and p not in CONTROLS}
    if ADAPTIVE not in line.scores or not others:
        return Finding(line.where, claim, MISSING, ADAPTIVE if others else "all others")
    best = max(others, key=lambda policy: others[policy])
    behind = others[best] - line.scores[ADAPTIVE]
    why = (
        f"{line.scores[ADAPTIVE]:.4f}; best of {len(others)} others {TITLES[best]} "
        f"{others[best]:.4f}{_late(line, ADAPTIVE, best)}"
    )
    return Finding(line.where, claim, HOLDS if behind <= CLOSE else FAILS, why)


def _alike(line: Line) -> Finding:
    claim = f"FedAvg and DVW within {ALIKE:g} of each other"
    mine = {p: s for p, s in line.scores.items() if p != "fedasync" and p not in CONTROLS}
    if len(mine) < 2:
        return Finding(line.where, claim, MISSING, "there are fewer than two of them")
    low, high = min(mine, key=lambda p: mine[p]), max(mine, key=lambda p: mine[p])
    apart = mine[high] - mine[low]
    why = f"{TITLES[high]} {mine[high]:.4f}, {TITLES[low]} {mine[low]:.4f}: {apart:.4f} apart"
    why += _late(line, high, low)
    return Finding(line.where, claim, HOLDS if apart <= ALIKE else FAILS, why)


def controls(found: Sequence[Outcome]) -> str:
    """Return what DVW's scores bring over equal weights, wherever both are there."""
    rows = []
    for line in lines_of(found):
        for dvw, uniform, fedavg in (
            ("sync-dvw", "sync-uniform", "sync-fedavg"),
            ("async-dvw", "async-uniform", "async-fedavg"),
        ):
            if dvw in line.scores and uniform in line.scores:
                rows.append(
                    (
                        line.where,
                        TITLES[dvw],
                        _difference(line, dvw, uniform),
                        _difference(line, uniform, fedavg) if fedavg in line.scores else "-",
                    )
                )
    if not rows:
        return "No cell of a control is there.\n"
    return markdown_table(("where", "policy", "DVW - equal weights", "equal - FedAvg"), rows)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return nothing: only what is there is looked at."""
    return []


def report(setting: Setting, choice: Choice) -> Report:
    found = [
        one
        for one in read_outcomes(setting.out)
        if one.study.startswith(("table1", "table2", "table3"))
    ]
    listed = findings(found)
    counts = {v: sum(one.verdict == v for one in listed) for v in (HOLDS, FAILS, MISSING)}
    rows = [(one.verdict, one.where, one.claim, one.why) for one in listed]
    text = (
        "## The paper's orderings\n\n"
        f"{counts[HOLDS]} hold, {counts[FAILS]} fail, {counts[MISSING]} lack a cell, "
        f"over {len(found)} cells. Final scores, means over seeds, decide; the difference "
        f"over the last {LATE} tests stands beside them, since single models are noisy.\n\n"
        f"{markdown_table(('verdict', 'where', 'ordering', 'why'), rows)}\n"
        f"What DVW's scores bring over equal weights, and equal weights over FedAvg's:\n\n"
        f"{controls(found)}"
    )
    return write_page(setting.out, "check", text)


STUDY = Study("check", "the paper's orderings, over the cells that are there", cells, report)
