"""The controller against random schedules, with an obvious account kept beside it.

`METIS_FUZZ_SCHEDULES` sets the number of schedules for each combination (docs/soak.md).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest

from metis.core.community import Buffer, CachedAverage, Community, Mixing, RoundAverage
from metis.core.controller import Controller
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    Event,
    Joined,
    Left,
    Publish,
    Refuse,
    Train,
)
from metis.core.pacing import Async, Buffered, Pacing, SemiSync, Sync
from metis.core.server_step import FedAvgM, Stepped
from metis.core.types import LearnerId, Profile, Snapshot, Update, Vector, frozen
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal, Weighting
from tests.fuzz.account import Account, relative_error
from tests.fuzz.schedules import MODELS, SIZE, Schedule
from tests.fuzz.slow_communities import (
    SlowBuffer,
    SlowCache,
    SlowCommunity,
    SlowMixing,
    SlowMomentum,
    SlowRound,
)

Answers: TypeAlias = dict[str, tuple[Vector, int]]

NUM_SCHEDULES = int(os.environ.get("METIS_FUZZ_SCHEDULES", "2000"))


@dataclass(frozen=True, slots=True)
class Combination:
    """A pacing and a weighting, with a community that fits."""

    pacing: Sync | SemiSync | Async | Buffered
    weighting: Weighting
    community: Callable[[], Community]
    slow: Callable[[], SlowCommunity]


WEIGHTINGS: dict[str, Weighting] = {
    "equal": Equal(),
    "examples": ByExamples(),
    "validation": ByValidation(),
    "validation-by-others": ByValidation(judged_by="others"),
    "staleness": ByStaleness(),
}


def combinations() -> dict[str, Combination]:
    found: dict[str, Combination] = {}
    for name, weighting in WEIGHTINGS.items():
        found[f"sync-{name}"] = Combination(Sync(), weighting, RoundAverage, SlowRound)
        found[f"semisync-{name}"] = Combination(SemiSync(), weighting, RoundAverage, SlowRound)
        found[f"async-{name}"] = (
            Combination(Async(), weighting, Mixing, SlowMixing)
            if name == "staleness"
            # Now and then a repair, so that it is fuzzed too.
            else Combination(Async(), weighting, partial(CachedAverage, 7), SlowCache)
        )
        # Example counts are no fractions: at a higher server rate the model itself would diverge.
        rate = 0.01 if name == "examples" else 0.8
        found[f"buffered-{name}"] = Combination(
            Buffered(), weighting, partial(Buffer, rate), partial(SlowBuffer, rate)
        )
    found["sync-examples-with-server-momentum"] = Combination(
        Sync(),
        ByExamples(),
        lambda: Stepped(RoundAverage(), FedAvgM(0.5, 0.7)),
        lambda: SlowMomentum(0.5, 0.7),
    )
    return found


COMBINATIONS = combinations()


@dataclass(frozen=True, slots=True)
class Federation:
    """All that a schedule starts from; every call makes a fresh controller or account."""

    combination: Combination
    pacing: Pacing
    min_learners: int
    num_learners: int

    def controller(self) -> Controller:
        c = self.combination
        return Controller(
            c.community(), c.weighting, self.pacing, Snapshot(0, MODELS[0]), self.min_learners
        )

    def account(self, controller: Controller) -> Account:
        c = self.combination
        return Account(self.pacing, c.weighting, c.slow(), controller.current, self.min_learners)


def federation(combination: Combination, rng: random.Random) -> Federation:
    """Draw what is not the combination's business; every second schedule samples learners."""
    pacing = replace(
        combination.pacing, sample=rng.choice((None, None, None, 1, 2, 3)), seed=rng.randrange(9)
    )
    if isinstance(pacing, SemiSync):
        pacing = replace(pacing, epochs_of_slowest=rng.choice((0.5, 1.0, 2.0)))
    elif isinstance(pacing, Buffered):
        pacing = replace(pacing, size=rng.randint(1, 4))
    return Federation(combination, pacing, rng.randint(1, 3), rng.randint(2, 5))


def play(made: Federation, rng: random.Random) -> tuple[list[Event], list[list[Command]], int]:
    """Run one schedule; return its events, the commands they gave and the number of folds."""
    controller = made.controller()
    account = made.account(controller)
    schedule = Schedule(rng, account, made.num_learners)
    events: list[Event] = []
    told: list[list[Command]] = []
    for _ in range(rng.randint(30, 50)):
        event = schedule.draw()
        events.append(event)
        try:
            commands = controller.handle(event)
            account.follow(event, commands)
        except Exception as error:
            raise AssertionError(report(made, events, error)) from error
        told.append(commands)
    assert controller.committed_steps == account.num_steps
    return events, told, account.num_folds


def fault(made: Federation, events: Sequence[Event]) -> str | None:
    """Return what goes wrong when a controller is told these events, if anything does."""
    controller = made.controller()
    account = made.account(controller)
    for event in events:
        try:
            account.follow(event, controller.handle(event))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


def shrink(made: Federation, events: list[Event]) -> list[Event]:
    """Leave out every event without which it still goes wrong."""
    for index in range(len(events) - 1, -1, -1):
        fewer = events[:index] + events[index + 1 :]
        if fault(made, fewer) is not None:
            events = fewer
    return events


def report(made: Federation, events: list[Event], error: Exception) -> str:
    fewest = shrink(made, events)
    lines = [
        f"{made.pacing}, {made.combination.weighting}, min_learners={made.min_learners}",
        f"after {len(events)} events: {type(error).__name__}: {error}",
        f"of these {len(fewest)} are enough for: {fault(made, fewest)}",
        *(f"  {event}" for event in fewest),
    ]
    return "\n".join(lines)


def trace(commands: Sequence[Command]) -> list[object]:
    """Return commands as values that can be compared, models as their bytes."""
    found: list[object] = []
    for command in commands:
        match command:
            case Train(task):
                start = task.start
                found.append((task.number, task.learner, start.version, start.weights.tobytes()))
                found.append((task.committed_steps, task.max_steps))
            case Publish(snapshot, folds, committed_steps, drift):
                found.append((snapshot.version, snapshot.weights.tobytes(), folds))
                found.append((committed_steps, drift))
            case Evaluate(number, judge, learner, task_number, weights):
                found.append((number, judge, learner, task_number, weights.tobytes()))
            case Refuse():
                found.append(command)
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_no_schedule_makes_the_controller_differ_from_an_obvious_account(name: str) -> None:
    num_folds = 0
    for seed in range(NUM_SCHEDULES):
        rng = random.Random(seed)
        made = federation(COMBINATIONS[name], rng)
        try:
            events, told, folded = play(made, rng)
            num_folds += folded
            if seed % 4 == 0:
                again = made.controller()
                for event, commands in zip(events, told, strict=True):
                    assert trace(again.handle(event)) == trace(commands), f"replay of {event}"
        except AssertionError as error:
            pytest.fail(f"{name}, seed {seed}\n{error}", pytrace=False)
    # A fuzzer that makes nothing happen proves nothing.
    assert num_folds > 2 * NUM_SCHEDULES


def test_the_order_of_arrival_cannot_change_a_bit_of_a_round() -> None:
    rng = random.Random(1990)
    for _ in range(200):
        names = [f"learner-{i}" for i in range(rng.randint(2, 7))]
        answers = {name: (rng.choice(MODELS), rng.randint(1, 1000)) for name in names}

        def model(order: Sequence[str], answers: Answers = answers) -> bytes:
            controller = Controller(
                RoundAverage(), ByExamples(), Sync(), Snapshot(0, MODELS[0]), len(order)
            )
            for name in order:
                controller.handle(Joined(Profile(LearnerId(name), 1, 1)))
            for name in order:
                weights, examples = answers[name]
                number = controller.task_of[LearnerId(name)]
                controller.handle(Arrived(Update(LearnerId(name), number, weights, 0, examples, 1)))
            assert controller.current.version == 1
            return controller.current.weights.tobytes()

        assert len({model(rng.sample(names, len(names))) for _ in range(4)}) == 1


def test_after_100_000_folds_the_cache_still_equals_the_full_recompute() -> None:
    """Never repaired, so that the running sum alone has to hold."""
    rng = random.Random(1990)
    community = CachedAverage(repair_every=10**9)
    start = Snapshot(0, frozen(np.zeros(SIZE)))
    controller = Controller(community, ByExamples(), Async(), start)
    names = [LearnerId(f"learner-{i:02d}") for i in range(20)]
    slow = SlowCache()
    for name in names:
        controller.handle(Joined(Profile(name, 1, 1)))

    num_folds = 0
    worst = 0.0
    while num_folds < 100_000:
        name = rng.choice(names)
        if rng.random() < 0.01 and len(controller.members) > 2:
            withdraw = rng.random() < 0.5
            controller.handle(Left(name, withdraw))
            if withdraw:
                slow.drop(name)
            continue
        if name not in controller.task_of:
            controller.handle(Joined(Profile(name, 1, 1)))
            continue
        task = controller.tasks[controller.task_of[name]]
        weights, examples = rng.choice(MODELS), rng.randint(1, 50_000)
        commands = controller.handle(
            Arrived(Update(name, task.number, weights, task.start.version, examples, 1))
        )
        assert isinstance(commands[0], Publish)
        slow.fold(name, float(examples), weights.tolist(), ())
        num_folds += 1
        if num_folds % 100 == 0:
            right = slow.model(())
            worst = max(worst, relative_error(controller.current.weights.tolist(), right))
    assert worst <= 1e-6
    assert controller.current.version == 100_000
