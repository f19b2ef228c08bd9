"""Learners come, go, die, hang and return: nobody is waited for longer than was agreed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from metis.core.types import LearnerId
from metis.live.direct import DirectLine
from metis.live.line import EvaluateOrder, Farewell, Item, Refusal, TrainOrder
from metis.runtime.journal import Record
from metis.training.threads import num_threads
from tests.live.toy import (
    LOOK_SECONDS,
    STEPS,
    Attending,
    Bare,
    Federation,
    Toy,
    bare,
    eventually,
    federation,
    impatient,
)

LEASE = 1.2
SLACK = 0.8  # of a machine with other things to do

__all__ = ["impatient"]


def folded(records: list[Record]) -> set[str]:
    return {fold["learner"] for record in records for fold in record["folds"]}


def attend(found: Federation, name: str, step_seconds: float = 0.02) -> Attending:
    return found.site(Toy(name, step_seconds), DirectLine(found.service, LearnerId(name)))


def goes_on_with(found: Federation, names: set[str], seconds: float = 5.0) -> bool:
    """Wait for updates of just these, from now on; return whether it came to that."""
    so_far = len(found.of("version"))
    return eventually(lambda: folded(found.of("version")[so_far + len(names) :]) == names, seconds)


# ---- coming and going ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw"])
def test_a_learner_can_join_leave_and_join_again_while_others_work(policy: str) -> None:
    with federation(policy, learners=2, versions=None, size=1000) as found:
        for name in ("a", "b"):
            found.site(Toy(name, 0.02), found.line(name))
        assert goes_on_with(found, {"a", "b"})

        first = found.site(Toy("c", 0.02), found.line("c"))
        assert goes_on_with(found, {"a", "b", "c"})

        first.site.stop()
        found.service.leave(LearnerId("c"), withdraw=False)
        assert goes_on_with(found, {"a", "b"})

        found.site(Toy("c", 0.02), found.line("c"))
        assert goes_on_with(found, {"a", "b", "c"})
        assert first.ends()
        assert [r["kind"] for r in found.of("join", "leave") if r["learner"] == "c"] == [
            "join",
            "leave",
            "join",
        ]


def test_a_site_that_is_stopped_ends_though_no_order_comes() -> None:
    with federation(learners=2, versions=None, size=1000) as found:
        a = found.site(Toy("a"), found.line("a"))  # and waits, since there is no other
        assert eventually(lambda: found.of("join"))

        a.site.stop()

        assert a.ends(3.0)


def test_what_is_withdrawn_is_in_no_later_version() -> None:
    with federation("async-fedavg", learners=2, versions=None, size=1000) as found:
        a, b = bare(found, "a"), bare(found, "b")
        a.answer(a.next(TrainOrder), 1.0)
        b.answer(b.next(TrainOrder), 3.0)
        assert eventually(lambda: len(found.of("version")) == 2)
        both = found.service.ledger.controller.current.weights

        b.line.leave(withdraw=True)
        a.answer(a.next(TrainOrder), 1.0)
        assert eventually(lambda: len(found.of("version")) == 3)

        alone = found.service.ledger.controller.current.weights
        assert np.allclose(both, 2.0)
        assert np.allclose(alone, 1.0)
        assert found.of("leave", learner="b", withdraw=True)


def test_of_two_processes_with_one_name_the_older_is_told_and_ends() -> None:
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        older = found.site(Toy("a", 0.02), DirectLine(found.service, LearnerId("a")))
        assert eventually(lambda: found.of("version"))

        newer = found.site(Toy("a", 0.02), found.line("a"))
        ended = older.ends(5.0)

        assert ended
        (farewell,) = older.ended
        assert isinstance(farewell, Farewell)
        assert farewell.over
        assert "joined from somewhere else" in farewell.reason
        assert goes_on_with(found, {"a"})
        assert newer.ended == []


def test_the_older_of_two_processes_is_told_even_if_it_listens_after_the_newer_joined() -> None:
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        older, newer = (Bare(found, "a", found.line("a")) for _ in range(2))
        older.join()
        newer.join()

        older.listen()
        told = older.next(Farewell, seconds=3.0)
        newer.listen()

        assert told.over
        assert newer.next(TrainOrder)


# ---- leases -------------------------------------------------------------------------------------


def dead_process(found: Federation, name: str) -> subprocess.Popen[bytes]:
    """Start a learner as a process of its own, and kill it in the middle of a task."""
    size, step_seconds = str(found.layout.size), "0.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.toy", str(found.port), name, step_seconds, size]
    )
    try:
        assert eventually(lambda: found.of("task", learner=name), seconds=30.0)
        time.sleep(0.15)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return process


def test_a_dead_learner_holds_up_a_round_for_its_lease_and_no_longer() -> None:
    with federation(learners=3, versions=3, lease_seconds=LEASE, size=1000) as found:
        for name in ("a", "b"):
            attend(found, name)
        dead_process(found, "c")
        finished = found.finishes()

        assert finished
        (task,) = found.of("task", learner="c")
        (expired,) = found.of("task-expired", task=task["task"])
        (first, *_) = found.of("version")
        assert expired["at"] - task["at"] < 0.5 + LEASE + LOOK_SECONDS + SLACK
        assert first["at"] - expired["at"] < SLACK
        assert folded(found.of("version")) == {"a", "b"}


def test_a_learner_that_comes_back_again_and_again_without_progress_loses_its_lease() -> None:
    with federation(learners=3, versions=1, lease_seconds=LEASE, size=1000) as found:
        for name in ("a", "b"):
            attend(found, name)
        c = bare(found, "c")  # a process that dies of its task, and is started again and again
        until = time.monotonic() + 2 * LEASE + SLACK
        while time.monotonic() < until and not found.of("version"):
            time.sleep(LEASE / 4)
            c.join()
            c.listen()

        assert found.of("task-expired")
        assert folded(found.of("version")) == {"a", "b"}


def test_progress_said_again_does_not_renew_a_lease() -> None:
    with federation(learners=1, versions=None, lease_seconds=LEASE, size=1000) as found:
        a = bare(found, "a")
        order = a.next(TrainOrder)
        began = time.monotonic()
        while a.line.progress(order.task, 1).is_open and time.monotonic() < began + 5.0:
            time.sleep(0.1)

        (task,) = found.of("task")
        (expired,) = found.of("task-expired")
        assert LEASE <= expired["at"] - task["at"] < LEASE + LOOK_SECONDS + SLACK


def test_an_epoch_longer_than_its_lease_does_not_expire_while_steps_are_done() -> None:
    with federation(learners=1, versions=1, lease_seconds=LEASE, size=1000) as found:
        found.site(Toy("a", step_seconds=0.6), found.line("a"))
        finished = found.finishes(5.0)

        assert finished
        assert STEPS * 0.6 > LEASE
        assert found.of("task-expired") == []
        assert folded(found.of("version")) == {"a"}


class SlowDown(DirectLine):
    """A line on which every model takes a while to come."""

    def fetch(self, item: Item) -> Iterator[bytes | memoryview]:
        time.sleep(0.7)
        return super().fetch(item)


def test_steps_of_the_last_task_are_not_told_as_progress_of_the_next() -> None:
    with federation(learners=1, versions=2, lease_seconds=2.0, size=1000) as found:
        toy = Toy("a", step_seconds=0.02)
        found.site(toy, SlowDown(found.service, toy.name))
        assert eventually(lambda: found.of("arrive"))
        toy.step_seconds = 0.6
        finished = found.finishes(6.0)

        assert finished
        assert found.of("task-expired") == []


def test_a_download_longer_than_the_lease_is_progress() -> None:
    with federation(learners=1, versions=1, lease_seconds=LEASE, size=8_000_000) as found:
        proxy = found.proxy()
        proxy.bytes_per_second = 12e6  # for 32 million bytes, of which some wait in sockets
        found.site(Toy("a"), found.line("a", proxy.port))
        expired = eventually(lambda: found.of("task-expired"), seconds=3.0)
        proxy.calm()

        assert not expired


def test_a_learner_stuck_in_one_step_expires_and_is_given_fresh_work_when_it_is_free() -> None:
    freed = threading.Event()

    def hang(task: Any, step: int) -> None:
        if task.ordinal == 1 and step == 1:
            freed.wait(20.0)

    with federation(learners=2, versions=None, lease_seconds=LEASE, size=1000) as found:
        attend(found, "a")
        stuck = found.site(Toy("b", on_step=hang), found.line("b"))
        assert eventually(lambda: found.of("version"))  # without it
        only = folded(found.of("version")[:1])
        freed.set()
        back = eventually(lambda: "b" in folded(found.of("version")))

        (task, *_) = found.of("task", learner="b")
        (expired,) = found.of("task-expired")
        assert only == {"a"}
        assert LEASE <= expired["at"] - task["at"] < 2 * LEASE + LOOK_SECONDS + SLACK
        assert back, stuck.news
        (refused,) = found.of("refuse", learner="b")
        assert "lease of its task had run out" in refused["reason"]


def test_new_work_given_during_old_work_keeps_its_lease_by_its_own_steps(impatient: None) -> None:
    freed = threading.Event()

    def hang(task: Any, step: int) -> None:
        if task.ordinal == 1 and step == 3:
            freed.wait(20.0)
        elif task.ordinal == 2:
            time.sleep(0.65)

    with federation(learners=1, versions=1, lease_seconds=2.4, size=1000) as found:
        proxy = found.proxy()
        found.site(Toy("a", on_step=hang), found.line("a", proxy.port))
        assert eventually(lambda: found.of("task-expired"))
        proxy.drop()  # it comes back, and is given a new task while it is stuck in the old one
        assert eventually(lambda: len(found.of("task")) == 2)
        freed.set()
        finished = found.finishes(6.0)

        assert finished
        assert len(found.of("task-expired")) == 1


def test_to_be_late_once_does_not_make_a_learner_late_ever_after() -> None:
    freed = threading.Event()

    def hang(task: Any, step: int) -> None:
        if task.ordinal == 1:
            freed.wait(20.0)

    with federation(learners=1, versions=1, lease_seconds=0.6, size=1000) as found:
        found.site(Toy("a", on_step=hang), found.line("a"))
        assert eventually(lambda: found.of("task-expired"))
        freed.set()
        finished = found.finishes(3.0)

        assert finished
        assert len(found.of("task-expired")) == 1


def test_a_late_answer_is_refused_with_a_reason_and_fresh_work_follows() -> None:
    with federation("async-fedavg", learners=1, versions=None, lease_seconds=0.5, size=9) as found:
        a = bare(found, "a")
        late = a.next(TrainOrder)
        assert eventually(lambda: found.of("task-expired"))

        receipt = a.answer(late)
        refusal = a.next(Refusal)
        fresh = a.next(TrainOrder)
        taken = a.answer(fresh)

        assert not receipt.taken
        assert receipt.reason == refusal.reason == "late: the lease of its task had run out"
        assert fresh.task != late.task
        assert taken.taken


def test_a_learner_that_fails_at_every_task_does_not_spin() -> None:
    def fall(task: Any, step: int) -> None:
        raise RuntimeError("no such device")

    with federation("async-fedavg", learners=2, versions=None, size=1000) as found:
        attend(found, "a")
        attending = found.site(Toy("b", on_step=fall), found.line("b"))
        assert eventually(lambda: found.of("fail"))
        time.sleep(2.5)

        assert 2 <= len(found.of("fail", learner="b")) <= 4  # it waits for 1 s, then for 3
        assert attending.ended == []
        assert folded(found.of("version")) == {"a"}


# ---- judges -------------------------------------------------------------------------------------


def test_a_judge_that_hangs_holds_up_a_commit_for_the_deadline_and_no_longer() -> None:
    freed = threading.Event()

    def hang() -> None:
        freed.wait(20.0)

    with federation(learners=3, versions=1, deadline_seconds=1.0, size=1000) as found:
        for name in ("a", "b"):
            attend(found, name)
        found.site(Toy("c"), found.line("c"), judge=Toy("c", on_answer=hang))
        made = eventually(lambda: found.of("version"))
        freed.set()

        assert made
        (version,) = found.of("version")
        asked = max(record["at"] for record in found.of("evaluate"))
        assert 0.5 < version["at"] - asked < 1.0 + LOOK_SECONDS + SLACK
        missing = {fold["learner"]: fold["missing"] for fold in version["folds"]}
        assert missing == {"a": ["c"], "b": ["c"], "c": []}
        assert len(found.of("evaluation-expired")) == 2


def test_a_judge_that_comes_back_again_and_again_holds_up_no_commit() -> None:
    with federation(learners=2, versions=1, deadline_seconds=1.0, size=1000) as found:
        attend(found, "a")
        b = bare(found, "b")
        b.answer(b.next(TrainOrder))
        b.next(EvaluateOrder)
        until = time.monotonic() + 3.0
        while time.monotonic() < until and not found.of("version"):
            time.sleep(0.25)
            b.join()
            b.listen()

        assert found.of("evaluation-expired")
        assert found.of("version")


def test_a_learner_answers_an_evaluation_in_the_middle_of_a_long_epoch() -> None:
    with federation("async-dvw", learners=2, versions=None, size=1000) as found:
        found.site(Toy("a", step_seconds=0.02), found.line("a"))
        slow = Toy("b", step_seconds=0.75)
        found.site(slow, found.line("b"))
        assert eventually(lambda: found.of("arrive", learner="b"))
        slow.step_seconds = 0.0

        arrived = found.of("arrive", learner="b")[0]["at"]
        waited = [r["wall_waited"] for r in found.of("score", judge="b") if r["at"] < arrived]
        assert arrived > 3.0
        assert len(waited) > 5
        assert max(waited) < 0.75


def test_a_learner_answers_an_evaluation_while_torch_trains() -> None:
    """In the other test it sleeps; here it computes, and holds the interpreter's lock at times."""
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, y = torch.zeros(32, 64), torch.zeros(32, dtype=torch.long)

    def train(task: Any, step: int) -> None:
        until = time.monotonic() + 0.75
        while time.monotonic() < until and task.ordinal == 1:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    with (
        num_threads(1),
        federation("async-dvw", learners=2, versions=None, size=1000) as found,
    ):
        found.site(Toy("a", step_seconds=0.02), found.line("a"))
        found.site(Toy("b", on_step=train), found.line("b"))
        assert eventually(lambda: found.of("arrive", learner="b"))

        arrived = found.of("arrive", learner="b")[0]["at"]
        waited = [r["wall_waited"] for r in found.of("score", judge="b") if r["at"] < arrived]
        assert arrived > 3.0
        assert len(waited) > 5
        assert max(waited) < 0.75


# ---- what is no model ---------------------------------------------------------------------------


def test_learners_hear_that_their_version_would_not_be_finite_and_go_on() -> None:
    with federation("fedavgm", learners=2, versions=None, size=1000) as found:
        both = [bare(found, name) for name in ("a", "b")]
        for one in both:
            assert one.answer(one.next(TrainOrder), 3e38).taken
        tasks = [one.next(TrainOrder) for one in both]  # of version 1, and the momentum is 3e38

        receipts = [one.answer(task, 3e38) for one, task in zip(both, tasks, strict=True)]
        refusals = [one.next(Refusal) for one in both]

        assert [receipt.taken for receipt in receipts] == [True, False]  # b's made the version
        assert [refusal.task for refusal in refusals] == [task.task for task in tasks]
        reasons = {refusal.reason for refusal in refusals} | {receipts[1].reason}
        assert reasons == {"the community model would not be finite"}
        for one in both:
            order = one.next(TrainOrder)
            assert order.version == 1
            assert one.answer(order, 2e38).taken
        assert eventually(lambda: len(found.of("version")) == 2)
        assert np.allclose(found.service.ledger.controller.current.weights, 2e38)
        assert [r["reason"] for r in found.of("refuse")] == [*reasons, *reasons]
