from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.core.errors import ConfigError
from metis.core.triggers import AfterEpochs, AnyOf, Progress, Trigger, ValidationCycle, WhenStale


def after(
    *losses: float, epochs: int | None = None, behind: int = 0, cycles: tuple[int, ...] = ()
) -> Progress:
    return Progress(max(len(losses) - 1, 0) if epochs is None else epochs, losses, behind, cycles)


def epochs_until_fired(trigger: Trigger, losses: list[float]) -> int | None:
    """Return the epoch after which the trigger fires, as a learner would see it."""
    for epoch in range(1, len(losses)):
        if trigger(after(*losses[: epoch + 1])):
            return epoch
    return None


# --- fixed frequency


def test_a_fixed_frequency_fires_after_exactly_so_many_epochs() -> None:
    trigger = AfterEpochs(4)
    assert [trigger(after(epochs=epochs)) for epochs in (1, 2, 3, 4)] == [False] * 3 + [True]
    assert not trigger.needs_loss


# --- C1, C2 and tombstones


def test_a_rising_loss_is_a_tombstone() -> None:
    trigger = ValidationCycle(vc_loss=0, vc_tomb=0, burn_in=0)
    assert not trigger(after(1.0, 0.5))
    assert trigger(after(1.0, 1.5))
    assert trigger(after(1.0, 1.0))


def test_a_loss_that_falls_too_little_is_a_tombstone() -> None:
    trigger = ValidationCycle(vc_loss=25, vc_tomb=0, burn_in=0)
    assert trigger(after(4.0, 3.5))  # -12.5 %
    assert trigger(after(4.0, 3.0))  # -25 %: the bound itself still counts
    assert not trigger(after(4.0, 2.5))  # -37.5 %


def test_the_model_is_offered_when_tombstones_exceed_their_limit() -> None:
    trigger = ValidationCycle(vc_loss=0, vc_tomb=2, burn_in=0)
    assert epochs_until_fired(trigger, [1.0, 1.1, 1.2, 1.3, 1.4]) == 3


def test_tombstones_need_not_be_in_a_row() -> None:
    trigger = ValidationCycle(vc_loss=0, vc_tomb=1, burn_in=0)
    assert epochs_until_fired(trigger, [1.0, 1.1, 0.9, 0.8, 0.85]) == 4


def test_the_first_two_epochs_cannot_be_tombstones() -> None:
    rising = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert epochs_until_fired(ValidationCycle(0, vc_tomb=0), rising) == 3
    assert epochs_until_fired(ValidationCycle(0, vc_tomb=2), rising) == 5
    assert epochs_until_fired(ValidationCycle(0, vc_tomb=0, burn_in=0), rising) == 1


def test_the_third_epoch_is_compared_with_the_last_of_the_burn_in() -> None:
    assert epochs_until_fired(ValidationCycle(0, vc_tomb=0), [9.0, 8.0, 2.0, 3.0]) == 3
    assert epochs_until_fired(ValidationCycle(0, vc_tomb=0), [9.0, 8.0, 4.0, 3.0]) is None


def test_a_loss_of_zero_divides_nothing() -> None:
    trigger = ValidationCycle(vc_loss=3, vc_tomb=0, burn_in=0)
    assert trigger(after(0.0, 0.0))
    assert trigger(after(0.0, 0.5))
    assert not trigger(after(0.5, 0.0))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_fires_at_once(loss: float) -> None:
    trigger = ValidationCycle(vc_loss=3, vc_tomb=6)
    assert trigger(after(1.0, loss))
    assert trigger(after(loss, 1.0))


def slow_tombstones(losses: list[float], vc_loss: float, burn_in: int) -> int:
    """Count as the paper writes it, one epoch at a time."""
    tombstones = 0
    for i in range(1, len(losses)):
        if i <= burn_in:
            continue
        percent = 100 * (losses[i] - losses[i - 1]) / losses[i - 1]
        c1 = percent >= 0
        c2 = percent < 0 and abs(percent) <= vc_loss
        if c1 or c2:
            tombstones += 1
    return tombstones


@given(
    # Few distinct losses, so that every kind of step occurs; percentages chosen so that no step
    # falls so close to a bound that rounding would decide.
    st.lists(st.integers(1, 40).map(lambda n: n / 7), min_size=1, max_size=25),
    st.sampled_from([0, 0.99, 3.03, 30.01]),
    st.integers(0, 6),
    st.integers(0, 3),
)
def test_tombstones_agree_with_the_papers_formula(
    losses: list[float], vc_loss: float, vc_tomb: int, burn_in: int
) -> None:
    trigger = ValidationCycle(vc_loss, vc_tomb, burn_in)
    assert trigger(after(*losses)) == (slow_tombstones(losses, vc_loss, burn_in) > vc_tomb)


# --- C3


def test_staleness_fires_only_above_the_median_of_the_first_twenty_cycles() -> None:
    first_twenty = (*range(10), *range(100, 110))  # median (9 + 100) / 2
    trigger = WhenStale()
    assert not trigger(after(behind=54, cycles=first_twenty))
    assert trigger(after(behind=55, cycles=first_twenty))
    assert not trigger(after(behind=54, cycles=(*first_twenty, *[0] * 100)))
    assert not trigger.needs_loss


def test_staleness_equal_to_the_median_does_not_fire() -> None:
    assert not WhenStale()(after(behind=7, cycles=(7,) * 20))
    assert WhenStale()(after(behind=8, cycles=(7,) * 20))


def test_staleness_is_off_until_twenty_cycles_are_recorded() -> None:
    assert not WhenStale()(after(behind=10**9, cycles=(1,) * 19))
    assert WhenStale(num_cycles=19)(after(behind=10**9, cycles=(1,) * 19))


# --- together


def test_any_of_fires_with_the_first_of_its_triggers() -> None:
    trigger = AnyOf((ValidationCycle(0, vc_tomb=0, burn_in=0), WhenStale(num_cycles=1)))
    assert trigger.needs_loss
    assert not AnyOf((AfterEpochs(1), WhenStale())).needs_loss
    assert not trigger(after(2.0, 1.0, behind=5, cycles=(5,)))
    assert trigger(after(2.0, 1.0, behind=6, cycles=(5,)))
    assert trigger(after(1.0, 2.0, behind=5, cycles=(5,)))


def test_a_trigger_never_fires_before_the_epochs_it_is_certain_of() -> None:
    rising = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for trigger, certain in (
        (AfterEpochs(4), 4),
        (ValidationCycle(0, vc_tomb=2), 1),
        (WhenStale(), 1),
        (AnyOf((AfterEpochs(5), AfterEpochs(3))), 3),
        (AnyOf((ValidationCycle(0, vc_tomb=0), AfterEpochs(5))), 1),
        (AnyOf((WhenStale(), AfterEpochs(5))), 1),
    ):
        assert trigger.certain_epochs == certain
        fired = epochs_until_fired(trigger, rising)
        assert fired is None or fired >= certain


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_may_end_a_cycle_after_its_first_epoch(loss: float) -> None:
    """So no more than one epoch is certain, however many tombstones are allowed for."""
    trigger = ValidationCycle(vc_loss=3, vc_tomb=6)
    assert epochs_until_fired(trigger, [1.0, loss]) == trigger.certain_epochs == 1


def test_staleness_may_end_a_cycle_after_its_first_epoch() -> None:
    trigger = WhenStale(num_cycles=1)
    assert trigger(after(epochs=trigger.certain_epochs, behind=8, cycles=(7,)))


def test_triggers_are_values() -> None:
    assert AnyOf((AfterEpochs(4), WhenStale())) == AnyOf((AfterEpochs(4), WhenStale(20)))
    assert len({ValidationCycle(1, 2), ValidationCycle(1, 2), ValidationCycle(1, 3)}) == 2


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (AfterEpochs, (0,), "epochs is 0"),
        (ValidationCycle, (-1, 2), "vc_loss is -1"),
        (ValidationCycle, (math.nan, 2), "vc_loss is nan"),
        (ValidationCycle, (1, -2), "vc_tomb is -2"),
        (ValidationCycle, (1, 2, -1), "burn_in is -1"),
        (WhenStale, (0,), "num_cycles is 0"),
        (AnyOf, ((),), "at least one trigger"),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(
    kind: type, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(*arguments)
