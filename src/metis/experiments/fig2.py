"""Figure 2: what a community update costs with and without the cache, as federations grow.

`benchmarks/community.py` measures the same more carefully, beside what a copy of memory takes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metis.core.community import CachedAverage
from metis.core.errors import RunError
from metis.core.kernels import divide
from metis.core.types import LearnerId, Update, Vector, frozen
from metis.experiments.cells import Cell, Setting
from metis.experiments.outcome import commit, device_name
from metis.experiments.pictures import new_figure, plain, write_figure
from metis.experiments.study import Choice, Report, Study
from metis.experiments.words import markdown_table, write_page
from metis.report.plots import COLOURS


@dataclass(frozen=True, slots=True)
class Network:
    """How large a network is, said here so that measuring needs no torch; a test builds it."""

    parameters: int
    values: int  # these and its buffers: what a community update adds up


#: That of the paper's CIFAR-100 federations, and the one of 25.6 million parameters.
NETWORKS = {
    "resnet50_cifar": Network(764_468, 768_084),
    "resnet50": Network(25_557_032, 25_610_152),
}
#: Networks, learners, commits that are timed.
SIZES = {
    "full": (tuple(NETWORKS), (10, 30, 100, 300, 1000), 20),
    "short": (("resnet50_cifar",), (10, 100, 300), 10),
    "smoke": (("resnet50_cifar",), (10, 40), 3),
}
#: Of different models in memory. Where all learners' are more than that, they take turns with so
#: many, which costs the same: what is added up is far more than any cache holds, so each comes from
#: memory again.
MOST_BYTES = 4_000_000_000
_COLUMNS = ("network", "values", "learners", "models", "cached", "without")


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return nothing: it is measured when it is drawn."""
    choice.must_be_the_papers_data("fig2")
    return []


def report(setting: Setting, choice: Choice) -> Report:
    """Measure, unless it is there, and draw."""
    path = setting.out / "fig2.json"
    found = _measured(path, setting.scale) if path.is_file() else None
    if found is None:
        found = {
            "scale": setting.scale,
            "device": device_name("cpu"),
            "commit": commit(),
            "rows": measure(setting.scale),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = [
        (
            row["network"],
            f"{NETWORKS[row['network']].parameters:,}",
            f"{row['values']:,}",
            f"{row['learners']:,}",
            f"{row['models']:,}",
            f"{1000 * row['cached']:,.2f}",
            f"{1000 * row['without']:,.2f}",
            f"{row['without'] / row['cached']:,.1f}",
        )
        for row in found["rows"]
    ]
    heads = (
        "network",
        "parameters",
        "values",
        "learners",
        "models in memory",
        "cached, ms",
        "without, ms",
        "times",
    )
    text = (
        "## Figure 2: cost of a community update\n\n"
        f"{markdown_table(heads, lines)}\nValues are parameters and buffers (running statistics of "
        f"batch norm): all are added up. {_sharing(found['rows'])}\n\n"
        f"Scale: {found['scale']}. Made on: {found['device']}. "
        f"Code: {found['commit']}.\n"
        "\n![figure 2](fig2.png)\n"
    )
    return write_page(
        setting.out, "fig2", text, [draw(found["rows"], setting.out / "fig2.png"), path]
    )


def _measured(path: Path, scale: str) -> dict[str, Any]:
    """Return what was measured before. Raises RunError if it is damaged or of another scale."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        there = found["scale"]
        for row in found["rows"]:
            _ = [row[column] for column in _COLUMNS], NETWORKS[row["network"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is no measurement of Figure 2: {error!r}; remove it to measure again"
        ) from None
    if there != scale:
        raise RunError(
            f"{path} was measured at scale {there}, but scale {scale} is asked for: "
            "choose another --out"
        )
    return found


def _sharing(rows: Sequence[dict[str, Any]]) -> str:
    """Say whose models were not all different."""
    shared = [row for row in rows if row["models"] < row["learners"]]
    if not shared:
        return "Each learner has a model of its own."
    least = min(row["learners"] for row in shared)
    gigabytes = 4 * shared[-1]["values"] * shared[-1]["learners"] / 1e9
    return (
        f"From {least:,} learners on, those of {shared[0]['network']} share so many models "
        f"(all their own would take up to {gigabytes:,.0f} GB, {MOST_BYTES / 1e9:g} GB are the "
        "most): as many are added up, and each comes from memory, since together they are far "
        "larger than any cache."
    )


def measure(scale: str) -> list[dict[str, Any]]:
    """Return the median seconds of a commit, for models of several sizes and many learners."""
    networks, counts, repeats = SIZES[scale]
    return [_measured_row(name, count, repeats) for name in networks for count in counts]


def _measured_row(name: str, count: int, repeats: int) -> dict[str, Any]:
    size = NETWORKS[name].values
    models = different_models(size, count)
    commits = _Commits(size, count, models)
    cached = [_seconds(commits.cached) for _ in range(repeats + 1)]
    without = [_seconds(commits.without) for _ in range(min(repeats, 5) + 1)]
    return {
        "network": name,
        "values": size,
        "learners": count,
        "models": models,
        # The first of each is a warm-up: it may include compiling.
        "cached": statistics.median(cached[1:]),
        "without": statistics.median(without[1:]),
    }


def different_models(values: int, learners: int) -> int:
    """Return how many models of so many values learners have between them."""
    return min(learners, max(2, MOST_BYTES // (4 * values)))


class _Commits:
    """A federation whose learners replace their models, one after the other."""

    def __init__(self, size: int, count: int, models: int) -> None:
        rng = np.random.default_rng(1990)
        start = rng.normal(size=size).astype(np.float32)
        self._learners = [LearnerId(f"{i:04d}") for i in range(count)]
        self._community = CachedAverage()
        pool = [frozen(start * np.float32(1 + i / 7)) for i in range(models)]
        for i, learner in enumerate(self._learners):
            self._fold(learner, pool[i % models])
        self._arriving = frozen(start * np.float32(0.5))
        self._turn = 0
        self._current = self._community.model(self._arriving).weights

    def cached(self) -> None:
        learner = self._learners[self._turn % len(self._learners)]
        self._turn += 1
        replaced = self._community.latest[learner]
        self._fold(learner, self._arriving)
        self._current = self._community.model(self._current).weights
        self._arriving = replaced

    def without(self) -> None:
        total, mass = self._community.recompute()
        divide(total, mass)

    def _fold(self, learner: LearnerId, weights: Vector) -> None:
        update = Update(learner, 0, weights, base_version=0, num_examples=1, num_steps=1)
        self._community.fold(update, 1.0, weights)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def draw(rows: list[dict[str, Any]], path: Path) -> Path:
    figure = new_figure(6.5, 4.2)
    axes = figure.add_subplot()
    for colour, name in zip(COLOURS, dict.fromkeys(row["network"] for row in rows), strict=False):
        mine = [row for row in rows if row["network"] == name]
        learners = [row["learners"] for row in mine]
        for key, style, words in (("without", "--", "without cache"), ("cached", "-", "cached")):
            milliseconds = [1000 * row[key] for row in mine]
            label = f"{name}, {NETWORKS[name].parameters / 1e6:.3g}M parameters, {words}"
            axes.plot(learners, milliseconds, style, color=colour, marker="o", ms=4, label=label)
    axes.set(xscale="log", yscale="log")
    plain(axes, "learners in the federation", "ms per community update")
    axes.legend(fontsize=8, frameon=False)
    return write_figure(figure, path)


STUDY = Study("fig2", "cost of a community update, with and without cache", cells, report)
