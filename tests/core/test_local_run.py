from __future__ import annotations

from dataclasses import dataclass, field

from metis.core.local_run import LocalRun, Progress
from metis.core.triggers import AfterEpochs, WhenStale
from metis.core.types import LearnerId, Snapshot, Task
from tests.core.federation import vector


def task(max_steps: int | None = None, committed_steps: int = 0) -> Task:
    return Task(1, LearnerId("a"), Snapshot(0, vector(0)), committed_steps, max_steps)


@dataclass(slots=True)
class Listener:
    """A trigger that never fires and remembers what it was shown."""

    seen: list[Progress] = field(default_factory=list)
    needs_loss: bool = True

    def __call__(self, progress: Progress) -> bool:
        self.seen.append(progress)
        return False


def test_four_epochs_are_exactly_four_epochs() -> None:
    run = LocalRun(task(), 7, AfterEpochs(4), [])
    done: list[bool] = []
    while not done or not done[-1]:
        done.append(run.after_steps(run.next_steps(), None, committed_steps=0))

    assert done == [False, False, False, True]
    assert run.num_steps == 28


def test_a_trigger_is_shown_epochs_losses_staleness_and_earlier_cycles() -> None:
    listener = Listener()
    run = LocalRun(task(committed_steps=100), 5, listener, [30, 40], losses=[2.0])
    run.after_steps(5, 1.5, committed_steps=100)
    run.after_steps(5, 1.25, committed_steps=117)

    # S_k = S_c(now) - S_c(received) + own steps: 100 - 100 + 5, then 117 - 100 + 10
    assert listener.seen == [
        Progress(1, (2.0, 1.5), 5, (30, 40)),
        Progress(2, (2.0, 1.5, 1.25), 27, (30, 40)),
    ]


def test_the_federation_s_steps_count_as_they_are_after_the_epoch() -> None:
    run = LocalRun(task(committed_steps=10), 5, WhenStale(num_cycles=1), [12])

    assert not run.after_steps(5, None, committed_steps=10)  # 5, the median is 12
    assert run.after_steps(5, None, committed_steps=13)  # 13


def test_the_history_of_cycles_outlives_the_task() -> None:
    """Flower's learners lose their state between rounds."""
    cycles: list[int] = []
    for committed in (0, 8):
        run = LocalRun(task(committed_steps=committed), 4, AfterEpochs(2), cycles)
        run.after_steps(4, None, committed + 1)
        run.after_steps(4, None, committed + 3)

    assert cycles == [11, 11]


def test_a_cycle_is_recorded_once_and_only_when_it_ends() -> None:
    cycles: list[int] = []
    run = LocalRun(task(), 4, AfterEpochs(3), cycles)
    run.after_steps(4, None, 0)
    run.after_steps(4, None, 0)
    assert cycles == []

    run.after_steps(4, None, 0)
    assert cycles == [12]


def test_a_budget_cuts_the_last_epoch_short() -> None:
    run = LocalRun(task(max_steps=12), 5, AfterEpochs(1), [])
    taken = []
    done = False
    while not done:
        taken.append(run.next_steps())
        done = run.after_steps(taken[-1], None, 0)

    assert taken == [5, 5, 2]
    assert run.epochs == 2


def test_a_budget_smaller_than_an_epoch_is_kept() -> None:
    run = LocalRun(task(max_steps=3), 5, AfterEpochs(4), [])

    assert run.next_steps() == 3
    assert run.after_steps(3, None, 0)
    assert run.epochs == 0


def test_under_a_budget_the_trigger_has_no_say() -> None:
    listener = Listener()
    run = LocalRun(task(max_steps=5), 5, listener, [])

    assert run.after_steps(5, 0.1, 0)
    assert listener.seen == []
