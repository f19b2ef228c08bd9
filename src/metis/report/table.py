"""What several runs came to, side by side in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from metis.report.runs import (
    Run,
    Series,
    comparable,
    mean,
    metric_name,
    seconds_to,
    series_of,
    target_score,
    with_spread,
)


def summary_table(runs: Sequence[Run]) -> Table:
    """Return one line per policy, as wide as 80 columns allow; see the report for more.

    Scores of several seeds are mean ±half of their range, all other numbers means. The time is
    the virtual one until a test reached 95 % of the best final score, where that means anything.
    """
    series = series_of(runs)
    target = target_score(series)
    finals = [mean(one.values("final_score") or [float("-inf")]) for one in series]
    highlight = len(series) > 1 and comparable(runs)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        caption=_caption(runs, series),
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=max(len(one.label) for one in series) <= 20)
    for heading in ("final", "best", *(() if target is None else (f"s to {target:.3f}",))):
        table.add_column(heading, justify="right")
    for heading in ("versions", "requests", "models", "samples", "MB"):
        table.add_column(heading, justify="right", min_width=len(heading))
    for one, final in zip(series, finals, strict=True):
        style = "bold green" if highlight and final == max(finals) else ""
        # Text, because a string would be read as markup and a label is the user's.
        cells = [
            Text(one.label + (" (interrupted)" if _interrupted(one) else "")),
            Text(with_spread(one.values("final_score"), ".4f"), style),
            Text(with_spread(one.values("best_score"), ".4f")),
        ]
        if target is not None:
            cells.append(Text(_time_to(one, target)))
        for key in ("versions", "update_requests", "models_exchanged"):
            cells.append(Text(f"{mean(one.values(key)):,.0f}"))
        cells.append(Text(_short(mean(one.values("samples_trained")))))
        num_bytes = mean(one.values("bytes_up")) + mean(one.values("bytes_down"))
        cells.append(Text(f"{num_bytes / 1e6:,.{0 if num_bytes >= 1e8 else 1}f}"))
        table.add_row(*cells)
    return table


def _caption(runs: Sequence[Run], series: Sequence[Series]) -> Text:
    seeds = sorted({len(one.runs) for one in series})
    words = f"final, best: test {metric_name(runs)}"
    if seeds[-1] > 1:
        words += f", mean ±half of the range of {'-'.join(map(str, seeds))} seeds"
    return Text(f"{words}; s: virtual time")


def _interrupted(one: Series) -> bool:
    return any(run.summary["ended"] is None for run in one.runs)


def _time_to(one: Series, target: float) -> str:
    times = [at for run in one.runs if (at := seconds_to(run, target)) is not None]
    if not times:
        return "-"
    reached = f" ({len(times)} of {len(one.runs)})" if len(times) < len(one.runs) else ""
    return f"{mean(times):,.1f}{reached}"


def _short(number: float) -> str:
    """Return a count in three digits or so."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            scale = 1e3 if letter == "k" else size
            return f"{number / scale:.{0 if number >= 100 * scale else 1}f}{letter}"
    return f"{number:,.0f}"
