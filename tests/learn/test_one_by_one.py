"""The learners of a simulation: repeatable to the byte, exact in their counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, r2_score
from torch import Tensor, nn

from metis.core.errors import ConfigError, DataError, ModelError
from metis.core.local_run import Learners
from metis.core.types import ClassCounts, ErrorSums, LearnerId, Snapshot, Task, Vector
from metis.data.dataset import Dataset
from metis.learn.flat import load_into, vector_of
from metis.learn.one_by_one import OneByOne, Share
from metis.learn.prepare import preparation_named
from metis.learn.training import Training
from metis.store.pack import read_packed, write_packed
from metis.zoo import build

A, B = LearnerId("a"), LearnerId("b")
NUM_CLASSES = 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dataset(num_classes: int = NUM_CLASSES) -> Dataset:
    """Twelve numbers per example; the class, or the target, is a noisy function of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 12)).astype(np.float32)
    signal = x @ rng.normal(size=(12, max(num_classes, 1)))
    y: Any = signal.argmax(axis=1) if num_classes else signal[:, 0].astype(np.float32)
    return Dataset("made", x[:100], y[:100], x[100:], y[100:], num_classes)


# 41 and 39 training examples: a last batch of one, and one of nine, with batches of ten.
SHARES = {
    A: Share(np.arange(0, 41), np.arange(41, 50), "fast"),
    B: Share(np.arange(50, 89), np.arange(89, 100), "slow"),
}


def dense() -> nn.Module:
    return build("mlp", (12,), NUM_CLASSES, seed=1)


def with_dropout() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, NUM_CLASSES))


def with_batch_norm() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, NUM_CLASSES)
    )


def with_counting_batch_norm() -> nn.Module:
    """Its running statistics are a plain mean over all steps, so the step counter matters."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 4))


def with_frozen_part() -> nn.Module:
    torch.manual_seed(1)
    features = nn.Linear(12, 16).requires_grad_(False)
    return nn.Sequential(features, nn.ReLU(), nn.Linear(16, NUM_CLASSES))


class TiedAutoencoder(nn.Module):
    """The same matrix reads the input and writes the hidden layer's second half."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.head = nn.Linear(12, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return logits


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "dropout": with_dropout,
    "batch_norm": with_batch_norm,
    "counting_batch_norm": with_counting_batch_norm,
    "frozen": with_frozen_part,
    "tied": TiedAutoencoder,
}
MODULE = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
TRAININGS = {
    "sgd": Training(batch_size=10),
    "adam": Training(batch_size=10, optimizer="adam", learning_rate=0.01),
    "proximal": Training(batch_size=10, proximal=0.1, weight_decay=0.01),
}
TRAINING = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())


def federation(
    make: Callable[[], nn.Module] = dense,
    training: Training = TRAININGS["sgd"],
    seed: int = 1,
    data: Dataset | None = None,
) -> tuple[OneByOne, Vector]:
    module = make()
    start = vector_of(module)
    data = data or dataset()
    return OneByOne(module, data, SHARES, training, preparation_named("none"), seed), start


def task(learner: LearnerId, start: Vector, version: int = 0) -> Task:
    return Task(1, learner, Snapshot(version, start), committed_steps=0, ordinal=version + 1)


def test_it_keeps_the_contract_and_says_who_there_is() -> None:
    learners: Learners = federation()[0]

    a, b = learners.profiles()
    assert (a.learner, a.num_examples, a.steps_per_epoch, a.group) == (A, 41, 5, "fast")
    assert (b.learner, b.num_examples, b.steps_per_epoch, b.group) == (B, 39, 4, "slow")


def test_training_lowers_the_validation_and_the_test_loss() -> None:
    learners, start = federation()
    first = learners.begin(task(A, start), with_loss=True)
    last = learners.advance(A, 20, with_loss=True)
    weights = learners.finish(A)

    assert first is not None
    assert last is not None
    assert last < first
    assert learners.test(weights).loss < learners.test(start).loss
    assert learners.test(weights).score > learners.test(start).score


@MODULE
def test_the_order_of_learners_changes_no_byte(make: Callable[[], nn.Module]) -> None:
    one, start = federation(make)
    for learner in (A, B):
        one.begin(task(learner, start), with_loss=False)
        one.advance(learner, 5, with_loss=True)
        one.advance(learner, 3, with_loss=False)
    other, _ = federation(make)
    for learner in (B, A):
        other.begin(task(learner, start), with_loss=True)
    other.test(start)
    for num_steps in (5, 3):
        for learner in (B, A):
            other.advance(learner, num_steps, with_loss=False)
            other.evaluate(start, [A, B])

    for learner in (A, B):
        assert one.finish(learner).tobytes() == other.finish(learner).tobytes()


@TRAINING
@MODULE
def test_three_steps_and_seven_are_ten(make: Callable[[], nn.Module], training: Training) -> None:
    whole, start = federation(make, training)
    whole.begin(task(A, start), with_loss=False)
    whole.advance(A, 10, with_loss=False)
    parts, _ = federation(make, training)
    parts.begin(task(A, start), with_loss=False)
    parts.advance(A, 3, with_loss=True)
    parts.advance(A, 7, with_loss=False)

    assert whole.finish(A).tobytes() == parts.finish(A).tobytes()


@TRAINING
@MODULE
def test_a_restored_task_ends_in_the_same_bytes(
    make: Callable[[], nn.Module], training: Training, tmp_path: Path
) -> None:
    learners, start = federation(make, training)
    for learner in (A, B):
        learners.begin(task(learner, start), with_loss=False)
        learners.advance(learner, 3, with_loss=False)
    write_packed(tmp_path / "state", learners.state())
    for learner in (A, B):
        learners.advance(learner, 6, with_loss=False)

    again, _ = federation(make, training)
    again.restore(read_packed(tmp_path / "state", ()))
    for learner in (B, A):
        again.advance(learner, 6, with_loss=False)

    for learner in (A, B):
        assert learners.finish(learner).tobytes() == again.finish(learner).tobytes()


def test_a_state_is_not_changed_by_what_comes_after() -> None:
    learners, start = federation(training=TRAININGS["adam"])
    learners.begin(task(A, start), with_loss=False)
    learners.advance(A, 2, with_loss=False)
    state = learners.state()
    learners.advance(A, 3, with_loss=False)
    wanted = learners.finish(A)

    for _ in range(2):
        learners.restore(state)
        learners.advance(A, 3, with_loss=False)
        assert learners.finish(A).tobytes() == wanted.tobytes()


def trained(learners: OneByOne, start: Vector, version: int = 0, num_steps: int = 5) -> bytes:
    learners.begin(task(A, start, version), with_loss=False)
    learners.advance(A, num_steps, with_loss=False)
    return learners.finish(A).tobytes()


def test_chance_follows_the_seed_and_the_ordinal_and_nothing_else() -> None:
    learners, start = federation()
    wanted = trained(learners, start)
    torch.manual_seed(99)

    assert trained(learners, start) == wanted
    assert trained(learners, start, version=1) != wanted
    assert trained(federation(seed=2)[0], start) != wanted


def test_the_global_generator_of_torch_is_left_alone() -> None:
    learners, start = federation(with_dropout)
    before = torch.random.get_rng_state()
    trained(learners, start)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_differs_from_step_to_step() -> None:
    learners, start = federation(with_dropout)
    masks: list[Tensor] = []
    dropout = learners._module.get_submodule("2")
    dropout.register_forward_hook(lambda module, given, got: masks.append(got[0] == 0))
    trained(learners, start)

    assert not torch.equal(masks[0], masks[1])


def test_an_epoch_shows_every_example_once_and_each_epoch_in_another_order() -> None:
    learners, start = federation()
    seen: list[Tensor] = []
    learners._module.register_forward_pre_hook(lambda module, given: seen.append(given[0][:, 0]))
    trained(learners, start, num_steps=10)

    sizes = [len(batch) for batch in seen]
    assert sizes == [10, 10, 10, 10, 1] * 2
    epochs = torch.cat(seen).numpy().reshape(2, 41)
    wanted = np.sort(dataset().x_train[:41, 0])
    assert (np.sort(epochs, axis=1) == wanted).all()
    assert (epochs[0] != epochs[1]).any()


def test_a_last_batch_of_one_is_joined_by_the_epochs_first_example_for_batch_norm() -> None:
    learners, start = federation(with_batch_norm)
    seen: list[Tensor] = []
    learners._module.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    trained(learners, start)

    assert [len(batch) for batch in seen] == [10, 10, 10, 10, 2]
    assert torch.equal(seen[-1][1], seen[0][0])


def test_batches_of_one_are_refused_for_batch_norm_only() -> None:
    training = Training(batch_size=1)
    with pytest.raises(ConfigError, match="batch_size = 1"):
        federation(with_batch_norm, training)
    trained(*federation(dense, training))


def test_a_frozen_part_travels_but_does_not_change() -> None:
    learners, start = federation(with_frozen_part, TRAININGS["proximal"])
    weights = np.frombuffer(trained(learners, start), dtype=np.float32)
    num_frozen = 12 * 16 + 16

    assert weights[:num_frozen].tobytes() == start[:num_frozen].tobytes()
    assert (weights[num_frozen:] != start[num_frozen:]).all()


def test_a_result_loads_into_a_fresh_module() -> None:
    learners, start = federation(with_batch_norm)
    weights = np.frombuffer(trained(learners, start), dtype=np.float32)
    module = with_batch_norm().eval()
    load_into(module, weights)
    data = dataset()
    with torch.no_grad():
        guessed = module(torch.from_numpy(data.x_test)).argmax(1).numpy()

    assert learners.test(weights).score == pytest.approx((guessed == data.y_test).mean())


def test_momentum_starts_afresh_unless_it_is_kept() -> None:
    afresh, start = federation()
    kept, _ = federation(training=Training(batch_size=10, keep_momentum=True))

    assert trained(afresh, start) == trained(kept, start)
    assert trained(afresh, start) != trained(kept, start)


def test_an_abandoned_task_leaves_what_was_kept_as_it_was() -> None:
    training = Training(batch_size=10, keep_momentum=True)
    plain, start = federation(training=training)
    trained(plain, start)
    disturbed, _ = federation(training=training)
    trained(disturbed, start)
    disturbed.begin(task(A, start, version=7), with_loss=False)
    disturbed.advance(A, 3, with_loss=False)
    disturbed.abandon(A)
    disturbed.abandon(B)
    restored, _ = federation(training=training)
    restored.restore(disturbed.state())

    wanted = trained(plain, start, version=1)
    assert trained(disturbed, start, version=1) == wanted
    assert trained(restored, start, version=1) == wanted


def test_a_kept_optimizer_takes_the_rate_of_the_new_version() -> None:
    training = Training(
        batch_size=10, keep_momentum=True, schedule="step", schedule_versions=1, momentum=0.0
    )
    kept, start = federation(training=training)
    trained(kept, start, version=0)

    assert trained(kept, start, version=3) == trained(
        federation(training=training)[0], start, version=3
    )


def test_counts_are_sklearns_confusion_matrices() -> None:
    learners, start = federation()
    data = dataset()
    module = dense()
    with torch.no_grad():
        guessed = module(torch.from_numpy(data.x_train)).argmax(1).numpy()
    counts = learners.evaluate(start, [B, A])

    for learner, got in zip((B, A), counts, strict=True):
        held_out = SHARES[learner].validation
        wanted = confusion_matrix(
            data.y_train[held_out], guessed[held_out], labels=range(NUM_CLASSES)
        )
        assert isinstance(got, ClassCounts)
        assert got.matrix.dtype == np.int64
        assert got.matrix.tolist() == wanted.tolist()


def test_a_regression_is_scored_by_its_sums() -> None:
    data = dataset(num_classes=0)
    learners, start = federation(
        lambda: build("linear", (12,), 1, seed=1),
        Training(batch_size=10, learning_rate=0.02),
        data=data,
    )
    first = learners.test(start)
    weights = np.frombuffer(trained(learners, start, num_steps=50), dtype=np.float32)
    guessed = (data.x_test @ weights[:12] + weights[12]).astype(np.float64)
    result = learners.test(weights)

    assert result.score == pytest.approx(r2_score(data.y_test, guessed), abs=1e-5)
    assert result.score > max(first.score, 0.5)
    assert result.loss == pytest.approx(np.square(guessed - data.y_test).mean(), rel=1e-4)
    (sums,) = learners.evaluate(weights, [A])
    y = data.y_train[SHARES[A].validation].astype(np.float64)
    error = data.x_train[SHARES[A].validation] @ weights[:12] + weights[12] - y
    assert isinstance(sums, ErrorSums)
    assert sums.num_examples == 9
    assert sums.squared_error == pytest.approx(np.square(error).sum(), rel=1e-4)
    assert sums.absolute_error == pytest.approx(np.abs(error).sum(), rel=1e-4)
    assert sums.target == pytest.approx(y.sum())
    assert sums.target_squared == pytest.approx(np.square(y).sum())


def test_those_without_validation_examples_do_not_judge() -> None:
    shares = {A: SHARES[A], B: Share(SHARES[B].train, np.array([], dtype=np.int64))}
    module = dense()
    start = vector_of(module)
    learners = OneByOne(
        module, dataset(), shares, TRAININGS["sgd"], preparation_named("none"), seed=1
    )

    counts = learners.evaluate(start, [B, A, B])
    assert counts[0] is counts[2] is None
    assert isinstance(counts[1], ClassCounts)
    assert learners.evaluate(start, [B]) == [None]
    assert learners.evaluate(start, []) == []
    with pytest.raises(ConfigError, match="b has no validation examples"):
        learners.begin(task(B, start), with_loss=True)


def test_a_loss_that_is_not_finite_is_told_with_learner_epoch_and_step() -> None:
    data = dataset()
    data.x_train[7] = np.nan
    learners, start = federation(data=data)
    learners.begin(task(A, start), with_loss=False)
    with pytest.raises(FloatingPointError, match=r"a: training loss is nan in epoch 1, step \d"):
        learners.advance(A, 5, with_loss=False)
    learners.abandon(A)

    learners.begin(task(B, start), with_loss=False)
    learners.advance(B, 4, with_loss=False)
    assert np.isfinite(learners.finish(B)).all()


def test_weights_that_overflow_in_the_last_step_are_told() -> None:
    learners, start = federation(training=Training(batch_size=100, learning_rate=1e38))
    learners.begin(task(A, 1e3 * start), with_loss=False)
    with pytest.raises(FloatingPointError, match="weights are not finite after step 1"):
        learners.advance(A, 1, with_loss=False)


def test_bytes_are_prepared_and_read_only_arrays_taken() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    x.flags.writeable = False
    data = Dataset("images", x, np.arange(40) % 10, x[:5], np.arange(5), 10)
    module = build("cifar_cnn", (3, 24, 24), 10, seed=1)
    start = vector_of(module)
    shares = {A: Share(np.arange(30), np.arange(30, 40))}
    training = Training(batch_size=16, weight_decay=0.004, weight_decay_on=("fc1.weight",))
    learners = OneByOne(module, data, shares, training, preparation_named("cifar10"), seed=1)

    learners.begin(task(A, start), with_loss=True)
    assert learners.advance(A, 2, with_loss=True) is not None
    assert learners.layout.size == len(learners.finish(A)) == 1_068_298


def test_a_loss_of_ones_own_is_used() -> None:
    def smooth(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y, label_smoothing=0.5)

    module = dense()
    start = vector_of(module)
    learners = OneByOne(
        module, dataset(), SHARES, TRAININGS["sgd"], preparation_named("none"), 1, smooth
    )

    assert trained(learners, start) != trained(federation()[0], start)


def test_modules_and_data_that_do_not_fit_are_refused_at_once() -> None:
    with pytest.raises(ModelError, match=r"cannot take inputs of shape \(12,\)"):
        federation(lambda: nn.Linear(5, NUM_CLASSES))
    with pytest.raises(ModelError, match=r"outputs of shape \(2, 3\).*4 classes needs \(2, 4\)"):
        federation(lambda: nn.Linear(12, 3))
    with pytest.raises(ModelError, match=r"a regression needs \(2, 1\)"):
        federation(lambda: nn.Linear(12, 2), data=dataset(num_classes=0))
    with pytest.raises(DataError, match="a has no training examples"):
        OneByOne(
            dense(),
            dataset(),
            {A: Share(np.array([], dtype=np.int64), np.arange(3))},
            TRAININGS["sgd"],
            preparation_named("none"),
            seed=1,
        )
    with pytest.raises(ModelError, match="values, but the vector has shape"):
        federation()[0].test(np.zeros(3, dtype=np.float32))
