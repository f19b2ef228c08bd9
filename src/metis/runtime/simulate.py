"""The federation in virtual time: an agenda feeds the controller that a server would feed.

The simulator owns the clock and nothing else of importance. Every moment on the agenda is known
before the work behind it is computed (an epoch's length follows from its steps), so that work is
announced when its moment is put on the agenda and fetched when that moment comes. In between,
learners may be computed one by one or all together: see `core.local_run.Learners`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from metis.config import Incident, late_learners
from metis.core.controller import Controller
from metis.core.errors import RunError
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    EvaluationExpired,
    Event,
    Failed,
    Joined,
    Left,
    Publish,
    Refuse,
    Scored,
    TaskExpired,
    Train,
)
from metis.core.local_run import Learners, LocalRun, Trigger
from metis.core.types import LearnerId, Profile, Snapshot, Task, Update, Vector, digest
from metis.runtime.agenda import (
    Arrive,
    Begin,
    Happen,
    LeaseEnds,
    Score,
    StepsDone,
    Tell,
    World,
)
from metis.runtime.costs import Costs
from metis.runtime.journal import Journal, event_record, fold_record
from metis.runtime.judging import Judging


class Codec(Protocol):
    """A model as bytes, and back."""

    def carry(self, weights: Vector) -> tuple[Vector, int]:
        """Return what comes out at the other end, and how many bytes went over the wire."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a simulation is told once and never changes."""

    profiles: Mapping[LearnerId, Profile]
    costs: Mapping[LearnerId, Costs]
    triggers: Mapping[LearnerId, Trigger]
    validation_examples: Mapping[LearnerId, int]
    batch_size: int
    upload: Codec
    download: Codec
    test_every: int = 1
    max_versions: int | None = None
    max_seconds: float | None = None
    lease_seconds: float = 3600.0
    deadline_seconds: float = 600.0
    incidents: Sequence[Incident] = ()


class Simulation:
    """Runs a plan. Deterministic: same plan, same learners, same records in the same order."""

    def __init__(
        self,
        plan: Plan,
        controller: Controller,
        learners: Learners,
        journal: Journal,
        keep: Callable[[int, Vector], None] | None = None,
        tested: Callable[[Snapshot, bool], None] | None = None,
    ) -> None:
        """`keep` is given every update's task and weights; `tested` every snapshot that was
        tested, and whether it is the best so far."""
        self.plan = plan
        self.controller = controller
        self.learners = learners
        self.journal = journal
        self.world = World()
        self._keep = keep
        self._tested = tested
        self._packet: tuple[int, Vector, int] | None = None  # the version sent last
        self._judged = controller.weighting.judged_by != "nobody"
        self._judging = Judging(
            plan.costs, plan.validation_examples, plan.deadline_seconds, learners, journal
        )
        # Anybody may be unlucky a few times; a federation in which everybody is, is stuck.
        self._max_refusals = max(30, 3 * len(plan.profiles))

    def start(self) -> None:
        """Put the first moments on the agenda: who joins, and what will happen to whom."""
        late = late_learners(self.plan.incidents)
        for learner, profile in self.plan.profiles.items():
            if learner in late:
                self.world.down.add(learner)
            else:
                self.world.schedule(0.0, learner, Tell(Joined(profile)))
        for incident in sorted(self.plan.incidents, key=lambda i: i.at_seconds):
            self.world.schedule(incident.at_seconds, None, Happen(incident))
        self._test(self.controller.current)

    def step(self) -> bool:
        """Do what is due next; return False when the run is over."""
        world = self.world
        if world.ended is not None:
            return False
        horizon = self.plan.max_seconds
        if not world.agenda:
            return self._end("nobody is left to do anything")
        if horizon is not None and world.agenda[0][0] > horizon:
            world.now = horizon
            return self._end("seconds")
        due = world.next_item()
        if due is None:
            return True
        match due:
            case _, Begin(task):
                self._begin(task)
            case learner, StepsDone(num_steps):
                assert learner is not None
                self._steps_done(learner, num_steps)
            case _, Tell(event):
                self._tell(event)
            case _, Arrive(update, question, num_bytes):
                if question is not None:
                    update = replace(update, counts=self.learners.answer(question))
                self._tell(Arrived(update), num_bytes)
            case _, Score(evaluation, question):
                self._tell(Scored(evaluation, self.learners.answer(question)))
            case _, LeaseEnds(task_number, learner, renewal):
                if world.renewals.get(learner, 0) == renewal:
                    self._tell(TaskExpired(task_number))
            case _, Happen(incident):
                self._happen(incident)
        versions = self.plan.max_versions
        if versions is not None and self.controller.current.version >= versions:
            return self._end("versions")
        return True

    def is_waiting(self) -> bool:
        """Whether the next step needs mini-batches that are not computed yet."""
        if self.world.ended is not None or not self.world.agenda:
            return False
        _, _, sender, item = self.world.agenda[0]
        if not isinstance(item, StepsDone) or sender is None or not self.world.is_alive(sender):
            return False
        return not self.learners.is_computed(sender.learner, item.num_steps)

    def _end(self, reason: str) -> bool:
        self.world.ended = reason
        if self.world.last_tested != self.controller.current.version:
            self._test(self.controller.current)
        self.journal.write("end", self.world.now, reason=reason)
        return False

    # ---- learners -----------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        learner = task.learner
        trigger = self.plan.triggers[learner]
        run = LocalRun(
            task=task,
            steps_per_epoch=self.plan.profiles[learner].steps_per_epoch,
            trigger=trigger,
            cycles=self.world.cycles.setdefault(learner, []),
        )
        self.world.runs[learner] = run
        self.learners.begin(task, trigger.needs_loss)
        self._next_steps(run)

    def _next_steps(self, run: LocalRun) -> None:
        learner = run.task.learner
        num_steps = run.next_steps()
        self.learners.expect(learner, run.certain_steps())
        seconds = (
            num_steps * self.plan.costs[learner].seconds_per_step * self.world.slowness_of(learner)
        )
        run.seconds += seconds
        self._renew_lease(run.task, seconds)
        self.world.schedule(seconds, learner, StepsDone(num_steps))

    def _renew_lease(self, task: Task, seconds: float) -> None:
        """A sign of progress, the next one due in so many seconds: longer silence ends a lease."""
        self.world.renewals[task.learner] = self.world.renewals.get(task.learner, 0) + 1
        if seconds > self.plan.lease_seconds:
            self._let_lease_end(task.number, task.learner)

    def _let_lease_end(self, task: int, learner: LearnerId) -> None:
        renewal = self.world.renewals.get(learner, 0)
        self.world.schedule(self.plan.lease_seconds, None, LeaseEnds(task, learner, renewal))

    def _steps_done(self, learner: LearnerId, num_steps: int) -> None:
        run = self.world.runs[learner]
        try:
            losses = self.learners.advance(learner, num_steps)
        except FloatingPointError as error:
            self._fail(run, str(error))
            return
        committed_steps = self.controller.committed_steps
        done = run.after_steps(num_steps, losses, committed_steps)
        self.journal.write(
            "steps",
            self.world.now,
            learner=learner,
            task=run.task.number,
            epoch=run.epochs,
            num_steps=num_steps,
            samples=min(num_steps * self.plan.batch_size, self.plan.profiles[learner].num_examples),
            loss=losses[-1] if losses else None,
            steps_behind=committed_steps - run.task.committed_steps + run.num_steps,
        )
        if done:
            self._offer(run)
        else:
            self._next_steps(run)

    def _fail(self, run: LocalRun, reason: str) -> None:
        learner = run.task.learner
        self.learners.abandon(learner)
        del self.world.runs[learner]
        delay = self.plan.costs[learner].transfer_seconds(0) * self.world.slowness_of(learner)
        self.world.schedule(delay, learner, Tell(Failed(learner, run.task.number, reason)))

    def _offer(self, run: LocalRun) -> None:
        """Send the trained model up. Its own counts are of the model as it will be decoded."""
        task, learner = run.task, run.task.learner
        weights, num_bytes = self.plan.upload.carry(self.learners.finish(learner))
        del self.world.runs[learner]
        update = Update(
            learner=learner,
            task=task.number,
            weights=weights,
            base_version=task.start.version,
            num_examples=self.plan.profiles[learner].num_examples,
            num_steps=run.num_steps,
            seconds=run.seconds,
            counts=None,
        )
        question = self.learners.ask(weights, [learner])[0] if self._judged else None
        costs = self.plan.costs[learner]
        seconds = costs.request_overhead_seconds + costs.transfer_seconds(num_bytes)
        seconds *= self.world.slowness_of(learner)
        self._renew_lease(task, seconds)
        self.world.schedule(seconds, learner, Arrive(update, question, num_bytes))

    # ---- the controller -----------------------------------------------------------------------

    def _tell(self, event: Event, num_bytes: int = 0) -> None:
        kind, fields = event_record(event)
        if isinstance(event, Arrived):
            fields["bytes_up"] = num_bytes
            if self._keep is not None:
                fields["digest"] = digest(event.update.weights)
                self._keep(event.update.task, event.update.weights)
        self.journal.write(kind, self.world.now, **fields)
        self._obey(self.controller.handle(event))

    def _obey(self, commands: Sequence[Command]) -> None:
        evaluations: dict[int, list[Evaluate]] = {}
        for command in commands:
            match command:
                case Publish():
                    self._published(command)
                case Train(task):
                    self._hand_out(task)
                case Evaluate():
                    evaluations.setdefault(command.task, []).append(command)
                case Refuse():
                    self._refused(command)
        for group in evaluations.values():
            weights, num_bytes = self.plan.download.carry(group[0].weights)
            self._judging.ask(self.world, group, weights, num_bytes)

    def _published(self, command: Publish) -> None:
        snapshot = command.snapshot
        self.world.refusals_in_a_row = 0
        self.world.refused.clear()
        self.journal.write(
            "version",
            self.world.now,
            version=snapshot.version,
            digest=digest(snapshot.weights),
            committed_steps=command.committed_steps,
            drift=command.drift,
            folds=[fold_record(fold) for fold in command.folds],
        )
        if snapshot.version % self.plan.test_every == 0:
            self._test(snapshot)

    def _test(self, snapshot: Snapshot) -> None:
        result = self.learners.test(snapshot.weights)
        self.journal.write(
            "test",
            self.world.now,
            version=snapshot.version,
            score=result.score if math.isfinite(result.score) else None,
            loss=result.loss if math.isfinite(result.loss) else None,
        )
        best = result.score > self.world.best_score
        if best:
            self.world.best_score = result.score
        self.world.last_tested = snapshot.version
        if self._tested is not None:
            self._tested(snapshot, best)

    def _hand_out(self, task: Task) -> None:
        learner, version = task.learner, task.start.version
        if self._packet is None or self._packet[0] != version:
            self._packet = (version, *self.plan.download.carry(task.start.weights))
        _, weights, num_bytes = self._packet
        self.journal.write(
            "task",
            self.world.now,
            task=task.number,
            learner=learner,
            version=version,
            committed_steps=task.committed_steps,
            max_steps=task.max_steps,
            bytes_down=num_bytes,
        )
        if learner in self.world.down:
            self._renew_lease(task, math.inf)
            return
        received = replace(task, start=Snapshot(version, weights))
        slowness = self.world.slowness_of(learner)
        seconds = self.plan.costs[learner].transfer_seconds(num_bytes) * slowness
        self._renew_lease(task, seconds)
        self.world.schedule(seconds, learner, Begin(received))

    def _refused(self, command: Refuse) -> None:
        self.journal.write(
            "refuse",
            self.world.now,
            learner=command.learner,
            task=command.task,
            reason=command.reason,
        )
        self.world.refusals_in_a_row += 1
        self.world.refused.add(command.learner)
        all_refused = self.controller.members <= self.world.refused
        if all_refused and self.world.refusals_in_a_row >= self._max_refusals:
            self._end("stuck")
            raise RunError(
                f"the last {self.world.refusals_in_a_row} updates were all refused, the latest "
                f"from {command.learner}: {command.reason}"
            )

    # ---- incidents ----------------------------------------------------------------------------

    def _happen(self, incident: Incident) -> None:
        learner, world = LearnerId(incident.learner), self.world
        self.journal.write(
            "incident",
            world.now,
            learner=learner,
            incident=incident.kind,
            factor=incident.factor if incident.kind == "slow" else None,
        )
        match incident.kind:
            case "slow":
                world.slowness[learner] = incident.factor
            case "join" | "restart":
                if learner not in world.down:
                    self._go_down(learner)  # a restart: what it had under way is gone
                world.down.discard(learner)
                self._tell(Joined(self.plan.profiles[learner]))
            case "leave" | "withdraw":
                self._go_down(learner)
                self._tell(Left(learner, withdraw=incident.kind == "withdraw"))
            case "crash":
                self._crash(learner)

    def _crash(self, learner: LearnerId) -> None:
        """Fall silent. The controller learns of it only when a lease or a deadline runs out."""
        open_task = self.controller.task_of.get(learner)
        open_evaluations = [
            number
            for number, ticket in self.controller.evaluations.items()
            if ticket.waiting_for[number] == learner
        ]
        self._go_down(learner)
        if open_task is not None:
            self._let_lease_end(open_task, learner)
        for number in open_evaluations:
            self.world.schedule(self.plan.deadline_seconds, None, Tell(EvaluationExpired(number)))

    def _go_down(self, learner: LearnerId) -> None:
        self.world.take_down(learner)
        self.learners.abandon(learner)
