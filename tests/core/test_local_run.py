from __future__ import annotations

from dataclasses import dataclass, field

from metis.core.local_run import LocalRun
from metis.core.triggers import AfterEpochs, AnyOf, Progress, ValidationCycle, WhenStale
from metis.core.types import LearnerId, Snapshot, Task
from tests.core.federation import vector


def task(max_steps: int | None = None, committed_steps: int = 0) -> Task:
    return Task(1, LearnerId("a"), Snapshot(0, vector(0)), committed_steps, max_steps)


@dataclass(slots=True)
class Listener:
    """A trigger that never fires and remembers what it was shown."""

    seen: list[Progress] = field(default_factory=list)
    needs_loss: bool = True
    certain_epochs: int = 1

    def __call__(self, progress: Progress) -> bool:
        self.seen.append(progress)
        return False


def test_four_epochs_are_exactly_four_epochs() -> None:
    run = LocalRun(task(), 7, AfterEpochs(4), [])
    done: list[bool] = []
    while not done or not done[-1]:
        done.append(run.after_steps(run.next_steps(), (), committed_steps=0))

    assert done == [False, False, False, True]
    assert run.num_steps == 28


def test_a_trigger_is_shown_epochs_losses_staleness_and_earlier_cycles() -> None:
    listener = Listener()
    run = LocalRun(task(committed_steps=100), 5, listener, [30, 40])
    run.after_steps(5, (2.0, 1.5), committed_steps=100)
    run.after_steps(5, (1.25,), committed_steps=117)

    # S_k = S_c(now) - S_c(received) + own steps: 100 - 100 + 5, then 117 - 100 + 10
    assert listener.seen == [
        Progress(1, (2.0, 1.5), 5, (30, 40)),
        Progress(2, (2.0, 1.5, 1.25), 27, (30, 40)),
    ]


def test_the_federation_s_steps_count_as_they_are_after_the_epoch() -> None:
    run = LocalRun(task(committed_steps=10), 5, WhenStale(num_cycles=1), [12])

    assert not run.after_steps(5, (), committed_steps=10)  # 5, the median is 12
    assert run.after_steps(5, (), committed_steps=13)  # 13


def test_the_history_of_cycles_outlives_the_task() -> None:
    """Flower's learners lose their state between rounds."""
    cycles: list[int] = []
    for committed in (0, 8):
        run = LocalRun(task(committed_steps=committed), 4, AfterEpochs(2), cycles)
        run.after_steps(4, (), committed + 1)
        run.after_steps(4, (), committed + 3)

    assert cycles == [11, 11]


def test_a_cycle_is_recorded_once_and_only_when_it_ends() -> None:
    cycles: list[int] = []
    run = LocalRun(task(), 4, AfterEpochs(3), cycles)
    run.after_steps(4, (), 0)
    run.after_steps(4, (), 0)
    assert cycles == []

    run.after_steps(4, (), 0)
    assert cycles == [12]


def test_a_budget_cuts_the_last_epoch_short() -> None:
    run = LocalRun(task(max_steps=12), 5, AfterEpochs(1), [])
    taken = []
    done = False
    while not done:
        taken.append(run.next_steps())
        done = run.after_steps(taken[-1], (), 0)

    assert taken == [5, 5, 2]
    assert run.epochs == 2


def test_a_budget_smaller_than_an_epoch_is_kept() -> None:
    run = LocalRun(task(max_steps=3), 5, AfterEpochs(4), [])

    assert run.next_steps() == 3
    assert run.after_steps(3, (), 0)
    assert run.epochs == 0


def test_under_a_budget_the_trigger_has_no_say() -> None:
    listener = Listener()
    run = LocalRun(task(max_steps=5), 5, listener, [])

    assert run.after_steps(5, (0.2, 0.1), 0)
    assert listener.seen == []


def test_a_fixed_number_of_epochs_is_certain_from_the_start() -> None:
    run = LocalRun(task(), 7, AfterEpochs(4), [])
    certain = []
    done = False
    while not done:
        certain.append(run.certain_steps())
        done = run.after_steps(run.next_steps(), (), 0)

    assert certain == [28, 28, 28, 28]


def test_where_a_loss_is_wanted_only_the_next_epoch_is_certain() -> None:
    run = LocalRun(task(), 7, ValidationCycle(vc_loss=0, vc_tomb=6), [])
    assert run.certain_steps() == 7

    run.after_steps(7, (2.0, 1.0), 0)
    assert run.certain_steps() == 14


def test_where_staleness_may_end_a_task_only_the_next_epoch_is_certain() -> None:
    run = LocalRun(task(), 7, AnyOf((WhenStale(), AfterEpochs(4))), [])
    assert run.certain_steps() == 7

    run.after_steps(7, (), 0)
    assert run.certain_steps() == 14


def test_a_budget_is_certain_from_the_start_unless_a_loss_is_wanted() -> None:
    fixed = LocalRun(task(max_steps=12), 5, AfterEpochs(1), [])
    certain = []
    done = False
    while not done:
        certain.append(fixed.certain_steps())
        done = fixed.after_steps(fixed.next_steps(), (), 0)
    assert certain == [12, 12, 12]

    watched = LocalRun(task(max_steps=12), 5, Listener(), [])
    certain = []
    done = False
    while not done:
        certain.append(watched.certain_steps())
        done = watched.after_steps(watched.next_steps(), (1.0,), 0)
    assert certain == [5, 10, 12]


def test_what_is_certain_covers_the_next_steps_and_is_never_overshot() -> None:
    """`Learners.expect` is a promise: nothing is announced that will not be fetched."""
    triggers = (
        AfterEpochs(1),
        AfterEpochs(3),
        ValidationCycle(vc_loss=0, vc_tomb=1, burn_in=0),
        AnyOf((AfterEpochs(2), AfterEpochs(3))),
        AnyOf((WhenStale(num_cycles=1), AfterEpochs(3))),
        AnyOf((ValidationCycle(vc_loss=0, vc_tomb=1), WhenStale(), AfterEpochs(3))),
    )
    for trigger in triggers:
        for max_steps in (None, 3, 5, 12):
            run = LocalRun(task(max_steps), 5, trigger, [8])
            promised = 0
            done = False
            while not done:
                assert run.certain_steps() >= max(promised, run.num_steps + run.next_steps())
                promised = run.certain_steps()
                done = run.after_steps(run.next_steps(), (1.0,), 0)

            assert run.num_steps == promised
