"""How many events a second the simulator gets through when learning itself costs nothing.

    python benchmarks/agenda.py [--quick] [--out FILE.json]

An event is one item popped from the agenda: a task reaching its learner, an epoch done, an update
or a score reaching the controller. Learners compute nothing and models have four values, so what
is left is agenda, controller, codec and journal, which is written to a file as in a real run. The
yardstick is a bare `heapq` loop over as many items (a time, a number, a name), each popped and
followed by a push, with as many items waiting as there are learners: no agenda can be faster.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine import machine
from metis.codecs.dense import Dense
from metis.config import Group
from metis.core.community import CachedAverage, Community, RoundAverage
from metis.core.controller import Controller
from metis.core.local_run import TestResult
from metis.core.pacing import Async, Pacing, Sync
from metis.core.triggers import AfterEpochs
from metis.core.types import (
    ClassCounts,
    Counts,
    Layout,
    LearnerId,
    Profile,
    Snapshot,
    Task,
    Tensor,
    Vector,
    frozen,
)
from metis.core.weighting import ByExamples, ByValidation, Weighting
from metis.runtime.journal import Journal
from metis.runtime.simulate import Plan, Simulation

EPOCHS = 4  # per task, the paper's uf
LAYOUT = Layout((Tensor("weight", (4,), "plain", 0),))
TARGET_EVENTS_PER_SECOND = 20_000  # of the first case


@dataclass(frozen=True, slots=True)
class Case:
    """One composition to time, and how many agenda items of it."""

    pacing: str
    num_events: int

    def parts(self) -> tuple[Community, Weighting, Pacing]:
        match self.pacing:
            case "async":
                return CachedAverage(), ByExamples(), Async()
            case "sync":
                return RoundAverage(), ByExamples(), Sync()
            case "sync, 50 at a time, judged":
                return RoundAverage(), ByValidation(), Sync(sample=50)
            case "async, 50 at a time, judged":
                return CachedAverage(), ByValidation(), Async(sample=50)
        raise ValueError(self.pacing)


CASES = (
    Case("async", 400_000),
    Case("sync", 400_000),
    Case("sync, 50 at a time, judged", 200_000),
    Case("async, 50 at a time, judged", 50_000),
)


class Idle:
    """Learners that do nothing, and judges that always count the same."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self._profiles = profiles
        self._weights = frozen(np.ones(4))
        self._counts = ClassCounts(np.array([[3, 1], [1, 5]]))

    def profiles(self) -> Sequence[Profile]:
        return self._profiles

    def begin(self, task: Task, with_loss: bool) -> None:
        pass

    def expect(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        return ()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def finish(self, learner: LearnerId) -> Vector:
        return self._weights

    def abandon(self, learner: LearnerId) -> None:
        pass

    def depart(self, learner: LearnerId) -> None:
        self.abandon(learner)

    def ask(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        return [0] * len(judges)

    def answer(self, question: int) -> Counts | None:
        return self._counts

    def test(self, weights: Vector) -> TestResult:
        return TestResult(score=0.5, loss=1.0)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 learners, a second")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    num_learners = 1_000 if options.quick else 10_000
    share = 50 if options.quick else 1
    load_average = os.getloadavg()[0]  # what others were doing meanwhile matters most of all

    rows = [measure(case, num_learners, case.num_events // share) for case in CASES]
    first = rows[0]["events_per_second"]
    result = {
        "machine": machine(load_average),
        "rows": rows,
        "targets": {
            "async_events_per_second": {
                "found": first,
                "at_least": TARGET_EVENTS_PER_SECOND,
                "met": first >= TARGET_EVENTS_PER_SECOND,
            }
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def measure(case: Case, num_learners: int, num_events: int) -> dict[str, Any]:
    """Time one case; setting it up is not timed, and neither is the first tenth of it."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        simulation = simulation_of(case, num_learners, journal)
        run(simulation, num_events // 10)
        start = time.perf_counter()
        done = run(simulation, num_events)
        seconds = time.perf_counter() - start
        journal.close()
    reference = bare_heap_seconds(num_learners, done)
    return {
        "pacing": case.pacing,
        "learners": num_learners,
        "events": done,
        "seconds": seconds,
        "events_per_second": done / seconds,
        "reference_seconds": reference,
        "ratio_to_reference": seconds / reference,
    }


def simulation_of(case: Case, num_learners: int, journal: Journal) -> Simulation:
    """Return a federation of learners that differ in speed by up to ten times, at its start."""
    names = [LearnerId(f"learner-{i:05d}") for i in range(1, num_learners + 1)]
    profiles = {name: Profile(name, num_examples=100, steps_per_epoch=10) for name in names}
    speeds = np.random.default_rng(1990).uniform(0.03, 0.3, num_learners).tolist()
    plan = Plan(
        lease_seconds=3600.0,
        deadline_seconds=600.0,
        profiles=profiles,
        costs={
            name: Group(
                seconds_per_step=seconds,
                seconds_per_evaluated_example=0.001,
                request_overhead_seconds=0.0,
            )
            for name, seconds in zip(names, speeds, strict=True)
        },
        triggers=dict.fromkeys(names, AfterEpochs(EPOCHS)),
        validation_examples=dict.fromkeys(names, 5),
        batch_size=10,
        last_batch="fill",
        no_single=False,
        upload=Dense(LAYOUT),
        snapshot_bytes=Dense(LAYOUT).num_bytes,
        test_every=num_learners,
    )
    community, weighting, pacing = case.parts()
    start = Snapshot(0, frozen(np.zeros(4)))
    controller = Controller(community, weighting, pacing, start, min_learners=num_learners)
    simulation = Simulation(plan, controller, Idle(list(profiles.values())), journal)
    simulation.start()
    return simulation


def run(simulation: Simulation, num_events: int) -> int:
    """Do so many items of the agenda; return how many were done."""
    for done in range(num_events):
        if not simulation.step():
            return done
    return num_events


def bare_heap_seconds(num_waiting: int, num_events: int) -> float:
    """Return how long it takes to pop and push so many items, with so many waiting."""
    delays = np.random.default_rng(1990).uniform(0.3, 3.0, 4096).tolist()
    agenda = [(delays[i % 4096], i, f"learner-{i:05d}") for i in range(num_waiting)]
    heapq.heapify(agenda)
    start = time.perf_counter()
    for number in range(num_waiting, num_waiting + num_events):
        now, _, name = heapq.heappop(agenda)
        heapq.heappush(agenda, (now + delays[number % 4096], number, name))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
