"""What a community update costs, with and without the cache: Figure 2 of the Metis paper.

    python benchmarks/community.py [--quick] [--out FILE.json] [--plot FILE.png]

One commit replaces one learner's model and makes a new community model. With the cache it moves 28
bytes per parameter (read W 8, new 4, old 4; write W 8, community 4) whatever the number of
learners; without, every learner's model is read again. All models are resident and distinct; the
output is a fresh array each time, as it is in a run. The yardstick is `np.copyto` of an array of 28
bytes per parameter, in one thread, both arrays touched before. Such a copy reads 28 bytes and
writes 28; a harder yardstick stands beside it, a copy of half that, which moves the same 28 bytes
in all as a commit does (`half_copy`).
Everything is measured in turns in the same run; figures are medians.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from metis.core.community import CachedAverage
from metis.core.kernels import divide, is_compiled, num_threads
from metis.core.types import LearnerId, Update, Vector, frozen

LEARNERS = (10, 100, 1000)
MODEL_BYTES = 16_000_000_000  # of resident models, at most
SPARE_BYTES = 3_000_000_000  # left to sums, yardstick and everybody else


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, a few seconds")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--plot", type=Path, help="draw Figure 2 here (needs matplotlib)")
    options = parser.parse_args()
    sizes = (1_000_000, 5_000_000) if options.quick else (1_000_000, 10_000_000, 25_000_000)
    budget = 400_000_000 if options.quick else min(MODEL_BYTES, _available() - SPARE_BYTES)
    load_average = os.getloadavg()[0]  # what others were doing meanwhile matters most of all

    rows = [row for size in sizes for row in measure(size, budget, options.quick)]
    about = machine(load_average) | {
        "numba": importlib.metadata.version("numba") if is_compiled() else None,
        "threads": {str(size): num_threads(size) for size in sizes},
    }
    result = {"machine": about, "rows": rows, "targets": targets(rows)}
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if options.plot:
        plot(rows, options.plot)


def measure(size: int, budget_bytes: int, quick: bool) -> list[dict[str, Any]]:
    """Return one row per number of learners, for models of one size."""
    most = max(LEARNERS[0], budget_bytes // (4 * size))
    counts = sorted({min(count, most) for count in LEARNERS})
    rng = np.random.default_rng(1990)
    seed = rng.normal(size=size).astype(np.float32)
    models = [frozen(seed * np.float32(1 + i / 7)) for i in range(counts[-1] + 1)]
    commits = {count: _Commits(models[: count + 1]) for count in counts}
    source, target = np.ones(28 * size, np.uint8), np.ones(28 * size, np.uint8)
    half = 14 * size

    cached: dict[int, list[float]] = {count: [] for count in counts}
    full: dict[int, list[float]] = {count: [] for count in counts}
    copies: list[float] = []
    half_copies: list[float] = []
    repeats = 5 if quick else max(15, 50_000_000 // size)
    for repeat in range(repeats + 1):
        for count in counts:
            # The copy before each commit also sees to it that every commit finds a cold cache.
            half_copies.append(_seconds(lambda: np.copyto(target[:half], source[:half])))
            cached[count].append(_seconds(commits[count].cached))
        copies.append(_seconds(lambda: np.copyto(target, source)))
        if repeat < 6:
            for count in counts:
                full[count].append(_seconds(commits[count].full))

    # The first of each is a warm-up: it may include compiling.
    copy, half_copy = statistics.median(copies[1:]), statistics.median(half_copies[1:])
    rows = []
    for count in counts:
        seconds = statistics.median(cached[count][1:])
        rows.append(
            {
                "parameters": size,
                "learners": count,
                "seconds_cached": seconds,
                "seconds_without_cache": statistics.median(full[count][1:]),
                "seconds_copy": copy,
                "seconds_half_copy": half_copy,
                "cached_to_copy": seconds / copy,
                "cached_to_half_copy": seconds / half_copy,
                "cached_to_fewest_learners": seconds / statistics.median(cached[counts[0]][1:]),
                "gigabytes_per_second": 28e-9 * size / seconds,
                "commits_timed": repeats,
            }
        )
    return rows


class _Commits:
    """A federation with one model more than learners: the one replaced is the next to arrive."""

    def __init__(self, models: list[Vector]) -> None:
        *resident, self.arriving = models
        self.rng = np.random.default_rng(1990)
        self.community = CachedAverage()
        self.learners = [LearnerId(f"{i:04d}") for i in range(len(resident))]
        for learner, weights in zip(self.learners, resident, strict=True):
            self._fold(learner, weights)
        self.current = self.community.model(self.arriving).weights

    def cached(self) -> None:
        learner = self.learners[self.rng.integers(len(self.learners))]
        replaced = self.community.latest[learner]
        self._fold(learner, self.arriving)
        self.current = self.community.model(self.current).weights
        self.arriving = replaced

    def full(self) -> None:
        total, mass = self.community.recompute()
        divide(total, mass)

    def _fold(self, learner: LearnerId, weights: Vector) -> None:
        update = Update(learner, 0, weights, base_version=0, num_examples=1, num_steps=1)
        self.community.fold(update, 0.5 + float(self.rng.random()), weights)


def targets(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the claims made for the cache, and whether they hold in these rows."""
    most = {row["parameters"]: row for row in rows}  # rows ascend in learners: the last one stays
    growth = max(row["cached_to_fewest_learners"] for row in most.values())
    to_copy = max(row["cached_to_copy"] for row in rows)
    return {
        "largest_to_fewest_learners": {"worst": growth, "at_most": 1.25, "met": growth <= 1.25},
        "cached_to_copy": {"worst": to_copy, "at_most": 1.0, "met": to_copy <= 1.0},
        "cached_to_half_copy": {"worst": max(row["cached_to_half_copy"] for row in rows)},
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw cost against number of learners, one colour per model size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5.5), layout="constrained")
    sizes = sorted({row["parameters"] for row in rows}, reverse=True)
    for colour, size in zip(("#1b4f8f", "#c8641b", "#3c8c4a"), sizes, strict=False):
        mine = [row for row in rows if row["parameters"] == size]
        learners = [row["learners"] for row in mine]
        for key, style, label in (
            ("seconds_without_cache", "--", "all models summed"),
            ("seconds_cached", "-", "cached"),
        ):
            axes.plot(
                learners,
                [1000 * row[key] for row in mine],
                style,
                color=colour,
                marker="o",
                markersize=4,
                label=f"{size / 1e6:g}M parameters, {label}",
            )
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("learners in the federation")
    axes.set_ylabel("milliseconds per community update")
    axes.set_title("Cost of a community update (Metis paper, Figure 2)")
    axes.grid(which="major", alpha=0.3)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=len(sizes), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _available() -> int:
    """Return the bytes that can be had without swapping, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return MODEL_BYTES
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


if __name__ == "__main__":
    main()
