"""The paper's orderings, checked over the cells that are there. A failed one is a finding.

Means over the last tenth of the virtual time decide, since single models are noisy. What noise
leaves open is a tie, neither a success nor a failure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

from metis_papers import table1, table1_by_class, table2, table3
from metis_papers.cells import Cell, Horizon, Row, Setting
from metis_papers.explanations import FILE, Explanation, read_explanations
from metis_papers.formatting import CONTROLS, TITLES, markdown_table, paired, write_page
from metis_papers.results import Result, read_results
from metis_papers.study import Choice, Grid, Report, Study

HOLDS, TIE, FAILS, MISSING = "holds", "tie", "FAILS", "missing"
CLOSE = 0.01  # AsyncDVW(a) may be so far below the best
ALIKE = 0.02  # FedAvg and DVW on uniform rows lie within so much
ADAPTIVE = "async-dvw-adaptive"
_EXACT = 1e-9  # a difference of just so much is within it, whatever floats make of it
_STANDARD_ERRORS = 2  # of a mean difference of several seeds: so large is its noise

RULE = (
    "Means over the last tenth of the virtual time decide; final accuracy is given as information. "
    f"The noise of a difference is {_STANDARD_ERRORS} standard errors of the paired difference, of "
    "several seeds; of one seed it is half of the larger range that the two cells have within the "
    "last tenth, which says little where these have few tests. An ordering is a tie where the "
    "difference is nearer to the ordering's bound than that. The bound is no difference where one "
    f"policy must not be below another; {CLOSE:g} below each other policy for the best; "
    f"{ALIKE:g} between any two for uniform rows. Of many pairs the worst decides: one that fails, "
    "else one that ties, else the narrowest.\n"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One ordering in one row of one table."""

    study: str
    cluster: str
    row: Row
    horizon: Horizon
    claim: str
    verdict: str
    why: str

    @property
    def where(self) -> str:
        return f"{self.study} {self.cluster} {self.row}, {self.horizon}"


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one policy is above another over the last tenth of the time, in the same seeds."""

    late: tuple[float, ...]  # by seed
    noise: float  # what the mean difference must have to be one
    words: str  # the same, for a reader; final accuracy is in there as information

    @property
    def mean(self) -> float:
        return fmean(self.late)

    def verdict(self, slack: float) -> str:
        """Return what becomes of an ordering that is kept by so much, or broken if negative."""
        if abs(slack) < self.noise - _EXACT:
            return TIE
        return HOLDS if slack >= -_EXACT else FAILS


@dataclass(frozen=True, slots=True)
class Line:
    """The cells of one row under one horizon, by policy and seed."""

    study: str
    cluster: str
    row: Row
    horizon: Horizon
    cells: dict[str, dict[int, Result]]

    def difference(self, one: str, other: str) -> Difference | None:
        """Compare two policies in the seeds that both have, if there are any."""
        seeds = sorted(set(self.cells.get(one, {})) & set(self.cells.get(other, {})))
        if not seeds:
            return None
        return _difference(*([self.cells[name][seed] for seed in seeds] for name in (one, other)))

    def lacks(self, policies: Sequence[str]) -> str:
        """Return what is missing for a comparison, in words."""
        absent = [policy for policy in policies if policy not in self.cells]
        return ", ".join(absent) or "no seed is there of all: " + ", ".join(policies)

    def found(self, claim: str, verdict: str, why: str) -> Finding:
        return Finding(self.study, self.cluster, self.row, self.horizon, claim, verdict, why)


def _difference(ours: Sequence[Result], theirs: Sequence[Result]) -> Difference:
    """Compare cells of the same seeds, in this order."""
    first, second = ([fmean(one.late_scores()) for one in cells] for cells in (ours, theirs))
    late = tuple(one - other for one, other in zip(first, second, strict=True))
    if len(late) > 1:
        noise = _STANDARD_ERRORS * stdev(late) / math.sqrt(len(late))
        about = f"{len(late)} seeds"
    else:
        tests = [ours[0].late_scores(), theirs[0].late_scores()]
        noise = max(max(scores) - min(scores) for scores in tests) / 2
        # The fewer tests there are, the less their range says.
        about = f"one seed, noise {noise:.4f} of {' and '.join(str(len(t)) for t in tests)} tests"
    final = paired([one.final_score or 0.0 for one in ours], [o.final_score or 0.0 for o in theirs])
    words = (
        f"{fmean(first):.4f}, {fmean(second):.4f}: {paired(first, second)} ({about}; final {final})"
    )
    return Difference(late, noise, words)


def lines_of(found: Sequence[Result]) -> list[Line]:
    """Put cells together that may be compared: one table, cluster, row, horizon and data."""
    groups: dict[tuple[str, str, Row, Horizon, str], dict[str, dict[int, Result]]] = {}
    for one in found:
        if one.final_score is not None and one.curve:
            key = (one.study, one.cluster, one.row, one.horizon, one.dataset)
            groups.setdefault(key, {}).setdefault(one.policy, {})[one.seed] = one
    return [
        Line(study, cluster, row, horizon, cells)
        for (study, cluster, row, horizon, _), cells in groups.items()
    ]


@cache
def tables() -> dict[str, Grid]:
    """Return every table whose cells are checked, by name: the paper's, and those like them."""
    grids = [table1.GRID, table2.GRID, table3.GRID]
    grids += [table1.grid_of(data) for data in table1.SMALL]
    grids += [table1_by_class.grid_of(data) for data in (None, *table1.SMALL)]
    grids += [table3.grid_of(data) for data in table3.DATA]
    return {grid.name: grid for grid in grids}


def findings(found: Sequence[Result]) -> list[Finding]:
    """Return every ordering that the paper's tables show, for every row there is."""
    listed = []
    for line in lines_of(found):
        if line.row.is_power_law:
            pairs = [("sync-dvw", "sync-fedavg")]
            if line.cluster == "heterogeneous":
                pairs += [("async-dvw", "async-fedavg"), (ADAPTIVE, "async-fedavg")]
            if tables()[line.study].table != table1.GRID.name:
                pairs = pairs[1:]
            listed += [_at_least(line, dvw, fedavg) for dvw, fedavg in pairs]
        if line.cluster == "heterogeneous":
            listed.append(_best(line))
        if line.row.is_uniform:
            listed.append(_alike(line))
    return listed


def _at_least(line: Line, dvw: str, fedavg: str) -> Finding:
    claim = f"{TITLES[dvw]} >= {TITLES[fedavg]}"
    difference = line.difference(dvw, fedavg)
    if difference is None:
        return line.found(claim, MISSING, line.lacks((dvw, fedavg)))
    return line.found(claim, difference.verdict(difference.mean), difference.words)


def _best(line: Line) -> Finding:
    claim = f"{TITLES[ADAPTIVE]} best, or within {CLOSE:g} of the best"
    others = [policy for policy in line.cells if policy != ADAPTIVE and policy not in CONTROLS]
    if ADAPTIVE not in line.cells or not others:
        return line.found(claim, MISSING, ADAPTIVE if others else "all others")
    pairs = [(ADAPTIVE, other) for other in others]
    return _of_all(line, claim, pairs, lambda one: one.mean + CLOSE)


def _alike(line: Line) -> Finding:
    claim = f"FedAvg and DVW within {ALIKE:g} of each other"
    mine = [policy for policy in line.cells if policy != "fedasync" and policy not in CONTROLS]
    if len(mine) < 2:
        return line.found(claim, MISSING, "there are fewer than two of them")
    pairs = list(itertools.combinations(mine, 2))
    return _of_all(line, claim, pairs, lambda one: ALIKE - abs(one.mean))


def _of_all(
    line: Line,
    claim: str,
    pairs: Sequence[tuple[str, str]],
    slack: Callable[[Difference], float],
) -> Finding:
    """Return what becomes of an ordering that must be kept by every pair: the worst of them.

    Each pair is judged by the seeds that it has in common, and by its own noise.
    """
    found = {pair: line.difference(*pair) for pair in pairs}
    there = {pair: one for pair, one in found.items() if one is not None}
    if len(there) < len(found):
        absent = next(pair for pair in found if pair not in there)
        return line.found(claim, MISSING, line.lacks(absent))
    worst = (FAILS, TIE, HOLDS)
    verdicts = {pair: one.verdict(slack(one)) for pair, one in there.items()}
    pair = min(there, key=lambda pair: (worst.index(verdicts[pair]), slack(there[pair])))
    names = " and ".join(TITLES[policy] for policy in pair)
    number = "" if len(pairs) == 1 else f", of {len(pairs)} pairs,"
    return line.found(claim, verdicts[pair], f"{names}{number} {there[pair].words}")


def controls(found: Sequence[Result]) -> str:
    """Return what DVW's scores bring over equal weights, wherever both are there."""
    rows = []
    for line in lines_of(found):
        for dvw, uniform, fedavg in (
            ("sync-dvw", "sync-uniform", "sync-fedavg"),
            ("async-dvw", "async-uniform", "async-fedavg"),
        ):
            scores, others = line.difference(dvw, uniform), line.difference(uniform, fedavg)
            if scores is not None:
                base = "-" if others is None else others.words
                where = f"{line.study} {line.cluster} {line.row}, {line.horizon}"
                rows.append((where, TITLES[dvw], scores.words, base))
    if not rows:
        return "No control is there to tell it by.\n"
    return markdown_table(("where", "policy", "DVW, equal weights", "equal weights, FedAvg"), rows)


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return nothing: only what is there is looked at."""
    choice.must_be_the_papers_data("check")
    return []


def report(setting: Setting, choice: Choice) -> Report:
    known = tables()
    found = read_results(setting.out, sorted(known))
    explained = read_explanations(setting.out / FILE)
    others = {
        study: known[study].difference
        for study in dict.fromkeys(one.study for one in found)
        if known[study].difference
    }
    ours = [one for one in found if one.study not in others]
    parts = [
        "## The paper's orderings\n",
        RULE,
        _listed(ours, explained) if ours else "No cell of the paper's tables is there.\n",
    ]
    for study, words in others.items():
        mine = [one for one in found if one.study == study]
        parts += [f"### {study}\n", f"{words}.\n", _listed(mine, explained)]
    parts.append(_idle(explained, findings(found)))
    return write_page(setting.out, "check", "\n".join(part for part in parts if part))


def _listed(found: Sequence[Result], explained: Sequence[Explanation]) -> str:
    listed = findings(found)
    counts = {v: sum(one.verdict == v for one in listed) for v in (HOLDS, TIE, FAILS, MISSING)}
    rows = [(one.verdict, one.where, one.claim, one.why) for one in listed]
    return (
        f"{counts[HOLDS]} hold, {counts[TIE]} tie, {counts[FAILS]} fail, {counts[MISSING]} lack a "
        f"cell, over {len(found)} cells.\n\n"
        f"{markdown_table(('verdict', 'where', 'ordering', 'last tenth'), rows)}\n"
        f"{_failures(listed, explained)}"
        "What DVW's scores bring over equal weights, and equal weights over FedAvg's:\n\n"
        f"{controls(found)}"
    )


def _failures(listed: Sequence[Finding], explained: Sequence[Explanation]) -> str:
    """Return why orderings fail, as far as it was found out."""
    rows = []
    for one in listed:
        if one.verdict == FAILS:
            why = [each for each in explained if _explains(each, one)]
            said = [(each.text, f"`{each.command}`") for each in why] or [("not explained", "-")]
            # A bar in an explanation is no border of the table.
            rows += [(one.where, one.claim, *(w.replace("|", r"\|") for w in e)) for e in said]
    if not rows:
        return ""
    return f"Of what fails:\n\n{markdown_table(('where', 'ordering', 'why', 'shown by'), rows)}\n"


def _explains(explanation: Explanation, finding: Finding) -> bool:
    return (finding.study, finding.cluster, str(finding.row), finding.claim) == (
        explanation.study,
        explanation.cluster,
        explanation.row,
        explanation.ordering,
    )


def _idle(explained: Sequence[Explanation], listed: Sequence[Finding]) -> str:
    """Name explanations of orderings that do not fail here, so that none is passed over."""
    failed = [one for one in listed if one.verdict == FAILS]
    lines = [
        f"- {one.study} {one.cluster} {one.row}: {one.ordering}"
        for one in explained
        if not any(_explains(one, finding) for finding in failed)
    ]
    if not lines:
        return ""
    return f"{FILE} also explains what does not fail here:\n\n" + "\n".join(lines) + "\n"


STUDY = Study("check", "the paper's orderings, over the cells that are there", cells, report)
