"""The paper's orderings, checked over the cells that are there. A failed one is a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from metis.experiments.cells import Cell, Setting
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.study import Choice, Report, Study
from metis.experiments.words import CONTROLS, TITLES, markdown_table, paired, write_page

HOLDS, FAILS, MISSING = "holds", "FAILS", "missing"
CLOSE = 0.01  # AsyncDVW(a) may be so far below the best
ALIKE = 0.02  # FedAvg and DVW on uniform rows lie within so much
ADAPTIVE = "async-dvw-adaptive"
#: Not the paper's: other rows, other data. These are told of apart.
OTHERS = {
    "table1-by-class": "With what we believe explains the difference changed",
    "table1-": "The same federations, other data and a network for it",
    "table3-": "The same federations, other data",
}
_EXACT = 1e-9  # a difference of just so much is within it, whatever floats make of it


@dataclass(frozen=True, slots=True)
class Finding:
    """One ordering in one row of one table."""

    where: str
    claim: str
    verdict: str
    why: str


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of one row under one horizon, by policy and seed."""

    where: str
    cluster: str
    row: str
    cells: dict[str, dict[int, Outcome]]

    def among(self, policies: Sequence[str]) -> Scores | None:
        """Return some policies' scores with the seeds that all of them have, if there are any."""
        seeds = set.intersection(*(set(self.cells.get(policy, {})) for policy in policies))
        if not seeds:
            return None
        of = {policy: [self.cells[policy][seed] for seed in sorted(seeds)] for policy in policies}
        return Scores(
            {policy: [one.final_score or 0.0 for one in mine] for policy, mine in of.items()},
            {policy: [fmean(one.late_scores()) for one in mine] for policy, mine in of.items()},
        )

    def lacks(self, policies: Sequence[str]) -> str:
        """Return what is missing for a comparison, in words."""
        absent = [policy for policy in policies if policy not in self.cells]
        return ", ".join(absent) or "no seed is there of all: " + ", ".join(policies)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores by policy, one for each of the same seeds."""

    final: dict[str, list[float]]
    late: dict[str, list[float]]  # of the last tenth of the time, which single models shake less

    def mean(self, policy: str) -> float:
        return fmean(self.final[policy])

    def difference(self, one: str, other: str) -> str:
        """Return the difference of final scores and, which decides nothing, of the last tenth."""
        final = paired(self.final[one], self.final[other])
        late = paired(self.late[one], self.late[other])
        over = f", over {len(self.late[one])} seeds" if len(self.late[one]) > 1 else ""
        return f"{final} (last tenth: {late}{over})"


def lines_of(found: Sequence[Outcome]) -> list[Line]:
    """Put cells together that may be compared: one table, cluster, row, horizon and data."""
    groups: dict[tuple[str, ...], dict[str, dict[int, Outcome]]] = {}
    for one in found:
        if one.final_score is not None and one.curve:
            key = (one.study, one.cluster, one.row, one.horizon, one.dataset)
            groups.setdefault(key, {}).setdefault(one.policy, {})[one.seed] = one
    return [
        Line(f"{study} {cluster} {row}, {horizon}", cluster, row, cells)
        for (study, cluster, row, horizon, _), cells in groups.items()
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
    scores = line.among((dvw, fedavg))
    if scores is None:
        return Finding(line.where, claim, MISSING, line.lacks((dvw, fedavg)))
    ours, theirs = scores.mean(dvw), scores.mean(fedavg)
    verdict = HOLDS if ours >= theirs else FAILS
    why = f"{ours:.4f}, {theirs:.4f}: {scores.difference(dvw, fedavg)}"
    return Finding(line.where, claim, verdict, why)


def _best(line: Line) -> Finding:
    claim = f"{TITLES[ADAPTIVE]} best, or within {CLOSE:g} of the best"
    others = [policy for policy in line.cells if policy != ADAPTIVE and policy not in CONTROLS]
    if ADAPTIVE not in line.cells or not others:
        return Finding(line.where, claim, MISSING, ADAPTIVE if others else "all others")
    scores = line.among((ADAPTIVE, *others))
    if scores is None:
        return Finding(line.where, claim, MISSING, line.lacks((ADAPTIVE, *others)))
    best = max(others, key=scores.mean)
    behind = scores.mean(best) - scores.mean(ADAPTIVE)
    why = (
        f"{scores.mean(ADAPTIVE):.4f}; best of {len(others)} others {TITLES[best]} "
        f"{scores.mean(best):.4f}: {scores.difference(ADAPTIVE, best)}"
    )
    return Finding(line.where, claim, HOLDS if behind <= CLOSE + _EXACT else FAILS, why)


def _alike(line: Line) -> Finding:
    claim = f"FedAvg and DVW within {ALIKE:g} of each other"
    mine = [policy for policy in line.cells if policy != "fedasync" and policy not in CONTROLS]
    if len(mine) < 2:
        return Finding(line.where, claim, MISSING, "there are fewer than two of them")
    scores = line.among(mine)
    if scores is None:
        return Finding(line.where, claim, MISSING, line.lacks(mine))
    low, high = min(mine, key=scores.mean), max(mine, key=scores.mean)
    apart = scores.mean(high) - scores.mean(low)
    why = (
        f"{TITLES[high]} {scores.mean(high):.4f}, {TITLES[low]} {scores.mean(low):.4f}: "
        f"{scores.difference(high, low)}"
    )
    return Finding(line.where, claim, HOLDS if apart <= ALIKE + _EXACT else FAILS, why)


def controls(found: Sequence[Outcome]) -> str:
    """Return what DVW's scores bring over equal weights, wherever both are there."""
    rows = []
    for line in lines_of(found):
        for dvw, uniform, fedavg in (
            ("sync-dvw", "sync-uniform", "sync-fedavg"),
            ("async-dvw", "async-uniform", "async-fedavg"),
        ):
            scores, others = line.among((dvw, uniform)), line.among((uniform, fedavg))
            if scores is not None:
                base = "-" if others is None else others.difference(uniform, fedavg)
                rows.append((line.where, TITLES[dvw], scores.difference(dvw, uniform), base))
    if not rows:
        return "No control is there to tell it by.\n"
    return markdown_table(("where", "policy", "DVW - equal weights", "equal - FedAvg"), rows)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return nothing: only what is there is looked at."""
    choice.must_be_the_papers_data("check")
    return []


def report(setting: Setting, choice: Choice) -> Report:
    found = [one for folder in sorted(setting.out.glob("table*/")) for one in read_outcomes(folder)]
    others = {
        study: words
        for study in dict.fromkeys(one.study for one in found)
        if (words := next((OTHERS[name] for name in OTHERS if study.startswith(name)), ""))
    }
    ours = [one for one in found if one.study not in others]
    parts = [
        "## The paper's orderings\n",
        "Final scores decide, means over the seeds that all have; beside them stands the "
        "difference over the last tenth of the time, since single models are noisy. Of several "
        "seeds differences are told with their standard error.\n",
        _listed(ours) if ours else "No cell of the paper's tables is there.\n",
    ]
    for study, words in others.items():
        mine = [one for one in found if one.study == study]
        parts += [f"### {study}\n", f"{words}.\n", _listed(mine)]
    return write_page(setting.out, "check", "\n".join(parts))


def _listed(found: Sequence[Outcome]) -> str:
    listed = findings(found)
    counts = {v: sum(one.verdict == v for one in listed) for v in (HOLDS, FAILS, MISSING)}
    rows = [(one.verdict, one.where, one.claim, one.why) for one in listed]
    return (
        f"{counts[HOLDS]} hold, {counts[FAILS]} fail, {counts[MISSING]} lack a cell, "
        f"over {len(found)} cells.\n\n"
        f"{markdown_table(('verdict', 'where', 'ordering', 'why'), rows)}\n"
        "What DVW's scores bring over equal weights, and equal weights over FedAvg's:\n\n"
        f"{controls(found)}"
    )


STUDY = Study("check", "the paper's orderings, over the cells that are there", cells, report)
