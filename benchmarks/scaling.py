"""What a learner's epoch costs as learners become many, and how much memory they take.

    python benchmarks/scaling.py [--quick] [--out FILE.json] [--plot FILE.png]

A perceptron with 2,410 values, 20 examples per learner, batches of 10, one epoch per round, every
learner in every round. Each row is a process of its own, so that its peak memory is its own; time
counts from the first version to the last. The reference is the same federation computed one
learner at a time (engine = loop).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from metis.config import load
from metis.data.dataset import Advice, Dataset
from metis.journal.file import Record
from metis.simulation.run import run

EXAMPLES = 20
EPOCHS_WANTED = 20_000  # of all learners together, so that small federations are timed long enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few learners: does it run?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "LEARNERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.quick)))
        return
    load_average = os.getloadavg()[0]
    counts = (10, 30) if options.quick else (10, 100, 1_000, 10_000)
    rows = []
    for learners in counts:
        for engine in ("auto", "loop"):
            more = ["--quick"] if options.quick else []
            command = [sys.executable, __file__, "--one", engine, str(learners), *more]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout))
    for row in rows:
        loop = next(r for r in rows if r["learners"] == row["learners"] and r["asked"] == "loop")
        row["ratio_to_loop"] = loop["seconds_per_epoch"] / row["seconds_per_epoch"]
    text = json.dumps({"machine": machine(load_average), "rows": rows}, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if options.plot:
        plot(rows, options.plot)


def measure(engine: str, learners: int, quick: bool) -> dict[str, Any]:
    """Run one federation; return what one learner's epoch cost, and the most memory it took."""
    rng = np.random.default_rng(4)
    total = EXAMPLES * learners
    x = rng.normal(size=(total + 10, 64)).astype(np.float32)
    y = rng.integers(0, 10, size=len(x))
    advice = Advice("mlp", batch_size=10)
    dataset = Dataset("tiny", x[:total], y[:total], x[total:], y[total:], 10, advice=advice)
    wanted = 300 if quick else EPOCHS_WANTED
    config = load(
        None,
        policy="sync-fedavg",
        engine=engine,
        learners=learners,
        threads=None,
        model={"options": {"hidden": (32,)}},
        partition={"sizes": "uniform", "classes": "iid"},
        train={"epochs": 1},
        horizon={"versions": max(3, wanted // learners), "test_every": 1_000_000_000},
    )
    stamps: list[float] = []

    def listen(record: Record) -> None:
        if record["kind"] == "version":
            stamps.append(time.perf_counter())

    result = run(config, data=dataset, listeners=(listen,))
    epochs = learners * (len(stamps) - 1)
    return {
        "asked": engine,
        "engine": result.config.engine,
        "threads": result.config.threads,
        "learners": learners,
        "parameters": result.layout.size,
        "epochs": epochs,
        "seconds_per_epoch": (stamps[-1] - stamps[0]) / epochs,
        "samples_per_second": EXAMPLES * epochs / (stamps[-1] - stamps[0]),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for asked, label in (("auto", "chosen by the rule"), ("loop", "one by one")):
        mine = [row for row in rows if row["asked"] == asked]
        counts = [row["learners"] for row in mine]
        engines = ", ".join(sorted({row["engine"] for row in mine}))
        left.plot(counts, [1e3 * row["seconds_per_epoch"] for row in mine], "o-",
                  label=f"{label} ({engines})")  # fmt: skip
        right.plot(counts, [row["peak_memory_mib"] for row in mine], "o-", label=label)
    left.set(xlabel="learners", ylabel="ms per learner and epoch", xscale="log")
    right.set(xlabel="learners", ylabel="peak memory, MiB", xscale="log")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    left.set_title(f"{EXAMPLES} examples, {rows[0]['parameters']:,} values")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
