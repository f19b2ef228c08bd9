"""An obvious account of a federation, kept beside the controller and compared with it.

It knows nothing but the events told and the commands seen. Where the controller keeps sets up to
date, the account derives them anew; where the controller keeps running sums, it adds up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

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
from metis.core.pacing import Continuous, Pacing
from metis.core.types import (
    ClassCounts,
    Counts,
    LearnerId,
    Profile,
    Snapshot,
    Sparse,
    Task,
    Update,
    dense,
)
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Weighting
from tests.fuzz.slow_communities import SlowCache, SlowCommunity, SlowRound

C = TypeVar("C", Train, Evaluate, Publish, Refuse)


@dataclass(slots=True, eq=False)
class Entry:
    """An accepted update and what its judges said."""

    update: Update
    task: Task
    waiting: set[int] = field(default_factory=set)
    answers: dict[LearnerId, ClassCounts] = field(default_factory=dict)
    missing: list[LearnerId] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Account:
    """Follows a controller event by event; an AssertionError says where the two part."""

    pacing: Pacing
    weighting: Weighting
    community: SlowCommunity
    current: Snapshot
    min_learners: int
    release_from: int | None = None

    started: bool = False
    members: set[LearnerId] = field(default_factory=set)
    profiles: dict[LearnerId, Profile] = field(default_factory=dict)
    roster: set[LearnerId] = field(default_factory=set)
    lost: dict[LearnerId, int] = field(default_factory=dict)
    open: dict[int, Task] = field(default_factory=dict)
    queue: list[Entry] = field(default_factory=list)
    asked: dict[int, tuple[Entry, LearnerId]] = field(default_factory=dict)
    pending: list[Fold] = field(default_factory=list)  # since the current version
    num_steps: int = 0  # of all folds
    published_steps: int = 0  # of those in a version
    started_at: dict[int, int] = field(default_factory=dict)  # task -> steps in its start model
    largest: float = 0.0  # value of a huge model that was folded
    num_rejected: int = 0  # versions
    settled: set[int] = field(default_factory=set)  # tasks folded or refused
    num_tasks: int = 0
    num_evaluations: int = 0
    num_folds: int = 0
    sparse: bool = False  # some update was
    step_seconds: dict[LearnerId, float] = field(default_factory=dict)
    scored: list[tuple[LearnerId, float]] = field(default_factory=list)
    commands: deque[Command] = field(default_factory=deque)  # of this event, not yet explained

    def follow(self, event: Event, commands: Sequence[Command]) -> None:
        """Explain every command by the event, and miss none."""
        self.commands = deque(commands)
        self._tell(event)
        self._release()
        while self.queue and not self.queue[0].waiting:  # only ever from the head: FIFO
            self._settle(self.queue.pop(0))
            self._release()
        assert not self.commands, f"unexplained: {list(self.commands)}"
        stalled = self.started and self.members and not self.open and not self.queue
        assert not stalled, f"{sorted(self.members)} are there and nobody is at work"

    def _take(self, kind: type[C]) -> C:
        assert self.commands, f"{kind.__name__} was due, and no command is left"
        command = self.commands.popleft()
        assert isinstance(command, kind), f"{kind.__name__} was due, not {command}"
        return command

    # ---- what an event means ------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        match event:
            case Joined(profile):
                self._join(profile)
            case Left(learner, withdraw):
                self._leave(learner, withdraw)
            case Arrived(update):
                self._arrive(update)
            case Failed(learner, number, reason):
                if self._is_open(number, learner):
                    self._close(number)
                    self._expect_refusal(learner, number, reason)
                else:
                    self._turn_away(learner, number)
            case Scored(number, counts):
                self._judge(number, counts, missing=False)
            case EvaluationExpired(number):
                self._judge(number, None, missing=True)
            case TaskExpired(number):
                if number in self.open:
                    learner = self._close(number)
                    self.members.discard(learner)
                    self.roster.discard(learner)
                    self.lost[learner] = number

    def _join(self, profile: Profile) -> None:
        learner = profile.learner
        self.profiles[learner] = profile
        self.members.add(learner)
        self.lost.pop(learner, None)
        for task in self.open.values():
            if task.learner == learner:
                assert self._take(Train).task is task, "a rejoiner is sent the same task again"
        for number, (entry, judge) in self.asked.items():
            if judge == learner:
                self._check_evaluate(self._take(Evaluate), number, judge, entry)

    def _leave(self, learner: LearnerId, withdraw: bool) -> None:
        self.members.discard(learner)
        self.roster.discard(learner)
        self.lost.pop(learner, None)
        for number in [n for n, task in self.open.items() if task.learner == learner]:
            self._close(number)
        for number in [n for n, (_, judge) in self.asked.items() if judge == learner]:
            self._judge(number, None, missing=True)
        if not withdraw:
            return
        for entry in [e for e in self.queue if e.update.learner == learner]:
            self.queue.remove(entry)
            for number in entry.waiting:
                del self.asked[number]
            self._settle_once(entry.update.task)
            self._expect_refusal(learner, entry.update.task, "withdrawn by its learner")
        if self.community.drop(learner):
            self._take_out(learner)

    def _take_out(self, learner: LearnerId) -> None:
        before, self.pending = self.pending, []
        self.num_steps = self.published_steps
        for fold in before:
            if fold.learner != learner:
                behind = self.num_steps - self.started_at[fold.task] + fold.num_steps
                self.pending.append(replace(fold, steps_behind=behind))
                self.num_steps += fold.num_steps

    def _arrive(self, update: Update) -> None:
        learner, number = update.learner, update.task
        if not self._is_open(number, learner):
            self._turn_away(learner, number)
            return
        task = self.open[number]
        self._close(number)
        sound = (
            update.weights.shape == self.current.weights.shape
            and all(map(math.isfinite, dense(update.weights).tolist()))
            and update.base_version == task.start.version
            and update.num_steps > 0
            and update.num_examples > 0
        )
        if not sound:
            self._settle_once(number)
            self._expect_refusal(learner, number, None)
            return
        if 0 < update.seconds < math.inf:
            self.step_seconds[learner] = update.seconds / update.num_steps
        entry = Entry(update, task)
        self.queue.append(entry)
        if self._is_judged(task):
            sampled = self.pacing.rounds or self.pacing.sample is not None
            judges = self.members & self.roster if sampled else self.members
            for judge in sorted(judges - {learner}):
                self.num_evaluations += 1
                self._check_evaluate(self._take(Evaluate), self.num_evaluations, judge, entry)
                entry.waiting.add(self.num_evaluations)
                self.asked[self.num_evaluations] = (entry, judge)

    def _turn_away(self, learner: LearnerId, number: int) -> None:
        """Nothing changes, but for a lost learner: late is a sign of life."""
        if self.lost.get(learner) == number:
            del self.lost[learner]
            self.members.add(learner)
        self._expect_refusal(learner, number, None)

    def _judge(self, number: int, counts: Counts | None, missing: bool) -> None:
        if number not in self.asked:
            return
        entry, judge = self.asked.pop(number)
        entry.waiting.discard(number)
        if missing:
            entry.missing.append(judge)
        else:
            self._pool(entry, judge, counts)

    def _pool(self, entry: Entry, judge: LearnerId, counts: Counts | None) -> None:
        if counts is None:
            return
        assert isinstance(counts, ClassCounts)
        sizes = {len(other.matrix) for other in entry.answers.values()}
        if counts.matrix.ndim == 2 and {*sizes, *counts.matrix.shape} == {len(counts.matrix)}:
            entry.answers[judge] = counts
        else:
            entry.missing.append(judge)

    def _is_judged(self, task: Task) -> bool:
        return isinstance(self.weighting, ByValidation) and not task.all_examples

    def _is_released(self) -> bool:
        return self.release_from is not None and self.current.version >= self.release_from

    def _is_open(self, number: int, learner: LearnerId) -> bool:
        return number in self.open and self.open[number].learner == learner

    def _close(self, number: int) -> LearnerId:
        return self.open.pop(number).learner

    def _settle_once(self, number: int) -> None:
        assert number not in self.settled, f"task {number} was answered twice"
        self.settled.add(number)

    def _check_evaluate(self, command: Evaluate, number: int, judge: LearnerId, e: Entry) -> None:
        found = (command.evaluation, command.judge, command.learner, command.task)
        right = (number, judge, e.update.learner, e.update.task)
        assert found == right, f"evaluation {found}, not {right}"
        assert command.weights is e.update.weights, "a judge is sent another model"
        assert judge in self.members - {e.update.learner}, f"{judge} cannot judge this"

    def _expect_refusal(self, learner: LearnerId, number: int, reason: str | None) -> None:
        refusal = self._take(Refuse)
        assert (refusal.learner, refusal.task) == (learner, number), f"not due: {refusal}"
        assert refusal.reason, "a refusal says why"
        assert reason in (None, refusal.reason), f"{reason!r} was the reason, not {refusal}"
        if not self.pacing.rounds and learner not in self._busy():
            self.roster.discard(learner)

    # ---- commits and releases -----------------------------------------------------------------

    def _settle(self, entry: Entry) -> None:
        update, task = entry.update, entry.task
        self._settle_once(task.number)
        if self._is_judged(task):
            if self.weighting.judged_by == "everybody":
                self._pool(entry, update.learner, update.counts)
            if not entry.answers:
                self._expect_refusal(update.learner, update.task, "no validation counts came back")
                return
        versions_behind = self.current.version - update.base_version
        weight = self._weight(entry, versions_behind)
        if self._is_judged(task):
            self.scored.append((update.learner, weight))
        self.pending.append(
            Fold(
                learner=update.learner,
                task=update.task,
                weight=weight,
                score=weight if self._is_judged(task) else None,
                num_steps=update.num_steps,
                versions_behind=versions_behind,
                steps_behind=self.num_steps - task.committed_steps + update.num_steps,
                judges=tuple(sorted(entry.answers)),
                missing=tuple(sorted(entry.missing)),
            )
        )
        self.community.fold(
            update.learner, weight, dense(update.weights).tolist(), task.start.weights.tolist()
        )
        self.sparse |= isinstance(update.weights, Sparse)  # then the sum is another one
        largest = max(map(abs, dense(update.weights).tolist()))
        if largest > 1e30:
            self.largest = max(self.largest, largest)
        self.num_steps += update.num_steps
        self.num_folds += 1
        if not self.pacing.rounds:
            self.roster.discard(update.learner)

    def _weight(self, entry: Entry, versions_behind: int) -> float:
        match self.weighting:
            case ByExamples():
                return float(entry.update.num_examples)
            case ByStaleness(rate, exponent):
                return float(rate * (versions_behind + 1) ** -exponent)
            case ByValidation() if entry.task.all_examples:
                last = dict(self.scored)  # of several the latest
                mean = sum(last.values()) / len(last) if last else 1.0
                return last.get(entry.update.learner, mean)
            case ByValidation():
                # Micro-F1 with one label per example is the share of hits.
                hits = sum(int(np.trace(counts.matrix)) for counts in entry.answers.values())
                total = sum(int(counts.matrix.sum()) for counts in entry.answers.values())
                return hits / total if total else 0.0
            case _:
                return 1.0

    def _busy(self) -> set[LearnerId]:
        return {t.learner for t in self.open.values()} | {e.update.learner for e in self.queue}

    def _release(self) -> None:
        self.started = self.started or len(self.members) >= self.min_learners
        at_work = len(self.open) + len(self.queue)
        if not self.started or (self.pacing.rounds and at_work):
            return
        idle = self.members - self._busy()
        count = len(idle)
        if self.pacing.sample is not None:
            room = self.pacing.sample - (0 if self.pacing.rounds else at_work)
            count = min(count, max(0, room))
        if count == 0:
            return
        due = self.pacing.size if isinstance(self.pacing, Continuous) else 1
        if len(self.pending) >= due:
            self._make_version()
        group = [self._take(Train).task for _ in range(count)]
        names = [task.learner for task in group]
        assert names == sorted(set(names)), "each is released once, in sorted order"
        assert idle.issuperset(names), "only members with nothing else to do are released"
        self.roster = set(names) if self.pacing.rounds else self.roster | set(names)
        for task in group:
            self.num_tasks += 1
            found = (task.number, task.start.version, task.committed_steps, task.max_steps)
            budget = self._budget(task.learner, names)
            right = (self.num_tasks, self.current.version, self.published_steps, budget)
            assert found == right, f"task {found}, not {right}"
            assert task.all_examples == self._is_released(), "held-out examples at the wrong time"
            assert task.start is self.current, "everybody starts from the published model itself"
            self.open[task.number] = task
            self.started_at[task.number] = self.published_steps

    def _make_version(self) -> None:
        right = self.community.model(self.current.weights.tolist())
        with np.errstate(over="ignore"):
            is_model = np.isfinite(np.array(right, np.float32)).all()
        if is_model:
            self._check_publish(self._take(Publish), right)
            self.published_steps = self.num_steps
        else:
            self.community.reject()
            self.num_steps = self.published_steps
            self.num_rejected += 1
            for fold in self.pending:
                self._expect_refusal(
                    fold.learner, fold.task, "the community model would not be finite"
                )
        self.pending = []

    def _check_publish(self, command: Publish, right: Sequence[float]) -> None:
        before = self.current
        self.current = command.snapshot
        assert self.current.version == before.version + 1, "versions count by one"
        assert len(command.folds) == len(self.pending), f"{command.folds}, not {self.pending}"
        for fold, right_fold in zip(command.folds, self.pending, strict=True):
            # A mean of scores may be summed in another order.
            close = replace(right_fold, weight=fold.weight)
            assert fold == close, f"{fold}, not {right_fold}"
            assert math.isclose(fold.weight, right_fold.weight, rel_tol=1e-12), f"{fold}"
        assert command.committed_steps == self.num_steps, f"{self.num_steps} steps were folded"
        found = command.snapshot.weights
        if isinstance(self.community, SlowRound) and not self.sparse:
            # Summed in sorted order here too: equal to the bit, so no order of arrival matters.
            equal = found.tobytes() == np.array(right, np.float32).tobytes()
        elif isinstance(self.community, SlowRound | SlowCache):
            equal = relative_error(found.tolist(), right) <= 1e-6
        else:  # where a huge model cancels out, its rounding stays
            equal = relative_error(found.tolist(), right, self.largest) <= 1e-6
        assert equal, f"version {self.current.version} is {found.tolist()}, not {right}"

    def _epoch(self, learner: LearnerId) -> int:
        profile = self.profiles[learner]
        full = profile.steps_per_full_epoch
        return full if self._is_released() and full else profile.steps_per_epoch

    def _budget(self, learner: LearnerId, roster: Sequence[LearnerId]) -> int | None:
        if self.pacing.epochs_of_slowest is None:
            return None
        if learner not in self.step_seconds:
            return self._epoch(learner)
        epochs = [self._epoch(n) * self.step_seconds.get(n, 0.0) for n in roster]
        seconds = self.pacing.epochs_of_slowest * max(epochs)
        return max(1, math.ceil(round(seconds / self.step_seconds[learner], 6)))


def relative_error(found: Sequence[float], right: Sequence[float], at_least: float = 0.0) -> float:
    """Return the largest error as a share of the largest right value, or of something larger."""
    scale = max(at_least, *map(abs, right))
    error = max(abs(f - r) for f, r in zip(found, right, strict=True))
    return error / scale if scale else error
