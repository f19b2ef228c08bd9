"""One page that tells what runs came to: no scripts, nothing from the network, images inside."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from metis.core.errors import RunError
from metis.report import plots
from metis.report.runs import Run, Series, metric_name, read_run, series_of, with_spread
from metis.report.table import summary_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Run", "read_run", "summary_table", "write_report"]

_PIXELS_PER_INCH = 130  # of the images: sharp on a phone, and still small files
_MAX_ROWS = 200  # of any table

_STYLE = """
:root { color-scheme: light dark; --line: #d8d8d8; --soft: #f5f5f5; --quiet: #5d5d5d; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --soft: #262626; --quiet: #aaa; }
  body { background: #181818; color: #e6e6e6; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .text { text-align: left; }
td:first-child { white-space: nowrap; }
th { background: var(--soft); vertical-align: bottom; }
td.text { overflow-wrap: anywhere; min-width: 12rem; }
figure { margin: 1.2rem 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); }
figcaption, .quiet { color: var(--quiet); font-size: .9rem; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; margin: .4rem 0; }
@media print { body { max-width: none; } .wide { overflow: visible; } table { font-size: .65rem; } }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot on the page: its file, and one sentence saying what to look for."""

    file: str
    caption: str
    png: bytes


def write_report(directory: Path, runs: Sequence[Run]) -> Path:
    """Write the plots of runs as PNGs and `report.html`, which holds them too; return its path.

    Runs of one policy that differ only in their seed are shown as one, with their spread.
    """
    path = directory / "report.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        pictures = _pictures(runs)
        for picture in pictures:
            (directory / picture.file).write_bytes(picture.png)
        path.write_text(_page(runs, pictures), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {directory}: {error.strerror}") from None
    return path


# ---- pictures ---------------------------------------------------------------------------------


def _pictures(runs: Sequence[Run]) -> list[Picture]:
    name = metric_name(runs)
    name = name if name == "R²" else name.capitalize()
    together: list[tuple[str, Callable[[Sequence[Run]], Figure | None], str]] = [
        (
            "score-over-time",
            plots.accuracy_over_time,
            f"{name} over virtual time: further left is sooner, higher is better.",
        ),
        (
            "score-over-samples",
            plots.accuracy_over_samples,
            f"{name} over work done: a curve to the left learns more from each sample trained on.",
        ),
        (
            "score-over-megabytes",
            plots.accuracy_over_megabytes,
            f"{name} over traffic: what is gained by judging models must be worth its bytes.",
        ),
        (
            "requests-and-models",
            plots.requests_and_models,
            "Update requests and models exchanged: two models a request, and one more for every"
            " judge that is asked (Figure 9 of the paper).",
        ),
        (
            "staleness",
            plots.staleness,
            "Effective staleness of the updates when they were taken, in mini-batches: the further"
            " apart the groups lie, the older are the models that slow learners build on (Figure 4"
            " of the paper is of staleness at the trigger).",
        ),
    ]
    pictures = [_picture(file, caption, plot(runs)) for file, plot, caption in together]
    series = series_of(runs)
    several = len({str([one["holdings"] for one in run.learners]) for run in runs}) > 1
    pictures.append(
        _picture(
            "holdings",
            "Who holds what: rows with few filled cells are learners that see few classes"
            + (f" (of {runs[0].name}; seeds may deal differently)." if several else "."),
            plots.holdings(runs[0]),
        )
    )
    for place, one in enumerate(series, 1):
        run = one.runs[0]
        of = f"{one.label}, seed {run.summary['seed']}"
        suffix = "" if len(series) == 1 else f"-{place}-{_slug(one.policy)}"
        pictures += [
            _picture(
                f"weights{suffix}",
                f"What each learner's updates weighed ({of}): a low line is a model that does"
                " little for the others, or a learner with little data.",
                plots.weights_over_time(run) if _weights_vary(run) else None,
            ),
            _picture(
                f"validation-cycles{suffix}",
                f"Validation cycles of one learner of each group ({of}): it should offer its"
                " model when its loss has stopped to fall (Figure 3).",
                plots.validation_cycles(run),
            ),
        ]
    return [picture for picture in pictures if picture is not None]


def _picture(file: str, caption: str, figure: Figure | None) -> Picture | None:
    if figure is None:
        return None
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=_PIXELS_PER_INCH)
    return Picture(f"{file}.png", caption, png.getvalue())


def _weights_vary(run: Run) -> bool:
    """Whether any learner's weight ever changes; if not, the table of learners says it all."""
    first: dict[str, float] = {}
    return any(
        first.setdefault(fold["learner"], fold["weight"]) != fold["weight"]
        for record in run.records
        if record["kind"] == "version"
        for fold in record["folds"]
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"


# ---- the page ---------------------------------------------------------------------------------


def _page(runs: Sequence[Run], pictures: Iterable[Picture]) -> str:
    series = series_of(runs)
    datasets = ", ".join(dict.fromkeys(str(run.summary["dataset"]) for run in runs))
    if len(series) < 3:
        title = f"{' and '.join(one.label for one in series)} on {datasets}"
    else:
        title = f"{len(series)} ways to learn {datasets}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Whatever a journal smuggles in, the page runs and fetches nothing.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "img-src data:; style-src 'unsafe-inline'\">",
        f"<title>Metis: {escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *_facts(runs),
        "<h2>What they came to</h2>",
        _summary(series),
        *_single_runs(series),
        "<h2>Pictures</h2>",
        *map(_figure, pictures),
        "<h2>Learners</h2>",
        *(_learners(one, opened=place == 0) for place, one in enumerate(series)),
        *_refusals(runs),
        *_configs(series),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _facts(runs: Sequence[Run]) -> Iterable[str]:
    """Say once what all runs have in common, and name those that did not come to an end."""
    for partition in dict.fromkeys(str(run.summary["partition"]) for run in runs):
        one = next(run for run in runs if str(run.summary["partition"]) == partition)
        unplaced = one.records[0].get("unplaced") or 0
        left = f"; {unplaced:,} examples could not be placed" if unplaced else ""
        parameters = one.summary["parameters"]
        yield (
            f"<p>{len(one.learners):,} learners, a model of {parameters:,} parameters; data: "
            f"{escape(partition)}{left}.</p>"
        )
    interrupted = [run.name for run in runs if run.summary["ended"] is None]
    if interrupted:
        yield (
            f"<p><strong>Interrupted:</strong> {escape(', '.join(interrupted))} did not come to "
            "an end; what is shown is as far as the journal goes.</p>"
        )


def _summary(series: Sequence[Series]) -> str:
    runs = [run for one in series for run in one.runs]
    name = metric_name(runs)
    keys = [
        (f"final {name}", "final_score", ".4f"),
        (f"best {name}", "best_score", ".4f"),
        ("virtual seconds", "virtual_seconds", ",.1f"),
        ("versions", "versions", ",.0f"),
        ("update requests", "update_requests", ",.0f"),
        ("models exchanged", "models_exchanged", ",.0f"),
        ("samples", "samples_trained", ",.0f"),
        ("MB up", "bytes_up", ",.1f"),
        ("MB down", "bytes_down", ",.1f"),
        ("wall seconds", "wall_seconds", ",.1f"),
    ]
    rows = []
    for one in series:
        row = [one.label, str(len(one.runs))]
        for _, key, form in keys:
            scale = 1e-6 if key.startswith("bytes") else 1
            row.append(with_spread([scale * value for value in one.values(key)], form))
        rows.append(row)
    table = _table(["policy", "seeds", *(heading for heading, _, _ in keys)], rows)
    if len(runs) == len(series):
        return table
    return table + '<p class="quiet">Several seeds: mean ±half of their range.</p>'


def _single_runs(series: Sequence[Series]) -> Iterable[str]:
    runs = [(one, run) for one in series for run in one.runs]
    rows = [
        [
            run.name,
            one.label,
            str(run.summary["seed"]),
            run.summary["ended"] or "interrupted",
            with_spread([v for v in [run.summary["final_score"]] if v is not None], ".4f"),
            with_spread([v for v in [run.summary["best_score"]] if v is not None], ".4f"),
            f"{run.summary['refused_updates']:,}",
        ]
        for one, run in runs
    ]
    headings = ["run", "policy", "seed", "ended by", "final", "best", "refused updates"]
    yield "<details><summary>Each run</summary>"
    yield _table(headings, rows, text=(1, 3))
    yield "</details>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _learners(one: Series, opened: bool) -> str:
    run = one.runs[0]
    rows = [
        [
            name,
            str(facts["group"]),
            f"{facts['examples']:,}",
            f"{facts['validation_examples']:,}",
            f"{facts['classes']:,}" if facts["classes"] else "-",
            f"{facts['updates']:,}",
            "-" if facts["mean_weight"] is None else f"{facts['mean_weight']:,.4g}",
            f"{facts['refused']:,}",
        ]
        for name, facts in run.summary["learners"].items()
    ]
    headings = ["learner", "group", "examples", "held out", "classes", "updates"]
    table = _table([*headings, "mean weight", "refused"], rows, text=(1,))
    label = escape(f"{one.label}, seed {run.summary['seed']}")
    return f"<details{' open' if opened else ''}><summary>{label}</summary>{table}</details>"


def _refusals(runs: Sequence[Run]) -> Iterable[str]:
    total = sum(run.summary["refused_updates"] for run in runs)
    if not total:
        return
    refused = ((run, r) for run in runs for r in run.records if r["kind"] == "refuse")
    rows = [
        [run.name, f"{r['at']:,.1f}", str(r["learner"]), str(r["task"]), str(r["reason"])]
        for run, r in islice(refused, _MAX_ROWS)
    ]
    headings = ["run", "virtual seconds", "learner", "task", "reason"]
    yield "<h2>Updates that were refused</h2>"
    yield _table(headings, rows, text=(2, 4), num_rows=total)


def _configs(series: Sequence[Series]) -> Iterable[str]:
    texts = []
    for one in series:
        path = one.runs[0].directory / "config.toml"
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            label = escape(f"{one.label}: {path}")
            texts.append(f"<details><summary>{label}</summary><pre>{escape(text)}</pre></details>")
    return ["<h2>Configuration</h2>", *texts] if texts else []


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    text: Sequence[int] = (),
    num_rows: int | None = None,
) -> str:
    """Return a table of plain cells, everything escaped; `text` names the columns of words."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = (' class="text"' if place in text else "" for place in range(len(row)))
        inside = (f"<{tag}{kind}>{escape(c)}</{tag}>" for kind, c in zip(kinds, row, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(cells("td", row) for row in rows[:_MAX_ROWS])
    num_hidden = (len(rows) if num_rows is None else num_rows) - min(len(rows), _MAX_ROWS)
    more = f'<p class="quiet">and {num_hidden:,} more.</p>' if num_hidden > 0 else ""
    return f'<div class="wide"><table>{cells("th", headings)}{body}</table></div>{more}'
