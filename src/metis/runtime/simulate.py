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

from metis.config import Group, Incident, late_learners
from metis.core.codec import Codec
from metis.core.controller import Controller
from metis.core.errors import ModelError, RunError
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
from metis.core.local_run import Learners, LocalRun, Trigger, samples_of_epoch
from metis.core.triggers import AfterEpochs
from metis.core.types import LearnerId, Profile, Snapshot, Task, Update, dense
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
from metis.runtime.journal import (
    Journal,
    event_record,
    refuse_record,
    task_record,
    version_record,
)
from metis.runtime.judging import Judging
from metis.runtime.post import Post, packet_digest
from metis.runtime.records import EndRecord, IncidentRecord, StepsRecord, TestRecord


@dataclass(frozen=True, slots=True)
class Plan:
    """What a simulation is told once and never changes."""

    profiles: Mapping[LearnerId, Profile]
    costs: Mapping[LearnerId, Group]
    triggers: Mapping[LearnerId, Trigger]
    validation_examples: Mapping[LearnerId, int]
    batch_size: int
    last_batch: str  # what becomes of an epoch's last mini-batch that is not full
    no_single: bool  # whether a mini-batch of one example is made one of two
    upload: Codec
    snapshot_bytes: int  # of a model that travels as it is
    lease_seconds: float
    deadline_seconds: float
    fixed_epochs: int = 1  # of a task that trains on all examples
    test_every: int = 1
    max_versions: int | None = None
    max_seconds: float | None = None
    incidents: Sequence[Incident] = ()


class Simulation:
    """Runs a plan. Deterministic: same plan, same learners, same records in the same order."""

    def __init__(
        self,
        plan: Plan,
        controller: Controller,
        learners: Learners,
        journal: Journal,
        keep: Callable[[int, bytes], None] | None = None,
        tested: Callable[[Snapshot, bool], None] | None = None,
    ) -> None:
        """`keep` is given every update's task and packet; `tested` every snapshot that was
        tested, and whether it is the best so far."""
        self.plan = plan
        self.controller = controller
        self.learners = learners
        self.journal = journal
        self.world = World()
        self._keep = keep
        self._tested = tested
        self._post = Post(plan.upload, plan.snapshot_bytes)
        self._judged = controller.weighting.judged_by != "nobody"
        self._judging = Judging(
            plan.costs,
            plan.validation_examples,
            plan.deadline_seconds,
            learners,
            journal,
            self._post,
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
            case _, Arrive():
                self._arrive(due[1])
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
        self.journal.put(self.world.now, EndRecord(reason=reason))
        return False

    # ---- learners -----------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        learner = task.learner
        # Whoever trains on its validation set has no loss to follow.
        fixed = AfterEpochs(self.plan.fixed_epochs)
        trigger = fixed if task.all_examples else self.plan.triggers[learner]
        run = LocalRun(
            task=task,
            steps_per_epoch=self.plan.profiles[learner].epoch_steps(task.all_examples),
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
        record = StepsRecord(
            learner=learner,
            task=run.task.number,
            epoch=run.epochs,
            num_steps=num_steps,
            samples=self._samples(run.task, num_steps),
            loss=losses[-1] if losses else None,
            steps_behind=committed_steps - run.task.committed_steps + run.num_steps,
        )
        self.journal.put(self.world.now, record)
        if done:
            self._offer(run)
        else:
            self._next_steps(run)

    def _samples(self, task: Task, num_steps: int) -> int:
        """Return how many examples so many mini-batches of an epoch hold."""
        plan, num_examples = self.plan, self._num_examples(task)
        epoch = samples_of_epoch(num_examples, plan.batch_size, plan.last_batch, plan.no_single)
        return min(num_steps * plan.batch_size, epoch)

    def _num_examples(self, task: Task) -> int:
        return self.plan.profiles[task.learner].examples(task.all_examples)

    def _fail(self, run: LocalRun, reason: str) -> None:
        learner = run.task.learner
        self.learners.abandon(learner)
        del self.world.runs[learner]
        delay = self.plan.costs[learner].transfer_seconds(0) * self.world.slowness_of(learner)
        self.world.schedule(delay, learner, Tell(Failed(learner, run.task.number, reason)))

    def _offer(self, run: LocalRun) -> None:
        """Send the trained model up. Its own counts are of the model as it will be decoded."""
        task, learner = run.task, run.task.learner
        trained, base = self.learners.finish(learner), task.start.weights
        try:
            model, num_bytes, packet = self._post.carry(
                self.world.mail, learner, trained, base, self._keep is not None
            )
        except ModelError as error:
            self._fail(run, str(error))
            return
        del self.world.runs[learner]
        update = Update(
            learner=learner,
            task=task.number,
            weights=model,
            base_version=task.start.version,
            num_examples=self._num_examples(task),
            num_steps=run.num_steps,
            seconds=run.seconds,
            counts=None,
        )
        question = None
        if self._judged and not task.all_examples:
            question = self.learners.ask(dense(model), [learner])[0]
        costs = self.plan.costs[learner]
        seconds = costs.request_overhead_seconds + costs.transfer_seconds(num_bytes)
        seconds *= self.world.slowness_of(learner)
        self._renew_lease(task, seconds)
        self.world.schedule(seconds, learner, Arrive(update, question, num_bytes, packet))

    # ---- the controller -----------------------------------------------------------------------

    def _arrive(self, item: Arrive) -> None:
        update = item.update
        more: dict[str, object] = {"bytes_up": item.num_bytes}
        if item.question is not None:
            update = replace(update, counts=self.learners.answer(item.question))
        if self._keep is not None and item.packet is not None:
            more["digest"] = packet_digest(item.packet)
            self._keep(update.task, item.packet)
        if self._judged:
            self.world.packet_bytes[update.task] = item.num_bytes
        self._tell(Arrived(update), **more)

    def _tell(self, event: Event, **more: object) -> None:
        self.journal.put(self.world.now, event_record(event, **more))
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
        for number, group in evaluations.items():
            self._judging.ask(self.world, group, self.world.packet_bytes[number])

    def _published(self, command: Publish) -> None:
        snapshot = command.snapshot
        self.world.refusals_in_a_row = 0
        self.world.refused.clear()
        for fold in command.folds:
            self.world.packet_bytes.pop(fold.task, None)
        self._post.publish(self.world.mail, snapshot.version, command.packet)
        self.journal.put(self.world.now, version_record(command))
        if snapshot.version % self.plan.test_every == 0:
            self._test(snapshot)

    def _test(self, snapshot: Snapshot) -> None:
        result = self.learners.test(snapshot.weights)
        record = TestRecord(
            version=snapshot.version,
            score=result.score if math.isfinite(result.score) else None,
            loss=result.loss if math.isfinite(result.loss) else None,
        )
        self.journal.put(self.world.now, record)
        best = result.score > self.world.best_score
        if best:
            self.world.best_score = result.score
        self.world.last_tested = snapshot.version
        if self._tested is not None:
            self._tested(snapshot, best)

    def _hand_out(self, task: Task) -> None:
        learner, version = task.learner, task.start.version
        num_bytes = self._post.to_learner(self.world.mail, learner, version).num_bytes
        self.journal.put(self.world.now, task_record(task, num_bytes))
        if learner in self.world.down:
            self.world.mail.holds.pop(learner)  # nobody is there to receive it
            self._renew_lease(task, math.inf)
            return
        slowness = self.world.slowness_of(learner)
        seconds = self.plan.costs[learner].transfer_seconds(num_bytes) * slowness
        self._renew_lease(task, seconds)
        self.world.schedule(seconds, learner, Begin(task))

    def _refused(self, command: Refuse) -> None:
        self.journal.put(self.world.now, refuse_record(command))
        self.world.packet_bytes.pop(command.task, None)
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
        record = IncidentRecord(
            learner=learner,
            incident=incident.kind,
            factor=incident.factor if incident.kind == "slow" else None,
        )
        self.journal.put(world.now, record)
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
        self.learners.depart(learner)
