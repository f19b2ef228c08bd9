"""The federation's controller: told events one at a time, it answers with commands.

No input or output, no clock, no lock, no thread, no randomness of its own: the same events give
the same commands and the same bytes, in a simulator, in a server and in a replay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from metis.core.checks import fault_of, fits
from metis.core.community import Community
from metis.core.errors import ModelError
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    EvaluationExpired,
    Event,
    Failed,
    Fold,
    Joined,
    Left,
    Publish,
    Refuse,
    Scored,
    TaskExpired,
    Train,
)
from metis.core.kernels import all_finite
from metis.core.pacing import Pacing, step_budgets
from metis.core.schedules import ByVersion, Schedule
from metis.core.scores import pool
from metis.core.types import (
    Counts,
    LearnerId,
    Profile,
    Snapshot,
    Task,
    Update,
    frozen,
)
from metis.core.weighting import Weighting


@dataclass(slots=True, eq=False)
class Ticket:
    """An accepted update on its way to being folded."""

    update: Update
    task: Task
    waiting_for: dict[int, LearnerId]  # evaluation number -> judge
    answers: dict[LearnerId, Counts] = field(default_factory=dict)
    missing: list[LearnerId] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Controller:
    """Composes a community, a weighting and a pacing into a federation.

    Updates are folded strictly in the order they arrived, one at a time, and only from the head
    of the queue: a learner that is handed version v gets exactly the folds of versions 1..v. The
    scores of several updates may be gathered at once. A version that would not be finite is never
    made: its folds are refused, and learners go on with the one before. An event costs O(M) at
    most, plus one command for each learner it concerns.
    """

    community: Community
    weighting: Weighting
    pacing: Pacing
    current: Snapshot
    min_learners: int = 1
    num_classes: int | None = None  # that judges count; 0: a regression; None: the first one says
    schedule: Schedule = field(default_factory=ByVersion)  # of learning rates
    release_from: int | None = None  # tasks from this version on train on held-out examples, too

    committed_steps: int = 0  # S_c: mini-batches in all folds so far
    published_steps: int = 0  # S_c of the current version: those in its folds and in earlier ones
    started: bool = False
    profiles: dict[LearnerId, Profile] = field(default_factory=dict)  # everybody ever seen
    members: set[LearnerId] = field(default_factory=set)
    idle: set[LearnerId] = field(default_factory=set)  # members with nothing to do
    roster: set[LearnerId] = field(default_factory=set)  # of this round, or now at work
    lost: dict[LearnerId, int] = field(default_factory=dict)  # whose lease ran out, on which task
    tasks: dict[int, Task] = field(default_factory=dict)  # not answered yet
    task_of: dict[LearnerId, int] = field(default_factory=dict)
    queue: deque[Ticket] = field(default_factory=deque)
    evaluations: dict[int, Ticket] = field(default_factory=dict)  # not answered yet
    folds: list[Fold] = field(default_factory=list)  # since the current version
    step_seconds: dict[LearnerId, float] = field(default_factory=dict)  # measured, per step
    tasks_given: dict[LearnerId, int] = field(default_factory=dict)
    last_scores: dict[LearnerId, float] = field(default_factory=dict)
    next_task: int = 1
    next_evaluation: int = 1

    def handle(self, event: Event) -> list[Command]:
        """Take one event; return what the shell must do, in this order."""
        match event:
            case Joined(profile):
                commands = self._join(profile)
            case Left(learner, withdraw):
                commands = self._leave(learner, withdraw)
            case Arrived(update):
                commands = self._arrive(update)
            case Failed(learner, number, reason):
                commands = self._fail(learner, number, reason)
            case Scored(number, counts):
                commands = self._score(number, counts)
            case TaskExpired(number):
                commands = self._expire_task(number)
            case EvaluationExpired(number):
                commands = self._score(number, None, missing=True)
        return commands + self._settle()

    # ---- membership ---------------------------------------------------------------------------

    def _join(self, profile: Profile) -> list[Command]:
        learner = profile.learner
        self.profiles[learner] = profile
        self.lost.pop(learner, None)
        if learner not in self.members:
            self.members.add(learner)
            if not self._is_busy(learner):
                self.idle.add(learner)
        again: list[Command] = []
        if learner in self.task_of:
            again.append(Train(self.tasks[self.task_of[learner]]))
        for number, ticket in self.evaluations.items():
            if ticket.waiting_for[number] == learner:
                again.append(self._evaluate(number, ticket))
        return again

    def _leave(self, learner: LearnerId, withdraw: bool) -> list[Command]:
        self.members.discard(learner)
        self.idle.discard(learner)
        self.roster.discard(learner)
        self.lost.pop(learner, None)
        self._close_task(learner)
        for number, ticket in list(self.evaluations.items()):
            if ticket.waiting_for[number] == learner:
                self._score(number, None, missing=True)
        return self._withdraw(learner) if withdraw else []

    def _withdraw(self, learner: LearnerId) -> list[Command]:
        """Take back all that is not yet published; what is cached leaves with the next version."""
        refused: list[Command] = []
        for ticket in [t for t in self.queue if t.update.learner == learner]:
            self.queue.remove(ticket)
            for number in ticket.waiting_for:
                del self.evaluations[number]
            refused.append(Refuse(learner, ticket.update.task, "withdrawn by its learner"))
        if self.community.drop(learner):
            self._take_out(learner)
        return refused

    def _take_out(self, learner: LearnerId) -> None:
        """Have a learner's folds since the current version be none, nor its steps behind others."""
        gone, kept = 0, list[Fold]()
        for fold in self.folds:
            if fold.learner == learner:
                gone += fold.num_steps
            else:
                kept.append(replace(fold, steps_behind=fold.steps_behind - gone))
        self.folds = kept
        self.committed_steps -= gone

    def _expire_task(self, number: int) -> list[Command]:
        """Give up on a task; its learner is no member again until it is heard from."""
        task = self.tasks.get(number)
        if task is None:
            return []
        self._close_task(task.learner)
        self.members.discard(task.learner)
        self.roster.discard(task.learner)
        self.lost[task.learner] = number
        return []

    # ---- updates ------------------------------------------------------------------------------

    def _arrive(self, update: Update) -> list[Command]:
        learner = update.learner
        task = self.tasks.get(update.task)
        if task is None or task.learner != learner:
            return self._turn_away(learner, update.task)
        self._close_task(learner)
        fault = fault_of(update, task)
        if fault is not None:
            return self._refuse(learner, update.task, fault)
        if 0.0 < update.seconds < math.inf:
            self.step_seconds[learner] = update.seconds / update.num_steps
        ticket = Ticket(update, task, {})
        self.queue.append(ticket)
        return self._ask_judges(ticket) if self._is_judged(task) else []

    def _fail(self, learner: LearnerId, number: int, reason: str) -> list[Command]:
        if self.task_of.get(learner) != number:
            return self._turn_away(learner, number)
        self._close_task(learner)
        return self._refuse(learner, number, reason)

    def _turn_away(self, learner: LearnerId, number: int) -> list[Command]:
        """Answer a task that is not open. A lost learner heard from again is a member again."""
        if self.lost.get(learner) == number:
            del self.lost[learner]
            self.members.add(learner)
            return self._refuse(learner, number, "late: the lease of its task had run out")
        return [Refuse(learner, number, "no such task is open for this learner")]

    def _refuse(self, learner: LearnerId, number: int, reason: str) -> list[Command]:
        self._free(learner)
        return [Refuse(learner, number, reason)]

    # ---- judging ------------------------------------------------------------------------------

    def _ask_judges(self, ticket: Ticket) -> list[Command]:
        in_turn = self.pacing.rounds or self.pacing.sample is not None
        judges = self.roster & self.members if in_turn else self.members
        commands: list[Command] = []
        for judge in sorted(judges - {ticket.update.learner}):
            number = self.next_evaluation
            self.next_evaluation += 1
            ticket.waiting_for[number] = judge
            self.evaluations[number] = ticket
            commands.append(self._evaluate(number, ticket))
        return commands

    def _evaluate(self, number: int, ticket: Ticket) -> Evaluate:
        update = ticket.update
        judge = ticket.waiting_for[number]
        return Evaluate(
            number, judge, update.learner, update.task, update.base_version, update.weights
        )

    def _score(self, number: int, counts: Counts | None, missing: bool = False) -> list[Command]:
        """Record a judge's answer. One that comes late or twice changes nothing."""
        ticket = self.evaluations.pop(number, None)
        if ticket is None:
            return []
        judge = ticket.waiting_for.pop(number)
        if missing:
            ticket.missing.append(judge)
        else:
            self._pool(ticket, judge, counts)
        return []

    def _pool(self, ticket: Ticket, judge: LearnerId, counts: Counts | None) -> None:
        if counts is None:
            return
        if fits(counts, self.num_classes, ticket.answers.values()):
            ticket.answers[judge] = counts
        else:
            ticket.missing.append(judge)

    # ---- commits ------------------------------------------------------------------------------

    def _settle(self) -> list[Command]:
        """Fold what is ready at the head of the queue, and release whoever may go on."""
        commands = self._release()
        while self.queue and not self.queue[0].waiting_for:
            commands += self._commit(self.queue.popleft())
            commands += self._release()
        return commands

    def _commit(self, ticket: Ticket) -> list[Command]:
        update, task = ticket.update, ticket.task
        judged = self._is_judged(task)
        if judged and self.weighting.judged_by == "everybody":
            # Last, so that a learner's own counts can never keep out those of its judges.
            self._pool(ticket, update.learner, update.counts)
        answers = ticket.answers
        judges = tuple(sorted(answers))
        pooled = pool([answers[judge] for judge in judges]) if answers else None
        if judged and pooled is None:
            return self._refuse(update.learner, update.task, "no validation counts came back")

        versions_behind = self.current.version - update.base_version
        weight = self._weigh(update, pooled, versions_behind)
        if judged:
            self.last_scores[update.learner] = weight
        self.community.fold(update, weight, task.start.weights)
        steps_behind = self.committed_steps - task.committed_steps + update.num_steps
        self.committed_steps += update.num_steps
        self.folds.append(
            Fold(
                learner=update.learner,
                task=update.task,
                weight=weight,
                score=weight if judged else None,
                num_steps=update.num_steps,
                versions_behind=versions_behind,
                steps_behind=steps_behind,
                judges=judges,
                missing=tuple(sorted(ticket.missing)),
            )
        )
        self._free(update.learner)
        return []

    def _weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float:
        """Return a weight. Where scores would make it and there are none any more, the last stays:
        the learner's own, or the mean of all if nobody has ever judged it."""
        if pooled is not None or self.weighting.judged_by == "nobody":
            return self.weighting.weigh(update, pooled, versions_behind)
        scores = self.last_scores or {update.learner: 1.0}
        mean = math.fsum(scores.values()) / len(scores)
        return scores.get(update.learner, mean)

    def _release(self) -> list[Command]:
        """Start whomever the pacing lets go, from a new version if one is due.

        A version is only made when there is somebody to hand it to: the fold of a learner that
        has left waits for the next one.
        """
        if not self.started:
            if len(self.members) < self.min_learners:
                return []
            self.started = True
        if not self.idle:
            return []
        num_active = len(self.tasks) + len(self.queue)
        group = self.pacing.release(self.idle, num_active, self.next_task)
        if not group:
            return []
        commands: list[Command] = []
        if self.folds and self.pacing.publishes(len(self.folds), num_active):
            commands += self._publish()
        if self.pacing.rounds:
            self.roster = set()
        self.roster.update(group)  # in place: a copy would cost O(N) for every update
        limit = self.pacing.epochs_of_slowest
        roster = [self.profiles[learner] for learner in group]
        budgets = {}
        if limit is not None:
            budgets = step_budgets(limit, roster, self.step_seconds, self._takes_all_examples())
        commands += [self._train(learner, budgets.get(learner)) for learner in group]
        if not self.idle:
            self.idle = set()  # a set that was large once stays slow to walk
        return commands

    def _publish(self) -> list[Command]:
        """Make a version of the folds; refuse them all if what they make is no model."""
        folds, self.folds = tuple(self.folds), []
        try:
            made = self.community.model(self.current.weights)
        except ModelError as error:
            return self._reject(folds, f"the community model would fit no packet: {error}")
        weights = frozen(made.weights)
        if not all_finite(weights):
            return self._reject(folds, "the community model would not be finite")
        self.current = Snapshot(self.current.version + 1, weights)
        self.published_steps = self.committed_steps
        self.schedule.published([(f.learner, f.score) for f in folds if f.score is not None])
        return [Publish(self.current, folds, self.committed_steps, made.drift, made.packet)]

    def _reject(self, folds: Iterable[Fold], reason: str) -> list[Command]:
        """Leave the last good model the current one, and everything as it was when it was made."""
        self.community.reject(self.current.weights)
        self.committed_steps = self.published_steps
        return [Refuse(fold.learner, fold.task, reason) for fold in folds]

    def _train(self, learner: LearnerId, max_steps: int | None) -> Train:
        ordinal = self.tasks_given[learner] = self.tasks_given.get(learner, 0) + 1
        task = Task(
            number=self.next_task,
            learner=learner,
            start=self.current,
            committed_steps=self.published_steps,
            max_steps=max_steps,
            ordinal=ordinal,
            rate_factor=self.schedule.factor_at(self.current.version),
            all_examples=self._takes_all_examples(),
        )
        self.next_task += 1
        self.tasks[task.number] = task
        self.task_of[learner] = task.number
        self.idle.discard(learner)
        return Train(task)

    # ---- small facts --------------------------------------------------------------------------

    def _takes_all_examples(self) -> bool:
        """Whether tasks given now train on held-out examples, too."""
        return self.release_from is not None and self.current.version >= self.release_from

    def _is_judged(self, task: Task) -> bool:
        """Whether others score the answer to a task. One trained on what they score by is not."""
        return self.weighting.judged_by != "nobody" and not task.all_examples

    def _is_busy(self, learner: LearnerId) -> bool:
        return learner in self.task_of or any(t.update.learner == learner for t in self.queue)

    def _free(self, learner: LearnerId) -> None:
        """A learner's work is settled: it may be released again, if it is still a member."""
        if not self.pacing.rounds:
            self.roster.discard(learner)
        if learner in self.members:
            self.idle.add(learner)

    def _close_task(self, learner: LearnerId) -> None:
        number = self.task_of.pop(learner, None)
        if number is not None:
            del self.tasks[number]
