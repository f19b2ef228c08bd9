"""Reference journals: every policy with three ways to pack models, from one config and toys.

Learners compute nothing that a processor could round in a way of its own: their models, counts and
losses follow from hashes. So a journal is the same on every machine, and a change of one byte in it
is a change of behaviour. `journals.jsonl.gz` keeps them; only a commit that says why changes it:

    python -m tests.golden.journals
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metis.config import Config, Incident, dump, load
from metis.core.learners import TestResult
from metis.core.policies import POLICIES
from metis.core.types import (
    ClassCounts,
    Counts,
    Layout,
    LearnerId,
    Profile,
    Snapshot,
    Task,
    Vector,
    read_only,
)
from metis.federation.build import build_controller, recipe_of
from metis.journal.file import Journal, Record
from metis.simulation.plan import plan_of
from metis.simulation.simulator import Simulation

FOLDER = Path(__file__).parent
FILE = FOLDER / "journals.jsonl.gz"
NUM_CLASSES = 4
LAYOUT = Layout.of_rows(
    [
        ("0.weight", (8, 2, 3, 3), "conv"),
        ("0.bias", (8,), "plain"),
        ("1.running_mean", (8,), "buffer"),
        ("1.running_var", (8,), "buffer"),
        ("2.weight", (4, 24), "dense"),
        ("2.bias", (4,), "plain"),
    ]
)
CODECS: Mapping[str, Sequence[str]] = {
    "dense": (),
    "stc": ("upload.codec=stc", "upload.sparsity=0.1", "upload.error_feedback=true"),
    "sstc-int8": ("upload.codec=sstc", "upload.kernels=0.25", "download.codec=int8"),
}
#: What can go wrong, and what else a config can ask for: by name, a policy and more settings.
FAULTS = (
    Incident(3.0, "learner-01", "crash"),
    Incident(9.0, "learner-01", "restart"),
    Incident(4.0, "learner-02", "slow", 3.0),
    Incident(6.0, "learner-03", "leave"),
    Incident(14.0, "learner-03", "join"),
    Incident(5.0, "learner-04", "join"),
)
MORE: Mapping[str, tuple[str, Sequence[str], Sequence[Incident]]] = {
    "faults in rounds": ("sync-dvw", (), FAULTS),
    "faults without rounds": ("async-dvw-adaptive", ("upload.codec=stc",), FAULTS),
    "withdrawn": ("async-dvw", (), (Incident(3.0, "learner-02", "withdraw"),)),
    "a plateau": ("sync-dvw", ("train.schedule=plateau", "train.schedule_versions=2"), ()),
    "released": ("async-dvw", ("validation.release_last=4",), ()),
    "sampled": ("sync-dvw", ("recipe.sample=2", "recipe.min_learners=4"), ()),
    "late": (
        "async-dvw",
        ("train.lease_seconds=5", "validation.deadline_seconds=2", "horizon.versions=24"),
        (
            Incident(1.0, "learner-04", "crash"),
            Incident(9.0, "learner-04", "restart"),
            Incident(1.0, "learner-02", "slow", 20.0),
        ),
    ),
    "judged by others": ("async-dvw", ("validation.self_score=exclude",), ()),
}
EXAMPLES = (57, 31, 20, 12)
HELD_OUT = 3


def _chance(*key: object) -> np.random.Generator:
    seed = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(np.frombuffer(seed, dtype=np.uint32))


@dataclass(slots=True)
class Toy:
    """Learners whose models, losses and counts follow from who they are and what they were sent."""

    tasks: dict[LearnerId, Task] = field(default_factory=dict)
    with_loss: dict[LearnerId, bool] = field(default_factory=dict)
    steps: dict[LearnerId, int] = field(default_factory=dict)
    requests: list[tuple[Vector, LearnerId]] = field(default_factory=list)

    def begin(self, task: Task, with_loss: bool) -> None:
        self.tasks[task.learner], self.with_loss[task.learner] = task, with_loss
        self.steps[task.learner] = 0

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        first = self.steps[learner] == 0
        self.steps[learner] += num_steps
        if not self.with_loss[learner]:
            return ()
        losses = [self._loss(learner, 0)] if first else []
        return (*losses, self._loss(learner, self.steps[learner]))

    def _loss(self, learner: LearnerId, steps: int) -> float:
        task = self.tasks[learner]
        noise = int(_chance("loss", learner, task.ordinal, steps).integers(-64, 65))
        return (1024 - 32 * min(steps, 16) + noise) / 1024  # exact in binary

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def finish(self, learner: LearnerId) -> Vector:
        task, steps = self.tasks.pop(learner), self.steps.pop(learner)
        # A rate and a step that are powers of two: the sum below is one rounding to float32.
        by = _chance("step", learner, task.ordinal, steps, task.all_examples).integers(
            -4096, 4097, LAYOUT.size
        )
        moved = task.start.weights + (by * (task.rate_factor / 65536)).astype(np.float32)
        for start, stop in LAYOUT.spans("buffer"):
            moved[start:stop] = np.abs(moved[start:stop])
        return read_only(moved.astype(np.float32))

    def abandon(self, learner: LearnerId) -> None:
        self.tasks.pop(learner, None)
        self.steps.pop(learner, None)

    def forget(self, judge: LearnerId) -> None:
        pass

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        first = len(self.requests)
        self.requests += [(weights, judge) for judge in judges]
        return list(range(first, len(self.requests)))

    def take_counts(self, request: int) -> Counts | None:
        weights, judge = self.requests[request]
        chance = _chance("judge", judge, hashlib.sha256(weights.tobytes()).digest())
        rows = chance.integers(0, NUM_CLASSES, size=(NUM_CLASSES, HELD_OUT))
        return ClassCounts(
            np.array([np.bincount(row, minlength=NUM_CLASSES) for row in rows], dtype=np.int64)
        )

    def test(self, weights: Vector) -> TestResult:
        chance = _chance("test", hashlib.sha256(weights.tobytes()).digest())
        return TestResult(int(chance.integers(1024)) / 1024, int(chance.integers(4096)) / 1024)


def names() -> list[str]:
    """Return the name of every reference journal."""
    return [f"{policy} {codec}" for policy in sorted(POLICIES) for codec in CODECS] + list(MORE)


def config_of(name: str) -> Config:
    """Return the config of a reference journal. `base.toml` has every key written out."""
    incidents: Sequence[Incident] = ()
    if name in MORE:
        policy, settings, incidents = MORE[name]
    else:
        policy, _, codec = name.partition(" ")
        settings = CODECS[codec]
    overrides = [f"policy={policy}", *settings]
    return load(FOLDER / "base.toml", overrides, incidents=tuple(incidents))


def missing_keys(text: str, config: Config) -> set[str]:
    """Return the keys with a value in a config that a text does not write out."""
    written, there = tomllib.loads(dump(config)), tomllib.loads(text)

    def keys(table: Mapping[str, Any], path: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in table.items():
            inner = f"{path}{name}"
            found |= keys(value, f"{inner}.") if isinstance(value, dict) else {inner}
        return found

    return keys(written) - keys(there)


def journal_of(config: Config) -> list[str]:
    """Simulate toy learners; return the records as they are written, but for real seconds."""
    learners = [LearnerId(name) for name in config.learner_names()]
    groups = ("fast", "fast", "slow", "slow")
    profiles = {}
    for name, examples, group in zip(learners, EXAMPLES, groups, strict=True):
        steps, full = -(-examples // 10), -(-(examples + HELD_OUT) // 10)
        profiles[name] = Profile(name, examples, steps, group, NUM_CLASSES * HELD_OUT, full)
    held_out = dict.fromkeys(learners, NUM_CLASSES * HELD_OUT)
    first = _chance("initial").integers(-1024, 1025, LAYOUT.size) / 2048
    start = Snapshot(0, read_only(first.astype(np.float32)))
    controller = build_controller(config, start, LAYOUT, NUM_CLASSES)
    plan = plan_of(config, profiles, held_out, False, LAYOUT, recipe_of(config))
    records: list[Record] = []
    journal = Journal(None, (records.append,))
    packets: list[str] = []

    def keep(task: int, packet: bytes) -> None:
        packets.append(f"{task} {hashlib.sha256(packet).hexdigest()[:16]}")

    toys = Toy()
    simulation = Simulation(plan, controller, toys, toys, journal, keep=keep)
    simulation.start()
    while simulation.step():
        pass
    told = [{key: one[key] for key in one if "wall" not in key} for one in records]
    return [json.dumps(record) for record in told] + packets


def journals() -> Iterator[tuple[str, list[str]]]:
    """Yield every reference journal as today's code makes it."""
    for name in names():
        yield name, journal_of(config_of(name))


def kept() -> dict[str, list[str]]:
    """Return the reference journals of the file."""
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        rows: list[Any] = [json.loads(line) for line in file]
    return {row["name"]: row["records"] for row in rows}


def write() -> None:
    """Write the file. The same journals give the same bytes."""
    lines = [json.dumps({"name": name, "records": records}) for name, records in journals()]
    FILE.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


if __name__ == "__main__":
    write()
