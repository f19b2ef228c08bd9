"""Every pacing with every weighting, played against an account and replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from metis.core.community import Buffer, CachedAverage, Community, Mixing, RoundAverage
from metis.core.controller import Controller
from metis.core.events import Command, Evaluate, Event, Publish, Refuse, Train
from metis.core.pacing import Async, Buffered, Continuous, Pacing, Rounds, SemiSync, Sync
from metis.core.server_step import FedAvgM, Stepped
from metis.core.types import Snapshot, dense
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal, Weighting
from tests.fuzz.account import Account
from tests.fuzz.schedules import MODELS, Schedule
from tests.fuzz.slow_communities import (
    SlowBuffer,
    SlowCache,
    SlowCommunity,
    SlowMixing,
    SlowMomentum,
    SlowRound,
)


@dataclass(frozen=True, slots=True)
class Combination:
    """A pacing and a weighting, with a community that fits."""

    pacing: Rounds | Continuous
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
REPLAY_EVERY = 4  # schedules; a replay costs as much as the controller's part of a play


@dataclass(frozen=True, slots=True)
class Federation:
    """All that a schedule starts from; every call makes a fresh controller or account."""

    combination: Combination
    pacing: Pacing
    min_learners: int
    num_learners: int
    release_from: int | None = None

    def controller(self) -> Controller:
        c = self.combination
        return Controller(
            c.community(),
            c.weighting,
            self.pacing,
            Snapshot(0, MODELS[0]),
            self.min_learners,
            release_from=self.release_from,
        )

    def account(self, controller: Controller) -> Account:
        c = self.combination
        slow, start = c.slow(), controller.current
        return Account(self.pacing, c.weighting, slow, start, self.min_learners, self.release_from)


def federation(combination: Combination, rng: random.Random) -> Federation:
    """Draw what is not the combination's business; every second schedule samples learners."""
    pacing = replace(
        combination.pacing, sample=rng.choice((None, None, None, 1, 2, 3)), seed=rng.randrange(9)
    )
    if isinstance(pacing, Rounds) and pacing.epochs_of_slowest is not None:
        pacing = replace(pacing, epochs_of_slowest=rng.choice((0.5, 1.0, 2.0)))
    elif isinstance(pacing, Continuous) and pacing.size > 1:
        pacing = replace(pacing, size=rng.randint(1, 4))
    release_from = rng.choice((None, None, None, 0, 2, 4))
    return Federation(combination, pacing, rng.randint(1, 3), rng.randint(2, 5), release_from)


def play(made: Federation, rng: random.Random) -> tuple[list[Event], list[list[Command]], Account]:
    """Run one schedule; return its events, the commands they gave, and the account of it all."""
    controller = made.controller()
    account = made.account(controller)
    sparse, huge = rng.choice((0.0, 0.0, 0.5, 1.0)), rng.choice((0.0, 0.0, 0.0, 0.7))
    schedule = Schedule(rng, account, made.num_learners, sparse, huge)
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
    return events, told, account


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
        f"{made.pacing}, {made.combination.weighting}, min_learners={made.min_learners}, "
        f"release_from={made.release_from}",
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
                found.append((task.committed_steps, task.max_steps, task.all_examples))
            case Publish(snapshot, folds, committed_steps, drift):
                found.append((snapshot.version, snapshot.weights.tobytes(), folds))
                found.append((committed_steps, drift))
            case Evaluate(number, judge, learner, task_number, base_version, weights):
                found.append((number, judge, learner, task_number, base_version))
                found.append(dense(weights).tobytes())
            case Refuse():
                found.append(command)
    return found


@dataclass(slots=True)
class Tally:
    """How much happened: a fuzzer that makes nothing happen proves nothing."""

    schedules: int = 0
    events: int = 0
    replayed_events: int = 0
    folds: int = 0
    versions: int = 0
    rejected: int = 0


def fuzz(name: str, num_schedules: int) -> Tally:
    """Play schedules 0, 1, 2, ... of a combination; AssertionError tells of the first fault."""
    tally = Tally()
    for seed in range(num_schedules):
        rng = random.Random(f"{name} {seed}")
        made = federation(COMBINATIONS[name], rng)
        try:
            events, told, account = play(made, rng)
            if seed % REPLAY_EVERY == 0:
                tally.replayed_events += replay(made, events, told)
        except AssertionError as error:
            raise AssertionError(f"{name}, seed {seed}\n{error}") from error
        tally.schedules += 1
        tally.events += len(events)
        tally.folds += account.num_folds
        tally.versions += account.current.version
        tally.rejected += account.num_rejected
    return tally


def replay(made: Federation, events: Sequence[Event], told: Sequence[Sequence[Command]]) -> int:
    """Tell a fresh controller the same events; return how many gave the same commands and bytes."""
    again = made.controller()
    for event, commands in zip(events, told, strict=True):
        assert trace(again.handle(event)) == trace(commands), f"replay of {event} differs"
    return len(events)
