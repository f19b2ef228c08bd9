"""Tables of accuracy, ours and the published: one line per distribution, a column per policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from metis_papers.cells import Horizon, Row, Setting
from metis_papers.convergence import draw_convergence
from metis_papers.formatting import (
    TITLES,
    beside,
    costs_table,
    made_with,
    markdown_table,
    paired,
    score,
    write_page,
)
from metis_papers.published import ACCURACY
from metis_papers.results import Result, read_results
from metis_papers.study import Grid, Report

#: Accuracy is also read where the paper reads it before the end, by cluster.
EARLIER = {"homogeneous": Horizon(seconds=10_000.0)}
#: In place of the name of a table of the paper.
NOT_PUBLISHED = "none"


def table_report(
    grid: Grid, title: str, figures: dict[str, str], setting: Setting, published: str
) -> Report:
    """Write a table and, for each cluster, its convergence over virtual time.

    `published` is the table of the paper whose numbers stand in brackets.
    """
    found = read_results(setting.out, [grid.name])
    parts = [f"## {title}\n"]
    pictures = []
    for cluster in grid.policies:
        here = [one for one in found if one.cluster == cluster]
        for horizon in dict.fromkeys(one.horizon for one in here):
            same = [one for one in here if one.horizon == horizon]
            parts.append(_block(grid, cluster, same, horizon, published))
        if cluster in EARLIER and here:
            parts.append(_earlier(grid, cluster, here, EARLIER[cluster], published))
        if here:
            picture = setting.out / f"{figures[cluster]}.png"
            draw_convergence(here, f"{title}, {cluster} cluster", picture)
            pictures.append(picture)
            parts.append(f"![{cluster}]({picture.name})\n")
    parts.append(missing(grid, found))
    if found:
        parts += ["What each cell took:\n", costs_table(found), made_with(found)]
    return write_page(setting.out, grid.name, "\n".join(parts), pictures)


def _block(
    grid: Grid, cluster: str, found: Sequence[Result], horizon: Horizon, published: str
) -> str:
    whole = grid.horizons[cluster]
    said = f"{cluster.capitalize()} cluster, after {horizon}"
    if not _of_the_paper(grid, found, published):
        said += "; not the paper's data, so its numbers do not stand here"
    elif horizon != whole:
        said += f"; in brackets the paper's after {whole}, so no difference is taken"
    else:
        said += "; in brackets the paper's, and our difference to it"

    def cell(row: Row, policy: str) -> str:
        here = _of(found, row, policy)
        scores = [one.final_score for one in here if one.final_score is not None]
        theirs = _paper(grid, here, published, cluster, row, policy, whole)
        return beside(scores, theirs, comparable=horizon == whole)

    return f"{said}:\n\n{_lines(grid, cluster, found, cell)}\n{_late(grid, cluster, found)}"


def _late(grid: Grid, cluster: str, found: Sequence[Result]) -> str:
    """Return scores over the last tenth of the time, which single models shake less; of several
    seeds also how far each policy is from its row's best, in the seeds that both have."""
    late: dict[tuple[Row, str], dict[int, float]] = {}
    for one in found:
        if one.curve:
            late.setdefault((one.row, one.policy), {})[one.seed] = fmean(one.late_scores())

    def mean(row: Row, policy: str) -> str:
        return score([*late.get((row, policy), {}).values()])

    def off_best(row: Row, policy: str) -> str:
        several = [other for at, other in late if at == row and len(late[at, other]) > 1]
        if policy not in several:
            return "-"
        best = max(several, key=lambda other: fmean(late[row, other].values()))
        mine, theirs = late[row, policy], late[row, best]
        seeds = sorted(set(mine) & set(theirs))
        if policy == best or len(seeds) < 2:
            return "best" if policy == best else "-"
        return paired([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])

    text = f"Means over the last tenth of the time:\n\n{_lines(grid, cluster, found, mean)}"
    if len({one.seed for one in found}) > 1:
        text += (
            "\nThese means, off the best of each row (by the same means, which favours it), in the "
            "seeds that both have, with standard error:\n\n"
            f"{_lines(grid, cluster, found, off_best)}"
        )
    return text


def _earlier(
    grid: Grid, cluster: str, found: Sequence[Result], when: Horizon, published: str
) -> str:
    """Return the accuracy at an earlier moment, of cells that came there (or all but there)."""
    seconds = when.seconds or 0.0
    there = [one for one in found if one.virtual_seconds >= 0.99 * seconds]
    if not there:
        return f"None of these cells came to {when}.\n"

    def cell(row: Row, policy: str) -> str:
        here = _of(there, row, policy)
        scores = [at for one in here if (at := one.score_at(seconds)) is not None]
        theirs = _paper(grid, here, published, cluster, row, policy, when)
        return beside(scores, theirs, comparable=True)

    return f"The same cells after {when}:\n\n{_lines(grid, cluster, there, cell)}"


def _lines(
    grid: Grid, cluster: str, found: Sequence[Result], cell: Callable[[Row, str], str]
) -> str:
    policies, there = grid.policies[cluster], {one.row for one in found}
    rows = [row for row in (*grid.rows, *grid.more_rows) if row in there]
    heads = ["distribution", *(TITLES[policy] for policy in policies)]
    return markdown_table(heads, [[str(row), *(cell(row, p) for p in policies)] for row in rows])


def _of(found: Sequence[Result], row: Row, policy: str) -> list[Result]:
    return [one for one in found if one.row == row and one.policy == policy]


def _of_the_paper(grid: Grid, found: Sequence[Result], published: str) -> bool:
    return published != NOT_PUBLISHED and any(one.dataset == grid.domain.name for one in found)


def _paper(
    grid: Grid,
    found: Sequence[Result],
    published: str,
    cluster: str,
    row: Row,
    policy: str,
    when: Horizon,
) -> float | None:
    """Return the published number, unless these cells are of other data."""
    if found and not _of_the_paper(grid, found, published):
        return None
    return ACCURACY.get((published, cluster, row.of_the_paper, policy, when))


def missing(grid: Grid, found: Sequence[Result]) -> str:
    """Return which cells of a table are not there, in words."""
    there = {(one.cluster, one.row, one.policy) for one in found}
    lines, count = [], 0
    for cluster, policies in grid.policies.items():
        alike: dict[tuple[str, ...], list[Row]] = {}
        for row in grid.rows:
            absent = tuple(policy for policy in policies if (cluster, row, policy) not in there)
            count += len(absent)
            if absent:
                alike.setdefault(absent, []).append(row)
        for absent, rows in alike.items():
            which = "everything" if len(absent) == len(policies) else ", ".join(absent)
            lines.append(f"- {cluster}: {which} of {', '.join(map(str, rows))}")
    total = len(grid.rows) * sum(len(policies) for policies in grid.policies.values())
    if not count:
        return f"All {total} cells are there.\n"
    return f"{count} of {total} cells are missing:\n\n" + "\n".join(lines) + "\n"
