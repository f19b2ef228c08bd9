"""What compression costs in accuracy and saves in bytes: FedAvg, STC and SSTC on real writers.

    python experiments/codecs.py run mnist_by_writer.npz DIR [--device cuda] [--rounds 200]
    python experiments/codecs.py report DIR docs/results/codecs-training

The setting is the SSTC paper's as far as the data allows: the FEMNIST CNN, 5 local epochs of plain
SGD at 0.1, batches of 16, p = 1 %. The data is MNIST divided by who wrote it: 539 writers, 10
classes instead of 3,400 and 62. Runs are ordinary run directories: those that are finished are left
alone, those that were stopped are taken up again.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metis.config import Config, load
from metis.runtime.journal import read_journal
from metis.runtime.run import run_or_resume

NUM_WRITERS = 539
SHARES = (0.05, 0.125, 0.25, 0.4, 1.0)  # of kernels: the paper's Figure 3c


def _stc(**more: Any) -> dict[str, Any]:
    return {"codec": "stc", "sparsity": 0.01, **more}


def _sstc(share: float, **more: Any) -> dict[str, Any]:
    return {"codec": "sstc", "sparsity": 0.01, "kernels": share, **more}


#: Every run by name: its policy, how updates travel, how community models do.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("sync-fedavg", {}, {}),
    "int8": ("sync-fedavg", {"codec": "int8"}, {}),
    "stc": ("sync-fedavg", _stc(), {}),
    **{f"sstc-{share:g}": ("sync-fedavg", _sstc(share), {}) for share in SHARES},
    "stc-ef": ("sync-fedavg", _stc(error_feedback=True), {}),
    "sstc-0.125-ef": ("sync-fedavg", _sstc(0.125, error_feedback=True), {}),
    "stc-both-ways": ("sync-fedavg", _stc(), _stc(error_feedback=True)),
    "async-dvw-dense": ("async-dvw", {}, {}),
    "async-dvw-sstc": ("async-dvw", _sstc(0.125), {}),
    "async-dvw-sstc-both-ways": ("async-dvw", _sstc(0.125), {"codec": "stc", "sparsity": 0.1}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run_ = verbs.add_parser("run")
    run_.add_argument("data", type=Path)
    run_.add_argument("out", type=Path)
    run_.add_argument("--device", default="cpu")
    run_.add_argument("--rounds", type=int, default=200)
    run_.add_argument("--per-round", type=int, default=50, help="learners drawn, of 539 writers")
    run_.add_argument("--test-every", type=int, default=5, help="rounds")
    run_.add_argument("--engine", default="auto")
    run_.add_argument("--jobs", type=int, default=1)
    run_.add_argument("--seconds", type=float, help="stop what is still running after so long")
    run_.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    report_ = verbs.add_parser("report")
    report_.add_argument("out", type=Path)
    report_.add_argument("target", type=Path, help="without a suffix")
    options = parser.parse_args()
    if options.verb == "report":
        report(options.out, options.target)
    elif len(options.only) == 1:
        one(options.only[0], options)
    else:
        side_by_side(options)


def config_of(name: str, options: argparse.Namespace) -> Config:
    policy, upload, download = RUNS[name]
    rounds = policy.startswith("sync")
    return load(
        None,
        policy=policy,
        learners=NUM_WRITERS,
        device=options.device,
        engine=options.engine,
        threads=1 if options.jobs > 1 else None,
        data={"name": str(options.data.absolute())},
        model={"name": "femnist_cnn"},
        partition={"sizes": "uniform", "classes": "natural"},
        train={"epochs": 5, "learning_rate": 0.1, "momentum": 0.0, "batch_size": 16},
        recipe={"sample": options.per_round},
        horizon={
            "versions": options.rounds * (1 if rounds else options.per_round),
            "test_every": options.test_every * (1 if rounds else options.per_round),
        },
        upload=upload,
        download=download,
        output={"checkpoint_seconds": 0},
    )


def one(name: str, options: argparse.Namespace) -> None:
    summary = run_or_resume(config_of(name, options), options.out / name)
    print(f"{name:16s} {summary['final_score']:.4f} {summary['wall_seconds']:.0f} s", flush=True)


def side_by_side(options: argparse.Namespace) -> None:
    """Make each run in a process of its own, some at a time."""
    began = time.monotonic()
    waiting, going = list(options.only), list[subprocess.Popen[bytes]]()
    limit = options.seconds or math.inf
    command = [sys.executable, __file__, "run", str(options.data), str(options.out)]
    command += [
        "--jobs",
        str(options.jobs),
        "--device",
        options.device,
        "--rounds",
        str(options.rounds),
    ]
    command += ["--per-round", str(options.per_round), "--test-every", str(options.test_every)]
    command += ["--engine", options.engine]
    while waiting or going:
        while waiting and len(going) < options.jobs:
            going.append(subprocess.Popen([*command, "--only", waiting.pop(0)]))
        time.sleep(0.2)
        going = [process for process in going if process.poll() is None]
        if time.monotonic() - began > limit:
            waiting, limit = [], math.inf
            for process in going:
                process.send_signal(signal.SIGINT)  # leaves a checkpoint


# ---- what came of it --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    version: int
    updates: int
    bytes_up: int
    bytes_down: int
    accuracy: float


def curve(directory: Path) -> list[Point]:
    """Return accuracy against what had been sent by then."""
    points, up, down, updates = [], 0, 0, 0
    for record in read_journal(directory / "journal.jsonl"):
        match record["kind"]:
            case "arrive":
                up, updates = up + record["bytes_up"], updates + 1
            case "task" | "evaluate":
                down += record["bytes_down"]
            case "test":
                points.append(Point(record["version"], updates, up, down, record["score"]))
    return points


def report(out: Path, target: Path) -> None:
    """Write the table, the figures behind it and the plot.

    Runs of one kind are compared after as many updates as the shortest of them has.
    """
    curves = {name: curve(out / name) for name in RUNS if (out / name / "journal.jsonl").exists()}
    for kind in ("sync", "async"):
        names = [name for name in curves if RUNS[name][0].startswith(kind)]
        updates = min((curves[name][-1].updates for name in names), default=0)
        for name in names:
            curves[name] = [point for point in curves[name] if point.updates <= updates]
    rows = [
        {
            "run": name,
            "updates": points[-1].updates,
            "final_accuracy": points[-1].accuracy,
            "best_accuracy": max(point.accuracy for point in points),
            "megabytes_up": points[-1].bytes_up / 1e6,
            "megabytes_down": points[-1].bytes_down / 1e6,
            "snapshot_bytes": snapshot_bytes(out / name),
            "bytes_per_update": points[-1].bytes_up / points[-1].updates,
            "megabytes_up_to_95": to_reach(points, 0.95),
            "curve": [[p.version, p.updates, p.bytes_up, p.bytes_down, p.accuracy] for p in points],
        }
        for name, points in curves.items()
    ]
    target.with_suffix(".json").write_text(json.dumps(rows) + "\n")
    target.with_suffix(".md").write_text(table(rows))
    page = target.with_name("README.md")
    if page.exists():
        begin, end = f"<!-- {target.name}.md -->\n", "<!-- end -->"
        before, _, rest = page.read_text().partition(begin)
        page.write_text(before + begin + table(rows) + end + rest.partition(end)[2])
    draw(curves, target.with_suffix(".png"))


def snapshot_bytes(directory: Path) -> int:
    """Return what a model takes as it is: the first that any learner was sent."""
    first: int = next(
        record["bytes_down"]
        for record in read_journal(directory / "journal.jsonl")
        if record["kind"] == "task"
    )
    return first


def to_reach(points: list[Point], accuracy: float) -> float | None:
    """Return the megabytes sent up before a test first showed this accuracy."""
    return next((p.bytes_up / 1e6 for p in points if p.accuracy >= accuracy), None)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| run | updates | final | best | bytes each | times smaller | MB up | MB up to .95 "
        "| MB down |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        reached = row["megabytes_up_to_95"]
        lines.append(
            f"| {row['run']} | {row['updates']:,} | {row['final_accuracy']:.4f} "
            f"| {row['best_accuracy']:.4f} | {row['bytes_per_update']:,.0f} "
            f"| {row['snapshot_bytes'] / row['bytes_per_update']:.1f} | {row['megabytes_up']:,.1f} "
            f"| {'-' if reached is None else f'{reached:,.1f}'} | {row['megabytes_down']:,.1f} |"
        )
    return "\n".join(lines) + "\n"


def draw(curves: dict[str, list[Point]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_round, by_bytes, by_share) = pyplot.subplots(1, 3, figsize=(16, 4.6))
    for name in ("dense", "int8", "stc", "sstc-0.125", "stc-ef", "sstc-0.125-ef"):
        if name not in curves:
            continue
        points = curves[name][1:]
        scores = [point.accuracy for point in points]
        by_round.plot([point.version for point in points], scores, label=name)
        by_bytes.plot([point.bytes_up / 1e6 for point in points], scores, label=name)
    by_round.set(xlabel="round", ylabel="test accuracy", title="accuracy per round")
    by_bytes.set(
        xlabel="megabytes sent up, all learners", title="accuracy per megabyte", xscale="log"
    )
    for axes in (by_round, by_bytes):
        axes.set_ylim(0.8, 1.0)
        axes.grid(alpha=0.3)
    if by_round.lines:
        by_round.legend(loc="lower right")
    found = [(share, curves[f"sstc-{share:g}"]) for share in SHARES if f"sstc-{share:g}" in curves]
    by_share.plot(
        [100 * share for share, _ in found],
        [max(p.accuracy for p in points) for _, points in found],
        "o-",
        label="SSTC",
    )
    if "stc" in curves:
        best = max(point.accuracy for point in curves["stc"])
        by_share.axhline(best, color="grey", linestyle="--", label="STC")
    by_share.set(xlabel="kernels kept, %", ylabel="best accuracy", title="share of kernels")
    by_share.grid(alpha=0.3)
    by_share.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
