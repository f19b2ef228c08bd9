"""A simulated run once more, with learners that report what its journal says they did.

Virtual time is computed, so a simulation follows from its config and from what learners
contributed: their packets, losses, counts and test results, and why they failed. Given these, the
simulator writes every record again, its moment included, and the journal compares it. Only one
thing is not in a journal: the validation loss of the model that a task starts from. Where a
trigger hangs on it (without burn-in epochs), the number of epochs in the journal decides.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from metis.config import Config
from metis.core.codec import Codec
from metis.core.controller import Controller
from metis.core.errors import JournalError, ModelError, RunError
from metis.core.local_run import Progress, TestResult, Trigger, steps_of_epoch
from metis.core.recipes import Recipe
from metis.core.types import Counts, Layout, LearnerId, Model, Profile, Snapshot, Task, Vector
from metis.runtime.agenda import Begin, LeaseEnds, World
from metis.runtime.compose import plan_of
from metis.runtime.files import JOURNAL, update_path
from metis.runtime.journal import Journal, Record, record_counts
from metis.runtime.original import Original, OutOfRecordsError
from metis.runtime.simulate import Plan, Simulation
from metis.store.atomic import read_bytes

_UNSAID = "the journal has no more `steps` of this task"


class UnsentError(Exception):
    """A learner is through with a task, but its update never arrived: its size is not known, and
    so neither is when it would have."""

    def __init__(self, learner: LearnerId) -> None:
        super().__init__(learner)
        self.learner = learner


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What must be known of a task before the journal comes to it."""

    reasons: Mapping[int, str]  # of the tasks that failed
    expired: Set[tuple[int, float]]  # tasks whose lease ran out, and when
    epochs: Mapping[int, int]  # of every task; empty where no trigger needs them


def foresee(path: Path, with_epochs: bool) -> Foreseen:
    """Look through a journal once. Lines of no interest are not parsed."""
    reasons: dict[int, str] = {}
    expired: set[tuple[int, float]] = set()
    epochs: Counter[int] = Counter()
    words = [b'"fail"', b'"task-expired"', *([b'"steps"'] if with_epochs else [])]
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n") or not any(word in line for word in words):
                continue
            record = json.loads(line)
            match record["kind"]:
                case "fail":
                    reasons[record["task"]] = record["reason"]
                case "task-expired":
                    expired.add((record["task"], record["at"]))
                case "steps":
                    epochs[record["task"]] += 1
    return Foreseen(reasons, expired, epochs)


@dataclass(slots=True)
class KeptUpdates:
    """A codec whose packets are those that were kept, whatever it is given to pack."""

    codec: Codec
    directory: Path
    reasons: Mapping[int, str]
    task: Task | None = None  # whose packet is next

    @property
    def needs_base(self) -> bool:
        return self.codec.needs_base

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        assert self.task is not None
        path = update_path(self.directory, self.task.number)
        if path.exists():
            return read_bytes(path), None
        if self.task.number in self.reasons:
            raise ModelError(self.reasons[self.task.number])
        raise UnsentError(self.task.learner)

    def decode(self, packet: bytes | memoryview, base: Vector) -> Model:
        assert self.task is not None
        try:
            return self.codec.decode(packet, base)
        except ModelError as error:
            path = update_path(self.directory, self.task.number)
            raise JournalError(f"{path} is damaged: {error}") from None


@dataclass(slots=True)
class Reported:
    """Learners that compute nothing: they did what the next record of the journal says."""

    original: Original
    kept: KeptUpdates
    foreseen: Foreseen
    tasks: dict[LearnerId, Task] = field(default_factory=dict)
    with_loss: dict[LearnerId, bool] = field(default_factory=dict)
    epochs: Counter[int] = field(default_factory=Counter)  # by task
    fresh: set[LearnerId] = field(default_factory=set)  # whose task has reported no loss yet

    def profiles(self) -> Sequence[Profile]:
        return []

    def begin(self, task: Task, with_loss: bool) -> None:
        self.tasks[task.learner], self.with_loss[task.learner] = task, with_loss
        self.fresh.add(task.learner)

    def expect(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        task = self.tasks[learner].number
        record = self._next(f"steps of task {task}")
        if (record["kind"], record.get("task")) != ("steps", task):
            raise FloatingPointError(self.foreseen.reasons.get(task, _UNSAID))
        self.epochs[task] += 1
        loss = record["loss"]
        if self.with_loss[learner] != isinstance(loss, float):
            wanted = "a number" if self.with_loss[learner] else "null"
            raise self.original.ahead(f"loss is {loss}; under this policy it is {wanted}")
        if loss is None:
            return ()
        first = learner in self.fresh
        self.fresh.discard(learner)
        return (loss, loss) if first else (loss,)  # for the first see `Offers`

    def is_last(self, learner: LearnerId) -> bool:
        """Whether the journal has no further epoch of the learner's task."""
        task = self.tasks[learner].number
        return self.epochs[task] >= self.foreseen.epochs.get(task, 0)

    def finish(self, learner: LearnerId) -> Vector:
        self.kept.task = self.tasks[learner]
        return self.tasks[learner].start.weights

    def abandon(self, learner: LearnerId) -> None:
        pass

    def depart(self, learner: LearnerId) -> None:
        pass

    def ask(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        return [0] * len(judges)

    def answer(self, question: int) -> Counts | None:
        return record_counts(self._next("arrive or score").get("counts"))

    def test(self, weights: Vector) -> TestResult:
        record = self._next("test")
        score, loss = record.get("score"), record.get("loss")
        return TestResult(math.nan if score is None else score, math.nan if loss is None else loss)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass

    def close(self) -> None:
        pass

    def _next(self, wanted: str) -> Record:
        record = self.original.peek()
        if record is None:
            raise OutOfRecordsError(wanted)
        return record


@dataclass(frozen=True, slots=True)
class Offers:
    """A learner's trigger, where the loss of the model that the learner received is not known.

    Two extremes bound what it could say: that the first epoch did not help, and that it helped
    more than any could. Where they differ, the journal decides.
    """

    trigger: Trigger
    learner: LearnerId
    reported: Reported

    @property
    def needs_loss(self) -> bool:
        return self.trigger.needs_loss

    @property
    def certain_epochs(self) -> int:
        return self.trigger.certain_epochs

    def __call__(self, progress: Progress) -> bool:
        if not progress.losses:
            return self.trigger(progress)
        first, *rest = progress.losses
        helped = replace(progress, losses=(1e9 * max(1.0, abs(first)), *rest))
        answers = {self.trigger(progress), self.trigger(helped)}
        return answers.pop() if len(answers) == 1 else self.reported.is_last(self.learner)


@dataclass(frozen=True, slots=True)
class SimulatedReplay:
    """Where a simulation came to: its last version, the best one tested, and if it is over."""

    last: Snapshot
    best: Snapshot | None
    missing: str | None  # the record that is the first to be made after the journal's last


def replay_simulated(
    original: Original,
    header: Record,
    config: Config,
    controller: Controller,
    layout: Layout,
    directory: Path,
    chosen: Recipe,
) -> SimulatedReplay:
    """Simulate a run again. `header` is its first record, which is taken already."""
    without_burn_in = config.train.burn_in_epochs == 0
    foreseen = foresee(directory / JOURNAL, with_epochs=without_burn_in)
    plan = _plan(header, config, layout, chosen)
    kept = KeptUpdates(plan.upload, directory, foreseen.reasons)
    reported = Reported(original, kept, foreseen)
    triggers = {name: Offers(one, name, reported) for name, one in plan.triggers.items()}
    best: list[Snapshot] = []

    def tested(snapshot: Snapshot, is_best: bool) -> None:
        if is_best:
            best[:] = [snapshot]

    def compare(made: Record) -> None:
        told = original.peek()
        if told is not None and told["kind"] == "arrive":
            path = update_path(directory, told["task"])
            if not path.exists():
                raise original.ahead(f"{path} is missing")
        if told is not None and made.get("reason") == _UNSAID:
            raise original.ahead(f"where the replay makes steps or fail of task {made['task']}")
        original.compare(made)

    simulation = Simulation(
        replace(plan, upload=kept, triggers=triggers),
        controller,
        reported,
        Journal(None, (compare,)),
        keep=lambda task, packet: None,
        tested=tested,
    )
    missing = None
    try:
        simulation.start()
        while _step(simulation, original, foreseen):
            pass
    except OutOfRecordsError as error:
        missing = error.made
    except RunError:
        if simulation.world.ended is None:
            raise
    if missing is None and original.peek() is not None:
        raise original.ahead("it comes after the end")
    return SimulatedReplay(controller.current, best[0] if best else None, missing)


def _step(simulation: Simulation, original: Original, foreseen: Foreseen) -> bool:
    world = simulation.world
    if world.agenda and world.agenda[0][0] == math.inf:
        _forget_unsent(world, original.peek())
    try:
        return simulation.step()
    except UnsentError as error:
        learner, lease_seconds = error.learner, simulation.plan.lease_seconds
        task = world.runs[learner].task
        renewal = world.renewals[learner] = world.renewals.get(learner, 0) + 1
        if (task.number, world.now + lease_seconds) in foreseen.expired:  # longer than a lease
            world.schedule(lease_seconds, None, LeaseEnds(task.number, learner, renewal))
        # Whatever is under way for ever arrives after the end of time.
        world.schedule(math.inf, learner, Begin(task))
        return True


def _forget_unsent(world: World, told: Record | None) -> None:
    """Nothing is on the agenda but updates that never arrived. Where the run did not last as long
    as it could, those of learners that are gone were off the agenda before its end."""
    if told is not None and told.get("reason") != "seconds":
        world.agenda = [item for item in world.agenda if item[2] and world.is_alive(item[2])]


def _plan(header: Record, config: Config, layout: Layout, chosen: Recipe) -> Plan:
    batch_size, last_batch = config.train.batch_size, config.train.last_batch
    assert batch_size is not None
    no_single = any(tensor.kind == "buffer" for tensor in layout.tensors)  # batch-norm has some
    profiles, validation = {}, {}
    for row in header["learners"]:
        name, num_examples = LearnerId(row["learner"]), row["examples"]
        held_out = row["validation_examples"]
        num_steps, full = (
            steps_of_epoch(count, batch_size, last_batch)
            for count in (num_examples, num_examples + held_out)
        )
        more = (held_out, full if held_out else None)
        profiles[name] = Profile(name, num_examples, num_steps, row["group"], *more)
        validation[name] = held_out
    return plan_of(config, profiles, validation, no_single, layout, chosen)
