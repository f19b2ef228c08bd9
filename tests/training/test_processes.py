"""Learners in other processes: what only they can get wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from torch import Tensor, nn

from metis.core.errors import RunError
from metis.models import build
from metis.training.cohort import Cohort
from metis.training.engines.pool import can_fork
from metis.training.engines.processes import Processes
from metis.training.engines.stack import Stack
from tests.training.federation import (
    NUM_CLASSES,
    A,
    B,
    Bench,
    bench_of,
    dataset,
    go_on,
    processes,
    task,
    trained,
)

ROOT = Path(__file__).parents[2]
SECONDS = 60.0  # until something that ought to happen at once is given up on

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork")


@pytest.fixture
def started(opened: ExitStack) -> Callable[[Bench], Processes]:
    """Start processes that are ended with the test."""

    def start(bench: Bench) -> Processes:
        learners = processes(bench)
        opened.callback(learners.close)
        learners.start()
        return learners

    return start


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(pid: int) -> None:
    """End a process by force; it is still to be waited for by whoever started it."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_number_of_processes_changes_no_byte(num_workers: int, opened: ExitStack) -> None:
    data = dataset(num_classes=0, num_test=1300)
    found = []
    for count in (2, num_workers):
        bench, start = bench_of(lambda: build("mlp", (12,), 1, seed=1), data=data)
        learners = processes(bench, count)
        opened.callback(learners.close)
        for learner in (A, B):
            learners.begin(task(learner, start), with_loss=True)
            learners.announce(learner, 4)
        told = [learners.advance(learner, 4) for learner in (B, A)]
        weights = [learners.finish(learner) for learner in (A, B)]
        counts = [
            learners.take_counts(n)
            for model in weights
            for n in learners.request_counts(model, [A, B])
        ]
        tests = [learners.test(model) for model in weights]
        found.append((told, [model.tobytes() for model in weights], counts, tests))

    assert found[0] == found[1]


def test_a_late_report_of_an_abandoned_task_is_not_taken_for_one_of_the_next(
    started: Callable[[Bench], Processes],
) -> None:
    """A learner that is restarted is given the same task again, with the same ordinal."""
    bench, start = bench_of()
    learners = started(bench)
    wanted = trained(learners, start)
    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 5)
    learners.request_counts(
        start, []
    )  # anything but another task: so far it may have waited for company
    assert wait(learners._pool.pipes, SECONDS)  # it is done, and the report lies there unread
    learners.abandon(A)

    assert trained(learners, start) == wanted


def test_a_state_can_be_restored_twice(started: Callable[[Bench], Processes]) -> None:
    bench, start = bench_of()
    stacked = Cohort(*bench, Stack(*bench, 2))
    for learner in (A, B):
        stacked.begin(task(learner, start), with_loss=True)
        stacked.announce(learner, 5)
    stacked.advance(B, 5)  # computes A's steps too, whose losses are not fetched
    state = stacked.state()

    found = []
    for _ in range(2):
        learners = started(bench_of()[0])
        learners.restore(state)
        found.append(learners.advance(A, 5))

    assert found[0] == found[1]
    assert len(found[0]) == 2


class Raising(nn.Module):
    """A module with a mistake that shows in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("nobody thought of this")
        logits: Tensor = self.linear(x)
        return logits


def test_an_error_in_a_process_is_named(started: Callable[[Bench], Processes]) -> None:
    bench, start = bench_of(Raising)
    learners = started(bench)
    learners.begin(task(A, start), with_loss=False)

    with pytest.raises(RunError, match="ValueError: nobody thought of this"):
        go_on(learners, A, 5)


def test_a_process_that_was_killed_is_told_with_what_may_have_killed_it(
    started: Callable[[Bench], Processes],
) -> None:
    bench, start = bench_of()
    learners = started(bench)
    kill(learners._pool.pids[0])

    with pytest.raises(RunError, match=r"is gone.*memory"):
        learners.test(start)


def test_a_process_that_is_killed_at_work_is_told_when_its_work_is_fetched(
    started: Callable[[Bench], Processes],
) -> None:
    bench, start = bench_of()
    learners = started(bench)
    for pid in learners._pool.pids:
        os.kill(pid, signal.SIGSTOP)  # so that nothing is done yet
    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 5)
    questions = learners.request_counts(start, [A, B])
    for pid in learners._pool.pids:
        kill(pid)

    with pytest.raises(RunError, match=r"is gone.*memory"):
        learners.advance(A, 5)
    for question in questions:
        with pytest.raises(RunError, match=r"is gone.*memory"):
            learners.take_counts(question)
    with pytest.raises(RunError, match=r"is gone.*memory"):
        learners.test(start)
    with pytest.raises(RunError, match=r"is gone.*memory"):
        learners.state()


def test_no_process_is_left_when_they_are_closed() -> None:
    bench, start = bench_of()
    learners = processes(bench)
    learners.start()
    pids = list(learners._pool.pids)
    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 10**9)
    learners.advance(A, 5)
    assert [is_alive(pid) for pid in pids] == [True, True]

    learners.close()
    assert [is_alive(pid) for pid in pids] == [False, False]
    learners.close()


def test_no_process_is_left_when_one_of_them_was_killed() -> None:
    learners = processes(bench_of()[0])
    learners.start()
    pids = list(learners._pool.pids)
    kill(pids[0])

    learners.close()
    assert [is_alive(pid) for pid in pids] == [False, False]


PARENT = """
import sys
from tests.training.federation import A, bench_of, processes, task
bench, start = bench_of()
learners = processes(bench)
more = processes(bench)
more.start()
learners.begin(task(A, start), with_loss=False)
learners.announce(A, 10**9)
learners.advance(A, 5)
print(*learners._pool.pids, *more._pool.pids, flush=True)
sys.stdin.read()
"""


def test_no_process_is_left_when_their_parent_is_killed() -> None:
    """One of them at work, the others idle."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert len(pids) == 4
        os.kill(parent.pid, signal.SIGKILL)
        # Each of them holds the parent's output: its end is theirs.
        parent.communicate(timeout=SECONDS)
    finally:
        parent.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
