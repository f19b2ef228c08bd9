"""The simulator against schedules that can be worked out by hand, with learners that only count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.config import Group, Incident
from metis.core.community import CachedAverage, Community, RoundAverage
from metis.core.controller import Controller
from metis.core.errors import RunError
from metis.core.local_run import TestResult
from metis.core.pacing import Async, Pacing, Sync
from metis.core.server_step import FedAvgM, Stepped
from metis.core.triggers import AfterEpochs
from metis.core.types import (
    ClassCounts,
    Counts,
    Layout,
    LearnerId,
    Profile,
    Snapshot,
    Task,
    Tensor,
    Vector,
    frozen,
)
from metis.core.weighting import ByExamples, ByValidation, Weighting
from metis.report.summary import Tally
from metis.runtime.journal import Journal, Record
from metis.runtime.simulate import Plan, Simulation

LAYOUT = Layout((Tensor("weight", (2,), "plain", 0),))
PACKET = Dense(LAYOUT).num_bytes


def device_class(**values: Any) -> Group:
    """Return a device class with nothing left open: what is not named costs nothing."""
    filled: dict[str, Any] = {"seconds_per_evaluated_example": 0.0, "request_overhead_seconds": 0.0}
    return Group(**{**filled, **values})


class Counting:
    """Learners whose model is the number of steps they have done; `broken` ones fail.

    Holds the simulator to its side of the contract: nothing is fetched that was not announced,
    a model is taken when all that was announced is done, and a question is answered once.
    """

    def __init__(self, profiles: Sequence[Profile], broken: frozenset[str] = frozenset()) -> None:
        self._profiles = profiles
        self._broken = broken
        self._steps: dict[LearnerId, int] = {}
        self._expected: dict[LearnerId, int] = {}
        self._with_loss: dict[LearnerId, bool] = {}
        self._judges: list[LearnerId | None] = []  # by question; None once it is answered

    def profiles(self) -> Sequence[Profile]:
        return self._profiles

    def begin(self, task: Task, with_loss: bool) -> None:
        assert task.learner not in self._steps
        self._steps[task.learner] = self._expected[task.learner] = 0
        self._with_loss[task.learner] = with_loss

    def expect(self, learner: LearnerId, num_steps: int) -> None:
        self._expected[learner] = max(self._expected[learner], num_steps)

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        first = self._steps[learner] == 0
        self._steps[learner] += num_steps
        assert self._steps[learner] <= self._expected[learner]
        if learner in self._broken:
            raise FloatingPointError(f"loss of {learner} is nan")
        return (1.0,) * (1 + first) if self._with_loss[learner] else ()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def finish(self, learner: LearnerId) -> Vector:
        assert self._steps[learner] == self._expected[learner]
        return frozen(np.full(2, self._steps.pop(learner), dtype=np.float32))

    def abandon(self, learner: LearnerId) -> None:
        self._steps.pop(learner, None)

    def depart(self, learner: LearnerId) -> None:
        self.abandon(learner)
        self._judges = [None if judge == learner else judge for judge in self._judges]

    def ask(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        first = len(self._judges)
        self._judges += judges
        return list(range(first, len(self._judges)))

    def answer(self, question: int) -> Counts | None:
        assert self._judges[question] is not None
        self._judges[question] = None
        return ClassCounts(np.array([[3, 1], [1, 5]]))

    def test(self, weights: Vector) -> TestResult:
        return TestResult(score=float(weights[0]), loss=0.0)

    def state(self) -> object:
        return {
            "steps": dict(self._steps),
            "expected": dict(self._expected),
            "with_loss": dict(self._with_loss),
            "judges": list(self._judges),
        }

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self._steps = dict(state["steps"])
        self._expected = dict(state["expected"])
        self._with_loss = dict(state["with_loss"])
        self._judges = list(state["judges"])

    def close(self) -> None:
        pass


def federation(
    speeds: dict[str, float],
    *,
    pacing: Pacing,
    weighting: Weighting | None = None,
    community: Community | None = None,
    broken: frozenset[str] = frozenset(),
    incidents: Sequence[Incident] = (),
    **plan: Any,
) -> tuple[Simulation, list[Record]]:
    """Learners with 10 steps per epoch, one epoch per task, at so many seconds a step."""
    names = [LearnerId(name) for name in speeds]
    profiles = {name: Profile(name, num_examples=100, steps_per_epoch=10) for name in names}
    costs: dict[str, Any] = {
        name: device_class(seconds_per_step=seconds) for name, seconds in speeds.items()
    }
    settings: dict[str, Any] = {
        "lease_seconds": 3600.0,
        "deadline_seconds": 600.0,
        "profiles": profiles,
        "costs": costs,
        "triggers": {name: AfterEpochs(1) for name in names},
        "validation_examples": dict.fromkeys(names, 10),
        "batch_size": 10,
        "last_batch": "fill",
        "no_single": False,
        "upload": Dense(LAYOUT),
        "snapshot_bytes": PACKET,
        "incidents": incidents,
    }
    settings.update(plan)
    usual: Community = RoundAverage() if pacing.rounds else CachedAverage()
    late = {incident.learner for incident in incidents if incident.kind == "join"}
    controller = Controller(
        community or usual,
        weighting or ByExamples(),
        pacing,
        Snapshot(0, frozen(np.zeros(2))),
        min_learners=len(names) - len(late),
    )
    records: list[Record] = []
    journal = Journal(None, (records.append,))
    learners = Counting(list(profiles.values()), broken)
    simulation = Simulation(Plan(**settings), controller, learners, journal)
    simulation.start()
    return simulation, records


def run(simulation: Simulation) -> None:
    while simulation.step():
        pass


def times(records: Sequence[Record], kind: str) -> list[float]:
    return [round(record["at"], 9) for record in records if record["kind"] == kind]


def folders(records: Sequence[Record]) -> list[list[str]]:
    return [[f["learner"] for f in r["folds"]] for r in records if r["kind"] == "version"]


def test_a_synchronous_round_lasts_as_long_as_its_slowest_learner() -> None:
    simulation, records = federation({"a": 0.1, "b": 1.0}, pacing=Sync(), max_versions=3)

    run(simulation)

    assert times(records, "version") == [10.0, 20.0, 30.0]
    assert folders(records) == [["a", "b"]] * 3
    assert records[-1]["reason"] == "versions"


def test_an_asynchronous_learner_never_waits_for_a_slower_one() -> None:
    simulation, records = federation({"a": 0.3, "b": 1.0}, pacing=Async(), max_seconds=10.0)

    run(simulation)

    assert times(records, "version") == [3.0, 6.0, 9.0, 10.0]
    assert folders(records) == [["a"], ["a"], ["a"], ["b"]]


def test_effective_staleness_counts_the_steps_others_committed_meanwhile() -> None:
    simulation, records = federation({"a": 0.3, "b": 1.0}, pacing=Async(), max_seconds=10.0)

    run(simulation)

    folds = [fold for r in records if r["kind"] == "version" for fold in r["folds"]]
    assert [fold["steps_behind"] for fold in folds] == [10, 10, 10, 30 + 10]
    assert [fold["versions_behind"] for fold in folds] == [0, 0, 0, 3]


def test_links_overhead_and_judging_take_their_virtual_time() -> None:
    costs = device_class(
        seconds_per_step=1.0,
        seconds_per_evaluated_example=0.5,
        request_overhead_seconds=44.0,
        latency_seconds=2.0,
        bandwidth_bytes_per_second=PACKET / 3.0,
    )
    names = ("a", "b")
    simulation, records = federation(
        dict.fromkeys(names, 1.0),
        pacing=Async(),
        weighting=ByValidation(),
        costs=dict.fromkeys(names, costs),
        max_versions=1,
    )

    run(simulation)

    # Down 2 + 3, train 10, overhead 44, up 2 + 3.
    assert times(records, "arrive")[0] == 5 + 10 + 44 + 5
    # To the judge 2 + 3, ten examples at half a second, and its answer back: 2.
    assert times(records, "score")[0] == 64 + 5 + 5 + 2
    assert times(records, "version")[0] == 76


def test_a_judge_scores_one_model_at_a_time() -> None:
    costs = device_class(seconds_per_step=1.0, seconds_per_evaluated_example=1.0)
    names = ("a", "b", "c")
    simulation, records = federation(
        dict.fromkeys(names, 1.0),
        pacing=Sync(),
        weighting=ByValidation(),
        costs=dict.fromkeys(names, costs),
        max_versions=1,
    )

    run(simulation)

    # Three models reach two judges each at 10 s; each judge needs 10 s a model.
    assert times(records, "score") == [20, 20, 20, 30, 30, 30]


def test_models_exchanged_are_2_a_request_and_11_with_judges_for_ten_learners() -> None:
    speeds = {f"l{i}": 1.0 for i in range(10)}
    for weighting, per_request in ((ByExamples(), 2), (ByValidation(), 11)):
        simulation, records = federation(speeds, pacing=Sync(), weighting=weighting, max_versions=4)
        run(simulation)
        tally = Tally()
        for record in records:
            tally.add(record)
        summary = tally.summary()

        assert summary["update_requests"] == 40
        assert summary["models_exchanged"] == 40 * per_request
        assert summary["initial_broadcasts"] == 10
        assert summary["unanswered_tasks"] == 10
        assert summary["bytes_up"] == 40 * PACKET
        assert summary["samples_trained"] == 4 * 10 * 100


def test_a_crashed_learner_stalls_a_round_for_its_lease_and_no_longer() -> None:
    crash = Incident(at_seconds=5.0, learner="b", kind="crash")
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Sync(), incidents=[crash], lease_seconds=60.0, max_versions=3
    )

    run(simulation)

    assert times(records, "task-expired") == [65.0]
    assert times(records, "version") == [65.0, 75.0, 85.0]
    assert folders(records) == [["a"], ["a"], ["a"]]


def test_a_restarted_learner_gets_its_task_again_and_starts_over() -> None:
    incidents = [Incident(5.0, "b", "crash"), Incident(20.0, "b", "restart")]
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Sync(), incidents=incidents, max_versions=1
    )

    run(simulation)

    assert times(records, "version") == [30.0]
    assert folders(records) == [["a", "b"]]


def test_a_straggler_whose_lease_ran_out_is_refused_and_given_fresh_work() -> None:
    slow = Incident(0.0, "b", "slow", factor=10.0)
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Async(), incidents=[slow], lease_seconds=30.0, max_seconds=150
    )

    run(simulation)

    assert times(records, "task-expired")[0] == 30.0
    refusals = [r for r in records if r["kind"] == "refuse"]
    assert refusals[0]["learner"] == "b"
    assert refusals[0]["at"] == 100.0
    assert "late" in refusals[0]["reason"]
    assert [r["at"] for r in records if r["kind"] == "task" and r["learner"] == "b"] == [0, 100]


def test_a_late_joiner_is_given_the_current_model() -> None:
    join = Incident(15.0, "b", "join")
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Async(), incidents=[join], max_seconds=40.0
    )

    run(simulation)

    first = next(r for r in records if r["kind"] == "task" and r["learner"] == "b")
    assert (first["at"], first["version"]) == (15.0, 1)


def test_a_judge_that_crashed_is_named_as_missing_when_its_deadline_has_passed() -> None:
    crash = Incident(5.0, "c", "crash")
    simulation, records = federation(
        {"a": 1.0, "b": 100.0, "c": 100.0},
        pacing=Async(),
        weighting=ByValidation(),
        incidents=[crash],
        deadline_seconds=7.0,
        max_versions=1,
    )

    run(simulation)

    version = next(r for r in records if r["kind"] == "version")
    assert version["at"] == 17.0
    assert version["folds"][0]["missing"] == ["c"]
    assert version["folds"][0]["judges"] == 2


def test_a_loss_that_is_not_a_number_is_refused_and_the_others_go_on() -> None:
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Sync(), broken=frozenset("b"), max_versions=3
    )

    run(simulation)

    assert folders(records) == [["a"], ["a"], ["a"]]
    assert {r["reason"] for r in records if r["kind"] == "refuse"} == {"loss of b is nan"}


def test_a_federation_whose_updates_are_all_refused_stops_with_the_reason() -> None:
    simulation, _ = federation(
        {"a": 1.0, "b": 1.0}, pacing=Sync(), broken=frozenset("ab"), max_versions=3
    )

    with pytest.raises(RunError, match=r"were all refused.*is nan"):
        run(simulation)


def test_a_version_that_would_not_be_finite_is_refused_in_the_journal() -> None:
    """The second step of a 2e37-fold way back is beyond the largest float32."""
    simulation, records = federation(
        {"a": 1.0, "b": 1.0},
        pacing=Sync(),
        community=Stepped(RoundAverage(), FedAvgM(rate=2e37)),
    )

    with pytest.raises(RunError, match="the community model would not be finite"):
        run(simulation)

    kinds = [r["kind"] for r in records if r["kind"] in ("version", "refuse")]
    assert kinds == ["version"] + ["refuse"] * 30
    refused = [r for r in records if r["kind"] == "refuse"]
    assert {r["reason"] for r in refused} == {"the community model would not be finite"}
    assert [(r["learner"], r["task"]) for r in refused[:2]] == [("a", 3), ("b", 4)]
    assert {r["version"] for r in records if r["kind"] == "task" and r["task"] > 2} == {1}
    assert {r["committed_steps"] for r in records if r["kind"] == "task" and r["task"] > 2} == {20}
    tally = Tally()
    for record in records:
        tally.add(record)
    assert tally.summary()["refused_updates"] == 30
    assert tally.summary()["unanswered_updates"] == 0


def test_a_run_ends_when_nobody_is_left() -> None:
    leave = Incident(5.0, "a", "leave")
    simulation, records = federation(
        {"a": 1.0}, pacing=Sync(), incidents=[leave], max_seconds=100.0
    )

    run(simulation)

    assert records[-1]["reason"] == "nobody is left to do anything"
    assert records[-1]["at"] == 5.0


def test_a_restarted_learner_that_works_again_keeps_its_lease() -> None:
    incidents = [Incident(5.0, "b", "crash"), Incident(20.0, "b", "restart")]
    simulation, records = federation(
        {"a": 1.0, "b": 5.0},
        pacing=Async(),
        incidents=incidents,
        lease_seconds=60.0,
        max_seconds=80.0,
    )

    run(simulation)

    assert not times(records, "task-expired")
    assert ["b"] in folders(records)


def test_one_learner_that_always_fails_does_not_end_an_asynchronous_federation() -> None:
    simulation, records = federation(
        {"a": 1.0, "b": 100.0}, pacing=Async(), broken=frozenset("a"), max_versions=1
    )

    run(simulation)

    assert folders(records) == [["b"]]
    assert len(times(records, "refuse")) > 30


def test_a_learner_whose_training_fails_still_answers_as_a_judge() -> None:
    """Learner b fails at 12 s, while it judges the model that a sent at 10 s."""
    speeds = {"a": 1.0, "b": 1.2}
    costs = {
        name: device_class(seconds_per_step=seconds, seconds_per_evaluated_example=0.5)
        for name, seconds in speeds.items()
    }
    simulation, records = federation(
        speeds,
        pacing=Async(),
        weighting=ByValidation(),
        broken=frozenset("b"),
        costs=costs,
        max_versions=2,
    )

    run(simulation)

    assert folders(records) == [["a"], ["a"]]
    assert len(times(records, "score")) >= 2
    assert times(records, "fail")[0] < times(records, "score")[0]


def test_a_restart_of_a_learner_that_is_up_starts_its_task_over() -> None:
    simulation, records = federation(
        {"a": 1.0, "b": 1.0},
        pacing=Sync(),
        incidents=[Incident(5.0, "b", "restart")],
        max_versions=1,
    )

    run(simulation)

    assert times(records, "version") == [15.0]
    assert times(records, "steps") == [10.0, 15.0]


def test_a_learner_that_leaves_and_comes_back_was_there_from_the_start() -> None:
    incidents = [Incident(5.0, "b", "leave"), Incident(12.0, "b", "join")]
    simulation, records = federation(
        {"a": 1.0, "b": 1.0}, pacing=Sync(), incidents=incidents, max_versions=3
    )

    run(simulation)

    assert times(records, "join") == [0.0, 0.0, 12.0]
    assert folders(records) == [["a"], ["a"], ["a", "b"]]
