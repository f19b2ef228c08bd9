"""Judges in virtual time: one update is scored at many learners, each at its own speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metis.config import Group
from metis.core.events import Evaluate, EvaluationExpired
from metis.core.local_run import Learners
from metis.core.types import LearnerId, dense
from metis.runtime.agenda import Score, Tell, World
from metis.runtime.journal import Journal, evaluate_record
from metis.runtime.post import Post


@dataclass(frozen=True, slots=True)
class Judging:
    """When judges answer. What they answer is asked for at once and fetched at that moment."""

    costs: Mapping[LearnerId, Group]
    validation_examples: Mapping[LearnerId, int]
    deadline_seconds: float
    learners: Learners
    journal: Journal
    post: Post

    def ask(self, world: World, group: Sequence[Evaluate], packet_bytes: int) -> None:
        """Score one update at all its judges. Judges work beside training, one model at a time.

        `packet_bytes` is what the update itself came in.
        """
        here = [e for e in group if e.judge not in world.down]
        questions = self.learners.ask(dense(group[0].weights), [e.judge for e in here])
        asked = dict(zip((e.evaluation for e in here), questions, strict=True))
        for command in group:
            judge, number = command.judge, command.evaluation
            route = self.post.to_judge(world.mail, judge, command.base_version, packet_bytes)
            num_bytes = route.num_bytes
            self.journal.put(world.now, evaluate_record(command, num_bytes))
            seconds = self._seconds(world, judge, num_bytes)
            if number in asked:
                world.schedule(seconds, judge, Score(number, asked[number]))
            if number not in asked or seconds > self.deadline_seconds:
                world.schedule(self.deadline_seconds, None, Tell(EvaluationExpired(number)))

    def _seconds(self, world: World, judge: LearnerId, num_bytes: int) -> float:
        costs, slowness = self.costs[judge], world.slowness_of(judge)
        received = world.now + costs.transfer_seconds(num_bytes) * slowness
        begun = max(received, world.judging_until.get(judge, 0.0))
        examples = self.validation_examples[judge]
        done = begun + examples * costs.seconds_per_evaluated_example * slowness
        world.judging_until[judge] = done
        return done + costs.transfer_seconds(0) * slowness - world.now
