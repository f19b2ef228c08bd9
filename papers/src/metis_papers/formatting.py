"""Results as text: names of policies, numbers next to published ones, pages of Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from metis.core.errors import RunError
from metis_papers.results import Result
from metis_papers.study import Report

#: What the paper calls each policy.
TITLES = {
    "sync-fedavg": "SyncFedAvg",
    "sync-dvw": "SyncDVW",
    "async-fedavg": "AsyncFedAvg",
    "fedasync": "FedAsync",
    "async-dvw": "AsyncDVW(na)",
    "async-dvw-adaptive": "AsyncDVW(a)",
    "sync-uniform": "sync-uniform",
    "async-uniform": "async-uniform",
}
#: Not the paper's: equal weights tell what DVW's scores bring from what dropping sizes brings.
CONTROLS = ("sync-uniform", "async-uniform")


def score(values: Sequence[float]) -> str:
    """Return one score, or the mean of several ±half of their range."""
    if not values:
        return "-"
    half_range = (max(values) - min(values)) / 2
    spread = f" ±{half_range:.4f} ({len(values)} seeds)" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.4f}{spread}"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the mean difference; of several seeds, with the standard error of that mean."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    mean = f"{fmean(differences):+.4f}"
    if len(differences) < 2:
        return mean
    return f"{mean} ±{stdev(differences) / math.sqrt(len(differences)):.4f}"


def beside(values: Sequence[float], published: float | None, comparable: bool) -> str:
    """Return our score, and in brackets the published one with the difference to it."""
    if published is None or not values:
        return score(values)
    difference = f", {sum(values) / len(values) - published:+.4f}" if comparable else ""
    return f"{score(values)} ({published:.4f}{difference})"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are also aligned for those who read it as text."""
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "".join(
        "| " + " | ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) + " |\n"
        for line in lines
    )


def costs_table(results: Sequence[Result]) -> str:
    """Return what each cell took: with every score its rounds, requests and samples."""
    heads = (
        "cluster",
        "row",
        "policy",
        "seed",
        "horizon",
        "final",
        "best",
        "mean of the last tenth",
        "their range",
        "versions",
        "requests",
        "models",
        "samples, M",
        "virtual s",
        "real s",
        "samples/s",
    )
    rows = [
        (
            one.cluster,
            str(one.row),
            one.variant or one.policy,
            str(one.seed),
            str(one.horizon),
            score([] if one.final_score is None else [one.final_score]),
            score([] if one.best_score is None else [one.best_score]),
            *_late(one),
            f"{one.rounds:,}",
            f"{one.requests:,}",
            f"{one.models_exchanged:,}",
            f"{one.samples / 1e6:,.2f}",
            f"{one.virtual_seconds:,.0f}",
            f"{one.wall_seconds:,.0f}",
            f"{one.samples_per_second:,.0f}",
        )
        for one in results
    ]
    return markdown_table(heads, rows)


def _late(one: Result) -> tuple[str, str]:
    late = one.late_scores()
    if not late:
        return "-", "-"
    return f"{sum(late) / len(late):.4f}", f"{max(late) - min(late):.4f}"


def made_with(results: Sequence[Result]) -> str:
    """Return on which machines, by which code and on which data cells were made."""
    devices = "; ".join(dict.fromkeys(one.device for one in results))
    commits = ", ".join(dict.fromkeys(one.commit for one in results))
    data = ", ".join(dict.fromkeys(one.dataset for one in results))
    scales = ", ".join(dict.fromkeys(one.scale for one in results))
    precisions = ", ".join(dict.fromkeys(one.precision for one in results))
    return (
        f"Data: {data}. Scale: {scales}. Precision: {precisions}. Made on: {devices}. "
        f"Code: {commits}.\n"
    )


def write_page(out: Path, name: str, text: str, pictures: Sequence[Path] = ()) -> Report:
    """Write a Markdown file; where the folder's README has a place for it, write it there too.

    Such a place lies between `<!-- NAME.md -->` and `<!-- end -->`.
    """
    path, page = out / f"{name}.md", out / "README.md"
    begin, end = f"<!-- {name}.md -->\n", "<!-- end -->"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if page.is_file():
            before, found, rest = page.read_text(encoding="utf-8").partition(begin)
            if found and end in rest:
                page.write_text(before + begin + text + end + rest.partition(end)[2], "utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return Report(text, (path, *pictures))
