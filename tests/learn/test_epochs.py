"""The order in which a learner sees its examples."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest

from metis.core.errors import ConfigError, DataError
from metis.core.local_run import samples_of_epoch
from metis.core.types import LearnerId
from metis.learn.epochs import Epochs, Share, order_of
from metis.learn.prepare import preparation_named
from metis.learn.settings import LAST_BATCHES
from tests.learn.federation import training_of

NAME = LearnerId("site")
LABELS = np.random.default_rng(0).integers(10, size=6000)
TRAIN = np.sort(np.random.default_rng(1).permutation(6000)[:5000])


def epochs_of(
    shuffle_buffer: int | None,
    batch_size: int = 100,
    last_batch: str = "short",
    no_single: bool = False,
    preparation: str = "none",
    num_examples: int = len(TRAIN),
) -> Epochs:
    shares = {NAME: Share(TRAIN[:num_examples], np.empty(0, dtype=np.int64))}
    order = order_of(shuffle_buffer, LABELS)
    prepared = preparation_named(preparation)
    return Epochs(shares, prepared, batch_size, 7, no_single, order, last_batch)


def seen(shuffle_buffer: int | None, ordinal: int = 0, number: int = 0) -> list[int]:
    found: list[int] = epochs_of(shuffle_buffer).epoch(NAME, ordinal, number).examples.tolist()
    return found


@pytest.mark.parametrize("shuffle_buffer", [None, 1, 2, 250, 4999, 5000, 10**9])
def test_every_example_is_seen_once_in_every_epoch(shuffle_buffer: int | None) -> None:
    assert sorted(seen(shuffle_buffer)) == TRAIN.tolist()
    assert seen(shuffle_buffer) == seen(shuffle_buffer)


def test_without_a_buffer_to_speak_of_one_class_comes_after_the_other() -> None:
    labels = LABELS[seen(1)]

    assert np.count_nonzero(np.diff(labels)) == 9
    assert seen(1, ordinal=3, number=2) == seen(1)  # nothing is left to chance
    assert (
        epochs_of(1).epoch(NAME, 0, 0).examples.tolist()
        != order_of(1, LABELS)(LearnerId("another"), TRAIN, np.random.default_rng(0)).tolist()
    )


def test_a_buffer_lets_out_what_it_holds_and_a_slow_oracle_agrees() -> None:
    """An example leaves fewer than `size` places early; a list that is popped does the same."""
    size, rng = 250, np.random.default_rng(3)
    order = order_of(size, LABELS)(NAME, TRAIN, rng)
    by_class = order_of(1, LABELS)(NAME, TRAIN, np.random.default_rng(0))
    place = {example: at for at, example in enumerate(by_class.tolist())}
    assert all(place[example] - at < size for at, example in enumerate(order.tolist()))

    rng = np.random.default_rng(3)
    source, held, slow = list(by_class.tolist()), [], []
    held, source = source[:size], source[size:]
    for pick in rng.integers(size, size=len(source)).tolist():
        slow.append(held[pick])
        held[pick] = source.pop(0)
    assert order.tolist()[: len(slow)] == slow
    assert sorted(order.tolist()[len(slow) :]) == sorted(held)


def test_a_large_buffer_mixes_classes_and_a_small_one_does_not() -> None:
    def classes_in_a_batch(shuffle_buffer: int | None) -> float:
        labels = LABELS[seen(shuffle_buffer)].reshape(50, 100)
        return float(np.mean([len(set(batch.tolist())) for batch in labels]))

    assert classes_in_a_batch(None) == 10
    assert classes_in_a_batch(5000) == 10
    assert classes_in_a_batch(250) < 5
    assert classes_in_a_batch(100) < 3


def test_a_buffer_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="shuffle_buffer = 0: must be at least 1"):
        training_of(shuffle_buffer=0)


# ---- the last mini-batch ------------------------------------------------------------------------


@pytest.mark.parametrize("no_single", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 100, 102, 4998, 4999, 5000, 5001, 10**6])
@pytest.mark.parametrize("shuffle_buffer", [None, 250])
def test_without_the_last_an_epoch_is_the_full_mini_batches_that_it_would_begin_with(
    shuffle_buffer: int | None, batch_size: int, no_single: bool
) -> None:
    whole, cut = (
        epochs_of(shuffle_buffer, batch_size, last_batch, no_single, "cifar10")
        for last_batch in ("short", "drop")
    )
    before, after = whole.epoch(NAME, 1, 2), cut.epoch(NAME, 1, 2)
    ((stretch,), (short,)) = (
        list(epochs.stretches(NAME, 1, epochs.num_steps(NAME) * 2, epochs.num_steps(NAME)))
        for epochs in (whole, cut)
    )
    full = [size for size in stretch.sizes() if size == batch_size]

    if not full:  # there is nothing else to train on
        full = stretch.sizes()
    assert short.sizes() == full
    assert [one.last_batch(NAME) for one in (whole, cut)] == [stretch.sizes()[-1], full[-1]]
    assert cut.num_steps(NAME) == len(full) == len(after.seeds)
    assert after.examples.tolist() == before.examples[: sum(full)].tolist()
    assert after.draws.tolist() == before.draws[: sum(full)].tolist()
    assert after.seeds == before.seeds[: len(full)]


def test_what_is_left_out_is_other_examples_in_every_epoch() -> None:
    epochs = epochs_of(None, 102, "drop")
    left_out = [
        set(TRAIN.tolist()) - set(epochs.epoch(NAME, 0, n).examples.tolist()) for n in (0, 1)
    ]

    assert [len(one) for one in left_out] == [5000 % 102] * 2
    assert left_out[0] != left_out[1]


@pytest.mark.parametrize("no_single", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 100, 102, 4998, 4999, 5000])
@pytest.mark.parametrize("shuffle_buffer", [None, 250])
def test_filled_up_every_mini_batch_is_full_and_the_epochs_first_examples_fill_the_last(
    shuffle_buffer: int | None, batch_size: int, no_single: bool
) -> None:
    short, full = (
        epochs_of(shuffle_buffer, batch_size, last_batch, no_single, "cifar10")
        for last_batch in ("short", "fill")
    )
    before, after = short.epoch(NAME, 1, 2), full.epoch(NAME, 1, 2)
    (stretch,) = full.stretches(NAME, 1, full.num_steps(NAME) * 2, full.num_steps(NAME))
    num_steps = -(-len(TRAIN) // batch_size)
    missing = num_steps * batch_size - len(TRAIN)

    assert stretch.sizes() == [batch_size] * num_steps
    assert full.num_steps(NAME) == num_steps == len(after.seeds)
    samples = samples_of_epoch(len(TRAIN), batch_size, "fill", no_single)
    assert samples == num_steps * batch_size
    assert full.last_batch(NAME) == batch_size
    order = before.examples[: len(TRAIN)].tolist()
    assert after.examples.tolist() == order + order[:missing]
    # The chance of `short` is left alone; that of the filled places comes after it.
    assert after.draws[: len(TRAIN)].tolist() == before.draws[: len(TRAIN)].tolist()
    assert after.seeds == before.seeds
    if missing > 1:
        assert after.draws[len(TRAIN) :].tolist() != after.draws[:missing].tolist()


@pytest.mark.parametrize("last_batch", LAST_BATCHES)
def test_a_learner_with_fewer_examples_than_a_mini_batch_has_one_of_all_of_them(
    last_batch: str,
) -> None:
    epochs = epochs_of(None, 100, last_batch, num_examples=37)

    assert epochs.num_steps(NAME) == 1
    assert samples_of_epoch(37, 100, last_batch, False) == epochs.last_batch(NAME) == 37
    assert sorted(epochs.epoch(NAME, 0, 0).examples.tolist()) == TRAIN[:37].tolist()


def test_a_single_example_is_refused_where_batch_norm_needs_two() -> None:
    with pytest.raises(DataError, match="site has one training example; batch-norm needs"):
        epochs_of(None, 100, "fill", no_single=True, num_examples=1)


#: SHA-256 of the first epochs as commit 8d2c010 drew them, when `short` was all there was.
AT_8D2C010 = {
    (None, 100, False, "cifar10"): "521d5d6c2eb2c924",
    (None, 32, True, "cifar10"): "2fdd8944417007ba",
    (250, 4999, True, "none"): "7e24ecb8da908fa9",
    (None, 7, False, "none"): "528b8512cc8746fc",
}


@pytest.mark.parametrize("setting", AT_8D2C010, ids=str)
def test_short_draws_what_it_always_drew(setting: tuple[int | None, int, bool, str]) -> None:
    shuffle_buffer, batch_size, no_single, preparation = setting
    epochs = epochs_of(shuffle_buffer, batch_size, "short", no_single, preparation)
    drawn = sha256()
    for ordinal, number in ((0, 0), (1, 0), (1, 3)):
        epoch = epochs.epoch(NAME, ordinal, number)
        drawn.update(epoch.examples.numpy().tobytes())
        drawn.update(epoch.draws.numpy().tobytes())
        drawn.update(repr(epoch.seeds).encode())

    assert drawn.hexdigest()[:16] == AT_8D2C010[setting]
