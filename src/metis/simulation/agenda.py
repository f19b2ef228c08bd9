"""What is due in virtual time, and all that changes while time passes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from metis.config import Incident
from metis.core.events import Event
from metis.core.local_run import LocalRun
from metis.core.types import LearnerId, Task, Update
from metis.federation.transfers import TransferState


@dataclass(frozen=True, slots=True)
class Begin:
    """A task has reached its learner."""

    task: Task


@dataclass(frozen=True, slots=True)
class StepsDone:
    """A learner is through with so many mini-batches."""

    num_steps: int


@dataclass(frozen=True, slots=True)
class DeliverEvent:
    """An event reaches the controller."""

    event: Event


@dataclass(frozen=True, slots=True)
class Arrive:
    """An update reaches the controller. Its own counts, if asked for, are fetched only now."""

    update: Update
    question: int | None
    num_bytes: int
    packet: bytes | None  # itself, if it is to be kept


@dataclass(frozen=True, slots=True)
class Score:
    """A judge's answer reaches the controller; it too is fetched only now."""

    evaluation: int
    question: int


@dataclass(frozen=True, slots=True)
class LeaseEnds:
    """A task's lease runs out, unless it was renewed since this was put on the agenda."""

    task: int
    learner: LearnerId
    renewal: int


@dataclass(frozen=True, slots=True)
class ApplyIncident:
    """An incident of the config is due."""

    incident: Incident


Item: TypeAlias = Begin | StepsDone | DeliverEvent | Arrive | Score | LeaseEnds | ApplyIncident


@dataclass(frozen=True, slots=True)
class Sender:
    """Who does an item. Whatever a learner had under way dies with that life of it."""

    learner: LearnerId
    life: int


@dataclass(slots=True)
class SimulationState:
    """All that changes while the simulation runs, controller and learners apart."""

    now: float = 0.0
    scheduled: int = 0  # breaks ties: what was put on the agenda first happens first
    agenda: list[tuple[float, int, Sender | None, Item]] = field(default_factory=list)
    lives: dict[LearnerId, int] = field(default_factory=dict)
    down: set[LearnerId] = field(default_factory=set)  # not there: crashed, left or yet to join
    slowness: dict[LearnerId, float] = field(default_factory=dict)
    runs: dict[LearnerId, LocalRun] = field(default_factory=dict)
    cycles: dict[LearnerId, list[int]] = field(default_factory=dict)
    mail: TransferState = field(default_factory=TransferState)
    packet_bytes: dict[int, int] = field(default_factory=dict)  # of updates being judged, by task
    judging_until: dict[LearnerId, float] = field(default_factory=dict)
    renewals: dict[LearnerId, int] = field(default_factory=dict)  # of the lease of its task
    refusals_in_a_row: int = 0
    refused: set[LearnerId] = field(default_factory=set)  # since the last version
    last_tested: int = -1
    best_score: float = -math.inf
    ended: str | None = None

    def schedule(self, delay: float, learner: LearnerId | None, item: Item) -> None:
        """Put something on the agenda; with a learner, it is void if that learner goes down."""
        sender = None if learner is None else Sender(learner, self.lives.get(learner, 0))
        self.scheduled += 1
        heapq.heappush(self.agenda, (self.now + delay, self.scheduled, sender, item))

    def next_item(self) -> tuple[LearnerId | None, Item] | None:
        """Take what is due next and move the clock there; None if its learner has gone since."""
        at, _, sender, item = heapq.heappop(self.agenda)
        if sender is None:
            self.now = at
            return None, item
        if not self.is_alive(sender):
            return None
        self.now = at
        return sender.learner, item

    def is_alive(self, sender: Sender) -> bool:
        return self.lives.get(sender.learner, 0) == sender.life

    def take_down(self, learner: LearnerId) -> None:
        """A learner is not there any more: whatever it had under way is void."""
        self.down.add(learner)
        self.lives[learner] = self.lives.get(learner, 0) + 1
        self.runs.pop(learner, None)
        self.judging_until.pop(learner, None)
        self.mail.holds.pop(learner, None)

    def slowness_of(self, learner: LearnerId) -> float:
        return self.slowness.get(learner, 1.0)


#: The names by which these are stored in a checkpoint.
STORED: Mapping[str, type] = {
    "incident": Incident,
    "begin": Begin,
    "steps-done": StepsDone,
    "deliver-event": DeliverEvent,
    "arrive": Arrive,
    "score": Score,
    "lease-ends": LeaseEnds,
    "apply-incident": ApplyIncident,
    "sender": Sender,
    "simulation-state": SimulationState,
}
