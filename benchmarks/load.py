"""A hundred learners at once: does a controller stay small, and how many updates does it take?

    python benchmarks/load.py [--learners 100] [--seconds 300] [--policy async-fedavg]
        [--parameters 100000] [--out FILE.json] [--plot FILE.png]

A real `metis controller` process with a state directory on disk, and so many learners in a few
processes, each with connections and threads of its own and a trainer that returns what it got. All
of it is what a federation does, but for the training: tasks, models, durable updates, commits. The
controller's resident memory is read twice a second. `growth` compares its mean in the last
fifth with that in the second fifth: the first fills what is kept for each learner.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from metis.codecs.dense import Dense
from metis.config import Config, dump, load
from metis.core.learners import TestResult
from metis.core.triggers import AfterEpochs
from metis.core.types import (
    ClassCounts,
    Counts,
    Layout,
    LearnerId,
    Profile,
    Task,
    TensorSpec,
    Vector,
)
from metis.core.types import read_only as frozen_vector
from metis.federation.build import recipe_of
from metis.federation.handshake import agreed, digest_of
from metis.journal.file import read_journal
from metis.service.grpc.client import GrpcConnection
from metis.service.mirror import Mirror
from metis.service.site import Equipment, Memory, Site
from metis.storage.weights import save_first

NUM_CLASSES = 10
PROCESSES = 4


class Still:
    """A learner that learns nothing: it is trained and scored in no time."""

    def __init__(self) -> None:
        self._weights: Vector | None = None
        self._counts = ClassCounts(np.eye(NUM_CLASSES, dtype=np.int64))

    def begin(self, task: Task, with_loss: bool) -> None:
        self._weights = task.start.weights

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        return ()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def finish(self, learner: LearnerId) -> Vector:
        assert self._weights is not None
        return self._weights

    def abandon(self, learner: LearnerId) -> None:
        self._weights = None

    def request_counts(self, weights: Vector, judges: Any) -> list[int]:
        return [0 for _ in judges]

    def take_counts(self, request: int) -> Counts | None:
        return self._counts

    def forget(self, judge: LearnerId) -> None:
        pass

    def test(self, weights: Vector) -> TestResult:
        return TestResult(0.0, 0.0)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass


def layout_of(num_parameters: int) -> Layout:
    return Layout((TensorSpec("weight", (num_parameters // 10, 10), "dense", 0),))


def attend(address: str, names: list[str], config: Config, layout: Layout) -> None:
    """Be so many learners until the controller is gone."""
    sites = []
    for name in names:
        profile = Profile(LearnerId(name), 100, 10, "fast")
        still = Still()
        equipment = Equipment(
            name=profile.learner,
            profile=profile,
            config=digest_of(agreed(config)),
            trigger=AfterEpochs(1),
            trainer=still,
            own_judge=still,
            judge=still,
            durable=still,
            upload=Dense(layout),
            is_judged=recipe_of(config).weighting.judged_by != "nobody",
        )
        mirror = Mirror(Dense(layout), Dense(layout))
        sites.append(Site(equipment, GrpcConnection(address, name), mirror, Memory()))
    threads = [threading.Thread(target=site.attend, daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    layout = layout_of(options.parameters)
    config = load(
        None,
        policy=options.policy,
        learners=options.learners,
        train={"lease_seconds": 60.0},
        output={"checkpoint_seconds": 10.0},
        recipe={"min_learners": options.learners},
    )
    (folder / "fed.toml").write_text(dump(config))
    zeros = frozen_vector(np.zeros(layout.size, np.float32))
    save_first(folder / "initial.safetensors", zeros, layout, NUM_CLASSES)
    controller = subprocess.Popen(
        [
            *(sys.executable, "-m", "metis", "controller", "--plain", "--log-level", "error"),
            *("--listen", "127.0.0.1:0", "--state", str(folder / "state")),
            *("--config", str(folder / "fed.toml")),
            *("--initial", str(folder / "initial.safetensors")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert controller.stdout is not None
    address = controller.stdout.readline().split()[2].decode()
    names = config.learner_names()
    context = multiprocessing.get_context("spawn")
    crowd = [
        context.Process(
            target=attend, args=(address, names[i::PROCESSES], config, layout), daemon=True
        )
        for i in range(PROCESSES)
    ]
    for process in crowd:
        process.start()
    memory: list[tuple[float, float]] = []
    began = time.monotonic()
    while (now := time.monotonic() - began) < options.seconds:
        memory.append((round(now, 1), round(resident_mib(controller.pid), 1)))
        if int(2 * now) % 30 == 0:
            print(f"{now:5.0f} s  {memory[-1][1]:7.1f} MiB", file=sys.stderr)
        time.sleep(0.5)
    for process in crowd:
        process.terminate()
    controller.terminate()
    assert controller.wait(timeout=60) == 0
    return {**_found(folder / "state", options), "memory": memory, **_growth(memory)}


def _found(state: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what the journal tells, from the first version on."""
    kinds: dict[str, int] = {}
    at: list[float] = []
    folds = 0
    for record in read_journal(state / "journal.jsonl"):
        kinds[record["kind"]] = kinds.get(record["kind"], 0) + 1
        if record["kind"] == "version":
            at.append(record["at"])
            folds += len(record["folds"])
    seconds = at[-1] - at[0]
    return {
        "versions": len(at),
        "updates": folds,
        "versions_per_second": len(at) / seconds,
        "updates_per_second": folds / seconds,
        "refused_or_expired": sum(kinds.get(k, 0) for k in ("refuse", "task-expired", "fail")),
        "records": sum(kinds.values()),
        "state_mib": sum(f.stat().st_size for f in state.rglob("*") if f.is_file()) / 2**20,
        "policy": options.policy,
        "learners": options.learners,
        "parameters": options.parameters,
        "seconds": options.seconds,
    }


def _growth(memory: list[tuple[float, float]]) -> dict[str, float]:
    fifth = len(memory) // 5
    early = float(np.mean([mib for _, mib in memory[fifth : 2 * fifth]]))
    late = float(np.mean([mib for _, mib in memory[-fifth:]]))
    return {"early_mib": round(early, 1), "late_mib": round(late, 1), "growth": late / early - 1}


def plot(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*found["memory"], strict=True))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("resident MiB")
    axes.set_title(
        f"controller with {found['learners']} learners, {found['policy']}: "
        f"{found['updates_per_second']:.0f} updates/s"
    )
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--policy", default="async-fedavg")
    parser.add_argument("--parameters", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".load-") as folder:
        found = measure(options, Path(folder))
    found["machine"] = machine(load_average)
    text = json.dumps({k: v for k, v in found.items() if k != "memory"}, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(json.dumps(found) + "\n")
    if options.plot is not None:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
