"""What the controller can be told, and what it can ask for. Nothing else crosses its border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from metis.core.types import Counts, LearnerId, Model, Profile, Snapshot, Task, Update


@dataclass(frozen=True, slots=True)
class Joined:
    """A learner is here. Told twice, it is handed again whatever it still owes an answer to."""

    profile: Profile


@dataclass(frozen=True, slots=True)
class Left:
    """A learner is gone. Its last contribution stays, unless it withdraws it."""

    learner: LearnerId
    withdraw: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """A learner answered a task."""

    update: Update


@dataclass(frozen=True, slots=True)
class Failed:
    """A learner could not answer its task and says why (a loss that is not a number, say)."""

    learner: LearnerId
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A judge answered an evaluation. `counts` is None when it has no validation data."""

    evaluation: int
    counts: Counts | None


@dataclass(frozen=True, slots=True)
class TaskExpired:
    """A task's lease ran out without a sign of progress."""

    task: int


@dataclass(frozen=True, slots=True)
class EvaluationExpired:
    """A judge did not answer by its deadline."""

    evaluation: int


Event: TypeAlias = Joined | Left | Arrived | Failed | Scored | TaskExpired | EvaluationExpired


@dataclass(frozen=True, slots=True)
class Train:
    """Hand this task to its learner. The shell watches the lease and answers `TaskExpired`."""

    task: Task


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Ask one judge for counts of an update. The shell watches the deadline."""

    evaluation: int
    judge: LearnerId
    learner: LearnerId  # whose model is judged
    task: int
    base_version: int  # from which that model was trained
    weights: Model


@dataclass(frozen=True, slots=True)
class Fold:
    """One update taken into the community, and what it was worth."""

    learner: LearnerId
    task: int
    weight: float
    score: float | None
    num_steps: int
    versions_behind: int  # version at commit minus base version; fresh is 0
    steps_behind: int  # the paper's effective staleness, in mini-batches, its own included
    judges: tuple[LearnerId, ...] = ()  # who answered, the learner itself included if it counts
    missing: tuple[LearnerId, ...] = ()  # who was asked and did not


@dataclass(frozen=True, slots=True)
class Publish:
    """A new version exists: these folds, in this order, made it."""

    snapshot: Snapshot
    folds: tuple[Fold, ...]
    committed_steps: int
    drift: float | None = None  # relative drift found by a repair of the cached sum
    packet: bytes | None = None  # that makes this version of the one before


@dataclass(frozen=True, slots=True)
class Refuse:
    """An answer was not taken, for this reason; nothing else changed.

    Also of a fold whose version could not be published, which is undone then.
    """

    learner: LearnerId
    task: int
    reason: str


Command: TypeAlias = Train | Evaluate | Publish | Refuse
