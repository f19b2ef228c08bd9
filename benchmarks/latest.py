"""What it costs to keep each learner's latest model on disk: memory, and the time of a commit.

    python benchmarks/latest.py [--quick] [--learners 200] [--size 1000000] [--out FILE.json]

Each place, memory and disk, is measured in a process of its own: its resident memory before there
is a model and after every learner has folded twice, and the median time of a commit (fold and
community model). Resident memory is given as the system does: `anonymous` is what cannot be given
back, `files` are pages of mapped files, which it takes away when it needs them. What it caches of
files beside that belongs to no process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from metis.core.community import CachedAverage, Models
from metis.core.kernels import shift, shift_and_divide
from metis.core.types import LearnerId, Update, frozen
from metis.store.latest import LatestOnDisk

PLACES = ("memory", "disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 learners with 100,000 values")
    parser.add_argument("--learners", type=int, default=200)
    parser.add_argument("--size", type=int, default=1_000_000, help="values of a model")
    parser.add_argument("--folder", help="where to keep models; default: a temporary one")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--place", choices=PLACES, help="measure this one only, in this process")
    options = parser.parse_args()
    learners, size = (20, 100_000) if options.quick else (options.learners, options.size)
    if options.place:
        print(json.dumps(measure(options.place, learners, size, options.folder)))
        return
    load_average = os.getloadavg()[0]
    found = {place: _apart(place, learners, size, options.folder) for place in PLACES}
    result = {
        "machine": machine(load_average),
        "learners": learners,
        "parameters": size,
        **found,
        "disk_to_memory_seconds": found["disk"]["commit_seconds"]
        / found["memory"]["commit_seconds"],
        "disk_to_memory_anonymous": found["disk"]["anonymous_bytes"]
        / found["memory"]["anonymous_bytes"],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def _apart(place: str, learners: int, size: int, folder: str | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--place", place]
    command += ["--learners", str(learners), "--size", str(size)]
    command += ["--folder", folder] if folder else []
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(text)
    return found


def measure(place: str, learners: int, size: int, folder: str | None) -> dict[str, Any]:
    """Return the resident memory of a cache with all its models, and what a commit takes."""
    rng = np.random.default_rng(1990)
    pattern = rng.normal(size=size).astype(np.float32)
    names = [LearnerId(f"{i:04d}") for i in range(learners)]
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        models: Models = dict[LearnerId, Any]()
        if place == "disk":
            models = on_disk = LatestOnDisk(directory)
            on_disk.open(Path(directory))
        community, current = CachedAverage(latest=models), frozen(pattern)
        for loop in (shift, shift_and_divide):  # compiled now, so that no model is charged for it
            loop(np.zeros(size), 1.0, 1.0, current, 1.0, current, mass=1.0)
        before = resident()
        seconds = []
        for turn in range(2):
            for i, name in enumerate(names):
                weights = frozen(pattern * np.float32(1 + turn + i / learners))
                update = Update(name, 0, weights, base_version=0, num_examples=1, num_steps=1)
                began = time.perf_counter()
                community.fold(update, 0.5 + i / learners, current)
                current = community.model(current).weights
                seconds.append(time.perf_counter() - began)
        after = resident()
    return {
        "commit_seconds": statistics.median(seconds[learners:]),  # those that replace a model
        "anonymous_bytes": after["RssAnon"] - before["RssAnon"],
        "files_bytes": after["RssFile"] - before["RssFile"],
        "models_bytes": 4 * size * learners,
    }


def resident() -> dict[str, int]:
    """Return the bytes of this process that are in memory, by kind (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        line.split(":")[0]: 1024 * int(line.split()[1])
        for line in lines
        if line.startswith(("RssAnon", "RssFile"))
    }


if __name__ == "__main__":
    main()
