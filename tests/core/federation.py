"""Words for tests of the controller: events in, commands out, nothing in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from metis.core.community import CachedAverage, Community, RoundAverage
from metis.core.controller import Controller
from metis.core.events import Arrived, Command, Evaluate, Joined, Publish, Refuse, Scored, Train
from metis.core.pacing import Pacing
from metis.core.types import ClassCounts, Counts, LearnerId, Profile, Snapshot, Task, Update, Vector
from metis.core.types import read_only as as_vector
from metis.core.weighting import Equal, Weighting


def vector(*values: float) -> Vector:
    return as_vector(np.array(values, np.float32))


def profile(name: str, num_examples: int = 10, steps_per_epoch: int = 5) -> Profile:
    return Profile(LearnerId(name), num_examples, steps_per_epoch)


def federation(
    pacing: Pacing,
    weighting: Weighting | None = None,
    community: Community | None = None,
    members: Iterable[str] = "abc",
    start: Vector | None = None,
) -> Controller:
    """Return a controller whose members have all joined, and so have their first task."""
    names = list(members)
    controller = Controller(
        community=community or (RoundAverage() if pacing.rounds else CachedAverage()),
        weighting=weighting or Equal(),
        pacing=pacing,
        current=Snapshot(0, vector(0, 0) if start is None else start),
        min_learners=max(1, len(names)),
    )
    for name in names:
        controller.handle(Joined(profile(name)))
    return controller


def task_of(controller: Controller, name: str) -> Task:
    return controller.tasks[controller.task_of[LearnerId(name)]]


def answer(
    task: Task,
    *weights: float,
    num_examples: int = 10,
    num_steps: int = 5,
    seconds: float = 0.0,
    counts: Counts | None = None,
) -> Update:
    """Return a proper answer to a task; without weights, its start model unchanged."""
    return Update(
        learner=task.learner,
        task=task.number,
        weights=vector(*weights) if weights else task.start.weights,
        base_version=task.start.version,
        num_examples=num_examples,
        num_steps=num_steps,
        seconds=seconds,
        counts=counts,
    )


def arrive(
    controller: Controller,
    name: str,
    *weights: float,
    num_examples: int = 10,
    num_steps: int = 5,
    seconds: float = 0.0,
    counts: Counts | None = None,
) -> list[Command]:
    """Answer the learner's open task."""
    update = answer(
        task_of(controller, name),
        *weights,
        num_examples=num_examples,
        num_steps=num_steps,
        seconds=seconds,
        counts=counts,
    )
    return controller.handle(Arrived(update))


def counted(hits: int, misses: int) -> ClassCounts:
    """Return a judge's counts: so many examples classified rightly, so many wrongly."""
    return ClassCounts(np.array([[hits, misses], [0, 0]], np.int64))


def score_all(
    controller: Controller, asked: Iterable[Evaluate], counts: Counts | None
) -> list[Command]:
    """Let every judge asked answer the same; return all that the controller said to it."""
    commands: list[Command] = []
    for evaluation in asked:
        commands += controller.handle(Scored(evaluation.evaluation, counts))
    return commands


def tasks(commands: Sequence[Command]) -> dict[str, Task]:
    return {c.task.learner: c.task for c in commands if isinstance(c, Train)}


def restarted(commands: Sequence[Command]) -> set[str]:
    return set(tasks(commands))


def evaluations(commands: Sequence[Command]) -> list[Evaluate]:
    return [c for c in commands if isinstance(c, Evaluate)]


def judges(commands: Sequence[Command]) -> list[str]:
    return [evaluation.judge for evaluation in evaluations(commands)]


def refusals(commands: Sequence[Command]) -> dict[str, str]:
    return {c.learner: c.reason for c in commands if isinstance(c, Refuse)}


def published(commands: Sequence[Command]) -> Publish:
    """Return the one version these commands publish."""
    (only,) = (c for c in commands if isinstance(c, Publish))
    return only


def publishes_nothing(commands: Sequence[Command]) -> bool:
    return not any(isinstance(c, Publish) for c in commands)


def run_toys(
    controller: Controller,
    names: Sequence[str],
    num_versions: int,
    train: Callable[[Task], Update],
    judge: Callable[[Evaluate], Counts | None],
) -> list[Publish]:
    """Be the smallest shell there is: one inbox, first come, first served."""
    inbox = deque[Command]()
    versions: list[Publish] = []
    for name in names:
        inbox += controller.handle(Joined(profile(name, num_examples=10 * (ord(name[0]) - 96))))
    while len(versions) < num_versions:
        match inbox.popleft():
            case Train(task):
                inbox += controller.handle(Arrived(train(task)))
            case Evaluate() as asked:
                inbox += controller.handle(Scored(asked.evaluation, judge(asked)))
            case Publish() as version:
                versions.append(version)
            case Refuse(learner, number, reason):
                raise AssertionError(f"task {number} of {learner} was refused: {reason}")
    return versions
