"""The learners of a simulation: repeatable to the byte, exact in their counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, r2_score
from torch import Tensor, nn

from metis.core.errors import ConfigError, DataError, ModelError
from metis.core.learners import Durable, Judge, Trainer
from metis.core.types import ClassCounts, Counts, ErrorSums, LearnerId, Vector, frozen
from metis.data.dataset import Dataset
from metis.models import build
from metis.store.pack import read_packed, write_packed
from metis.training.engines.choose import Learners
from metis.training.epochs import Share
from metis.training.flat import load_into, vector_of
from metis.training.learner_data import place
from metis.training.prepare import preparation_named
from metis.training.step import Training
from tests.training.federation import (
    ENGINES,
    MODULE,
    NUM_CLASSES,
    PICTURE,
    SHARES,
    TRAINING,
    TRAININGS,
    A,
    B,
    Bench,
    Federate,
    bench_of,
    dataset,
    dense,
    go_on,
    loop,
    task,
    trained,
    with_batch_norm,
    with_convolutions,
    with_dropout,
    with_frozen_part,
)


def answers(learners: Learners, weights: Vector, judges: list[LearnerId]) -> list[Counts | None]:
    return [learners.take_counts(question) for question in learners.request_counts(weights, judges)]


def plain(counts: Counts | None) -> Any:
    """Return counts as something that can be compared."""
    return counts.matrix.tolist() if isinstance(counts, ClassCounts) else counts


def packed(state: object, path: Path) -> object:
    """Return a state as it is found after a crash."""
    write_packed(path / "state", state)
    return read_packed(path / "state", (ClassCounts, ErrorSums))


def test_they_keep_the_contracts(federation: Federate) -> None:
    learners = federation()[0]

    _trainer: Trainer = learners
    _judge: Judge = learners
    _durable: Durable = learners


def test_a_profile_says_what_a_learner_holds_and_how_long_its_epoch_is() -> None:
    a, b = bench_of()[0].data.profiles()

    assert (a.learner, a.num_examples, a.steps_per_epoch, a.group) == (A, 41, 5, "fast")
    assert (b.learner, b.num_examples, b.steps_per_epoch, b.group) == (B, 39, 4, "slow")


def test_training_lowers_the_validation_and_the_test_loss(federation: Federate) -> None:
    learners, start = federation()
    learners.begin(task(A, start), with_loss=True)
    told = go_on(learners, A, 5, 5, 5, 5)
    weights = learners.finish(A)

    assert [len(losses) for losses in told] == [2, 1, 1, 1]
    assert told[-1][0] < told[0][0]
    assert learners.test(weights).loss < learners.test(start).loss
    assert learners.test(weights).score > learners.test(start).score


def test_losses_are_those_of_the_received_model_and_then_of_the_present_one(
    federation: Federate,
) -> None:
    learners, start = federation()
    learners.begin(task(A, start), with_loss=True)
    (first, second), (third,) = go_on(learners, A, 5, 3)
    data, held_out = dataset(), SHARES[A].validation
    for loss, num_steps in ((first, 0), (second, 5), (third, 8)):
        module = dense()
        if num_steps:
            weights = trained(federation()[0], start, num_steps=num_steps)
            load_into(module, np.frombuffer(weights, dtype=np.float32))
        with torch.no_grad():
            outputs = module(torch.from_numpy(data.x_train[held_out]))
            wanted = nn.functional.cross_entropy(outputs, torch.from_numpy(data.y_train[held_out]))
        assert loss == pytest.approx(float(wanted), rel=1e-6)


#: So fast that the validation loss goes up and down.
OFFERS_BEST = Training(batch_size=10, learning_rate=0.5, momentum=0.5, offers_best=True)


def best_of(learners: Learners, start: Vector, losses: list[float]) -> bytes:
    """Return the model of least loss after an epoch, trained anew as far as that."""
    epochs = 1 + losses.index(min(losses))
    assert 1 < epochs < len(losses), "a choice that could not be wrong"
    return trained(learners, start, num_steps=5 * epochs)


def test_if_wished_the_model_of_least_validation_loss_is_offered(federation: Federate) -> None:
    learners, start = federation(training=OFFERS_BEST)
    for _ in range(2):  # the second task knows nothing of the first
        learners.begin(task(A, start), with_loss=True)
        (_, first), *others = go_on(learners, A, *[5] * 8)
        offered = learners.finish(A).tobytes()

        losses = [first, *(loss for (loss,) in others)]
        assert offered == best_of(learners, start, losses)
        assert offered != trained(federation()[0], start, num_steps=40)


def test_the_best_model_so_far_outlives_a_crash(
    federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    learners, start = begun(training=OFFERS_BEST)
    learners.begin(task(A, start), with_loss=True)
    (_, first), *others = go_on(learners, A, *[5] * 8)
    losses = [first, *(loss for (loss,) in others)]
    best = 1 + losses.index(min(losses))
    early = 1 + losses[: best - 1].index(min(losses[: best - 1]))  # the best so far, until then

    for crash in (early, best, len(losses)):
        learners, _ = begun(training=OFFERS_BEST)
        learners.begin(task(A, start), with_loss=True)
        go_on(learners, A, *[5] * crash)
        again, _ = gone_on(training=OFFERS_BEST)
        again.restore(packed(learners.state(), tmp_path))
        go_on(again, A, *[5] * (len(losses) - crash), done=5 * crash)

        assert again.finish(A).tobytes() == best_of(again, start, losses)


def test_without_losses_the_latest_model_is_offered(federation: Federate) -> None:
    learners, start = federation(training=OFFERS_BEST)
    plain = federation(training=replace(OFFERS_BEST, offers_best=False))[0]

    assert trained(learners, start, num_steps=13) == trained(plain, start, num_steps=13)


def test_no_losses_are_told_unless_they_were_asked_for(federation: Federate) -> None:
    learners, start = federation()
    learners.begin(task(A, start), with_loss=False)

    assert go_on(learners, A, 5, 3, 2) == [(), (), ()]


# --- the same bytes, however it is computed


@MODULE
def test_the_order_of_learners_changes_no_byte(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    one, start = federation(make)
    for learner in (A, B):
        one.begin(task(learner, start), with_loss=True)
        go_on(one, learner, 5, 3)
    other, _ = federation(make)
    for learner in (B, A):
        other.begin(task(learner, start), with_loss=False)
        other.announce(learner, 8)
    other.test(start)
    questions = other.request_counts(start, [A, B])
    for num_steps in (5, 3):
        for learner in (B, A):
            other.advance(learner, num_steps)
            answers(other, start, [A, B])
    for question in reversed(questions):
        other.take_counts(question)

    for learner in (A, B):
        assert one.finish(learner).tobytes() == other.finish(learner).tobytes()


@TRAINING
@MODULE
def test_three_steps_and_seven_are_ten(
    make: Callable[[], nn.Module], training: Training, federation: Federate
) -> None:
    whole, start = federation(make, training)
    wanted = trained(whole, start, num_steps=10)
    learners, _ = federation(make, training)

    learners.begin(task(A, start), with_loss=False)
    go_on(learners, A, 3, 7)
    assert learners.finish(A).tobytes() == wanted

    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 10)
    learners.advance(A, 3)
    learners.announce(A, 10)
    learners.advance(A, 7)
    assert learners.finish(A).tobytes() == wanted

    learners.begin(task(A, start), with_loss=True)
    go_on(learners, A, 3, 2, 1, 4)
    assert learners.finish(A).tobytes() == wanted


@TRAINING
@MODULE
def test_every_way_to_compute_gives_the_same_bytes(
    make: Callable[[], nn.Module], training: Training, opened: ExitStack
) -> None:
    shape = PICTURE if make is with_convolutions else (12,)
    data = dataset(shape=shape, num_test=1300)  # three batches of an evaluation
    found = []
    for engine in ENGINES:
        learners, start = Federate(engine, opened)(make, training, data=data)
        for learner in (A, B):
            learners.begin(task(learner, start), with_loss=learner == B)
        told = [*go_on(learners, B, 4, 4), *go_on(learners, A, 13)]
        weights = [learners.finish(learner) for learner in (A, B)]
        found.append(
            (
                told,
                [vector.tobytes() for vector in weights],
                [learners.test(vector) for vector in (start, *weights)],
                [
                    plain(counts)
                    for vector in weights
                    for counts in answers(learners, vector, [A, B])
                ],
            )
        )

    assert all(other == found[0] for other in found)


def test_every_way_to_compute_scores_a_regression_the_same(opened: ExitStack) -> None:
    found = []
    for engine in ENGINES:
        learners, start = Federate(engine, opened)(
            lambda: build("mlp", (12,), 1, seed=1), data=dataset(num_classes=0, num_test=1300)
        )
        found.append((learners.test(start), answers(learners, start, [A, B])))

    assert all(other == found[0] for other in found)


def test_a_judges_counts_do_not_depend_on_who_else_is_asked(federation: Federate) -> None:
    learners, start = federation(
        lambda: build("mlp", (12,), 1, seed=1), data=dataset(num_classes=0)
    )
    together = answers(learners, start, [A, B])
    alone = [*answers(learners, start, [A]), *answers(learners, start, [B])]
    first, second = learners.request_counts(start, [A, B])
    learners.abandon(A)
    learners.forget(A)
    left = learners.take_counts(second)

    assert together == alone
    assert left == alone[1]
    assert first != second


# --- what outlives a crash


@TRAINING
@MODULE
def test_a_restored_task_ends_in_the_same_bytes(
    make: Callable[[], nn.Module],
    training: Training,
    federations: tuple[Federate, Federate],
    tmp_path: Path,
) -> None:
    begun, gone_on = federations
    learners, start = begun(make, training)
    for learner in (A, B):
        learners.begin(task(learner, start), with_loss=False)
        go_on(learners, learner, 3)
    state = packed(learners.state(), tmp_path)
    for learner in (A, B):
        go_on(learners, learner, 6, done=3)

    again, _ = gone_on(make, training)
    again.restore(state)
    for learner in (B, A):
        go_on(again, learner, 6, done=3)

    for learner in (A, B):
        assert learners.finish(learner).tobytes() == again.finish(learner).tobytes()


@MODULE
def test_steps_that_were_expected_and_not_fetched_are_fetched_after_a_crash(
    make: Callable[[], nn.Module], federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    learners, start = begun(make)
    wanted = {
        learner: trained(learners, start, num_steps=13, learner=learner) for learner in (A, B)
    }
    for learner in (A, B):
        learners.begin(task(learner, start), with_loss=False)
        learners.announce(learner, 13)
    learners.advance(A, 5)
    # Before any of it need have been computed, and after all of it has.
    early = packed(learners.state(), tmp_path)
    learners.advance(B, 13)
    learners.advance(A, 5)
    late = packed(learners.state(), tmp_path)

    again, _ = gone_on(make)
    again.restore(early)
    again.advance(B, 13)
    assert again.finish(B).tobytes() == wanted[B]
    again.advance(A, 8)
    assert again.finish(A).tobytes() == wanted[A]

    again, _ = gone_on(make)
    again.restore(late)
    assert again.finish(B).tobytes() == wanted[B]
    again.advance(A, 3)
    assert again.finish(A).tobytes() == wanted[A]
    assert trained(again, start, num_steps=13) == wanted[A]


def test_losses_not_told_before_a_crash_are_told_after_it(
    federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    learners, start = begun()
    for learner in (A, B):
        learners.begin(task(learner, start), with_loss=True)
    wanted_b = go_on(learners, B, 4)
    learners.announce(A, 5)
    learners.announce(B, 8)
    state = packed(learners.state(), tmp_path)
    wanted_a = [learners.advance(A, 5), *go_on(learners, A, 5, done=5)]
    wanted_b.append(learners.advance(B, 4))

    again, _ = gone_on()
    again.restore(state)
    told_b = again.advance(B, 4)
    told_a = [again.advance(A, 5), *go_on(again, A, 5, done=5)]

    assert told_a == wanted_a
    assert told_b == wanted_b[1]
    assert [len(losses) for losses in (*wanted_a, *wanted_b)] == [2, 1, 2, 1]


def test_requests_that_were_not_taken_are_computed_after_a_crash(
    federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    shares = {**SHARES, LearnerId("c"): Share(np.arange(3), np.array([], dtype=np.int64))}
    learners, start = begun(shares=shares)
    other = frozen(start[::-1])
    questions = [
        *learners.request_counts(start, [A, B, LearnerId("c")]),
        *learners.request_counts(other, [B, A]),
    ]
    answered, *waiting = questions
    learners.take_counts(answered)
    state = packed(learners.state(), tmp_path)
    wanted = [plain(learners.take_counts(question)) for question in waiting]

    again, _ = gone_on(shares=shares)
    again.restore(state)
    more = again.request_counts(other, [A])

    assert [plain(again.take_counts(question)) for question in reversed(waiting)] == wanted[::-1]
    assert wanted[1] is None
    assert not set(more) & set(questions)
    assert plain(again.take_counts(more[0])) == wanted[-1]


def test_what_was_kept_for_the_next_task_outlives_a_crash(
    federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    training = Training(batch_size=10, keep_momentum=True)
    for make in (dense, with_convolutions):
        learners, start = begun(make, training)
        for learner in (A, B):
            trained(learners, start, learner=learner)
        state = packed(learners.state(), tmp_path)
        again, _ = gone_on(make, training)
        again.restore(state)

        for learner in (A, B):
            wanted = trained(learners, start, version=1, learner=learner)
            assert trained(again, start, version=1, learner=learner) == wanted


@pytest.mark.parametrize("make", [dense, with_convolutions])
def test_a_state_is_not_changed_by_what_comes_after(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    learners, start = federation(make, TRAININGS["adam"])
    learners.begin(task(A, start), with_loss=False)
    go_on(learners, A, 2)
    state = learners.state()
    go_on(learners, A, 3, done=2)
    wanted = learners.finish(A)

    for _ in range(2):
        learners.restore(state)
        go_on(learners, A, 3, done=2)
        assert learners.finish(A).tobytes() == wanted.tobytes()


def test_a_learner_whose_task_is_abandoned_still_answers_as_a_judge(federation: Federate) -> None:
    learners, start = federation()
    learners.begin(task(A, start), with_loss=False)
    (question,) = learners.request_counts(start, [A])
    wanted = plain(answers(learners, start, [A])[0])

    learners.abandon(A)

    assert plain(learners.take_counts(question)) == wanted


def test_a_state_is_not_changed_by_what_is_answered_after(federation: Federate) -> None:
    learners, start = federation()
    first, second = learners.request_counts(start, [A, B])
    state = learners.state()
    wanted = plain(learners.take_counts(first))
    learners.forget(B)

    again, _ = federation()
    again.restore(state)
    assert plain(again.take_counts(first)) == wanted
    assert again.take_counts(second) is not None


# --- chance


def test_chance_follows_the_seed_and_the_ordinal_and_nothing_else(federation: Federate) -> None:
    learners, start = federation()
    wanted = trained(learners, start)
    torch.manual_seed(99)

    assert trained(learners, start) == wanted
    assert trained(learners, start, version=1) != wanted
    assert trained(federation(seed=2)[0], start) != wanted


def test_the_global_generator_of_torch_is_left_alone(federation: Federate) -> None:
    module = with_dropout()
    before = torch.random.get_rng_state()
    learners, start = federation(lambda: module)
    trained(learners, start)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_differs_from_step_to_step() -> None:
    bench, start = bench_of(with_dropout)
    masks: list[Tensor] = []
    dropout = bench.module.network.get_submodule("2")
    dropout.register_forward_hook(lambda module, given, got: masks.append(got[0] == 0))
    trained(loop(bench), start)

    assert not torch.equal(masks[0], masks[1])


#: An epoch's last mini-batch holds what is left.
SHORT = Training(batch_size=10, last_batch="short")


def test_an_epoch_shows_every_example_once_and_each_epoch_in_another_order() -> None:
    bench, start = bench_of(training=SHORT)
    seen: list[Tensor] = []
    bench.module.network.register_forward_pre_hook(
        lambda module, given: seen.append(given[0][:, 0])
    )
    trained(loop(bench), start, num_steps=10)

    sizes = [len(batch) for batch in seen]
    assert sizes == [10, 10, 10, 10, 1] * 2
    epochs = torch.cat(seen).numpy().reshape(2, 41)
    wanted = np.sort(dataset().x_train[:41, 0])
    assert (np.sort(epochs, axis=1) == wanted).all()
    assert (epochs[0] != epochs[1]).any()


def test_a_last_batch_of_one_is_joined_by_the_epochs_first_example_for_batch_norm() -> None:
    bench, start = bench_of(with_batch_norm, SHORT)
    seen: list[Tensor] = []
    bench.module.network.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    trained(loop(bench), start)

    assert [len(batch) for batch in seen] == [10, 10, 10, 10, 2]
    assert torch.equal(seen[-1][1], seen[0][0])


def test_batches_of_one_are_refused_for_batch_norm_only(federation: Federate) -> None:
    training = Training(batch_size=1)
    with pytest.raises(ConfigError, match="batch_size = 1"):
        federation(with_batch_norm, training)
    trained(*federation(dense, training))


# --- what is trained


def test_a_frozen_part_travels_but_does_not_change(federation: Federate) -> None:
    learners, start = federation(with_frozen_part, TRAININGS["proximal"])
    weights = np.frombuffer(trained(learners, start), dtype=np.float32)
    num_frozen = 12 * 16 + 16

    assert weights[:num_frozen].tobytes() == start[:num_frozen].tobytes()
    assert (weights[num_frozen:] != start[num_frozen:]).all()


@pytest.mark.parametrize("make", [with_batch_norm, with_convolutions])
def test_a_result_loads_into_a_fresh_module(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    learners, start = federation(make)
    weights = np.frombuffer(trained(learners, start), dtype=np.float32)
    module = make().eval()
    load_into(module, weights)
    data = dataset(shape=PICTURE) if make is with_convolutions else dataset()
    with torch.no_grad():
        outputs = module(torch.from_numpy(data.x_test))
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(data.y_test))
    result = learners.test(weights)

    assert result.score == pytest.approx((outputs.argmax(1).numpy() == data.y_test).mean())
    assert result.loss == pytest.approx(float(loss), rel=1e-5)


def test_a_trained_model_shares_no_memory_with_the_learners(federation: Federate) -> None:
    learners, start = federation()
    weights = np.frombuffer(trained(learners, start), dtype=np.float32)
    learners.begin(task(A, start), with_loss=False)
    go_on(learners, A, 5)
    model = learners.finish(A)
    trained(learners, start, version=1)
    learners.test(start)

    assert model.tobytes() == weights.tobytes()
    assert not model.flags.writeable


def test_filters_are_kept_with_their_channels_last_where_the_module_takes_it() -> None:
    bench, _ = bench_of(with_convolutions)

    assert [place.name for place in bench.module.flat.channels_last] == ["0.weight", "3.weight"]
    for part in bench.module.network.modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)
    assert bench_of(dense)[0].module.flat.channels_last == ()


class Viewing(nn.Module):
    """Takes contiguous tensors only, as many a module of somebody's own does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 5, 3)
        self.head = nn.Linear(20, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.conv(x)).view(len(x), 20))
        return logits


@pytest.mark.parametrize("make", [with_convolutions, Viewing])
def test_convolutions_are_trained_as_plain_pytorch_trains_them(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    training = Training(batch_size=10, momentum=0.9, learning_rate=0.05)
    bench, start = bench_of(make, training)
    data = dataset(shape=PICTURE)
    x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
    module = make().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for stretch in bench.data.epochs.stretches(A, 1, 0, 20):
        for examples in torch.split(stretch.epoch.examples, 10):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(module(x[examples]), y[examples]))
            optimizer.step()
    weights = trained(federation.on(bench), start, num_steps=20)

    assert np.frombuffer(weights, np.float32) == pytest.approx(
        vector_of(module), rel=1e-3, abs=1e-4
    )


def test_a_module_that_takes_contiguous_tensors_only_is_given_such(federation: Federate) -> None:
    bench, start = bench_of(Viewing)
    learners = federation.on(bench)
    assert bench.module.flat.channels_last == ()

    learners.begin(task(A, start), with_loss=True)
    assert len(go_on(learners, A, 5)[0]) == 2
    weights = learners.finish(A)
    assert all(isinstance(counts, ClassCounts) for counts in answers(learners, weights, [A, B]))
    assert learners.test(weights) != learners.test(start)


def test_momentum_starts_afresh_unless_it_is_kept(federation: Federate) -> None:
    afresh, start = federation()
    kept, _ = federation(training=Training(batch_size=10, keep_momentum=True))

    assert trained(afresh, start) == trained(kept, start)
    assert trained(afresh, start) != trained(kept, start)


def test_an_abandoned_task_leaves_what_was_kept_as_it_was(federation: Federate) -> None:
    training = Training(batch_size=10, keep_momentum=True)
    plain, start = federation(training=training)
    trained(plain, start)
    disturbed, _ = federation(training=training)
    trained(disturbed, start)
    disturbed.begin(task(A, start, version=7), with_loss=False)
    go_on(disturbed, A, 3)
    disturbed.abandon(A)
    disturbed.abandon(B)
    restored, _ = federation(training=training)
    restored.restore(disturbed.state())

    wanted = trained(plain, start, version=1)
    assert trained(disturbed, start, version=1) == wanted
    assert trained(restored, start, version=1) == wanted


@MODULE
def test_a_task_abandoned_in_the_middle_leaves_no_trace(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    undisturbed, start = federation(make)
    wanted = [trained(undisturbed, start, version) for version in (0, 1)]
    learners, _ = federation(make)
    learners.begin(task(B, start), with_loss=False)
    learners.announce(B, 8)
    for told in (0, 3, 5, 10):
        learners.begin(task(A, start), with_loss=False)
        learners.announce(A, 15)
        if told:
            learners.advance(A, told)
        learners.abandon(A)
        assert trained(learners, start, version=1) == wanted[1]
    # A learner that is restarted is given the same task again.
    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 15)
    learners.advance(A, 10)
    learners.abandon(A)
    assert trained(learners, start) == wanted[0]

    learners.advance(B, 8)
    assert learners.finish(B).tobytes() == trained(undisturbed, start, num_steps=8, learner=B)


def test_tasks_can_be_abandoned_for_ever(federation: Federate) -> None:
    learners, start = federation()
    wanted = trained(learners, start)
    for _ in range(30):
        learners.begin(task(A, start), with_loss=False)
        learners.announce(A, 10)
        learners.request_counts(start, [A])
        learners.abandon(A)

    assert trained(learners, start) == wanted


def test_a_kept_optimizer_takes_the_rate_of_the_new_task(federation: Federate) -> None:
    training = Training(batch_size=10, keep_momentum=True, momentum=0.0)
    kept, start = federation(training=training)
    trained(kept, start)

    assert trained(kept, start, rate_factor=0.01) == trained(
        federation(training=training)[0], start, rate_factor=0.01
    )


@TRAINING
def test_a_factor_of_a_task_is_as_good_as_another_learning_rate(
    training: Training, federation: Federate
) -> None:
    slower = replace(training, learning_rate=training.learning_rate * 0.25)
    one, start = federation(training=training)
    other, _ = federation(training=slower)

    assert trained(one, start, rate_factor=0.25) == trained(other, start)
    assert trained(one, start, rate_factor=0.25) != trained(other, start, rate_factor=0.25)


def test_the_factor_of_a_task_outlives_a_crash(federation: Federate) -> None:
    learners, start = federation()
    wanted = trained(learners, start, num_steps=10, rate_factor=0.25)
    learners.begin(task(A, start, rate_factor=0.25), with_loss=False)
    go_on(learners, A, 5)
    restored, _ = federation()
    restored.restore(learners.state())
    go_on(restored, A, 5, done=5)

    assert restored.finish(A).tobytes() == wanted


def test_a_loss_of_ones_own_is_used() -> None:
    def smooth(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y, label_smoothing=0.5)

    bench, start = bench_of()
    usual = trained(loop(bench), start)
    bench.module.loss = smooth

    assert trained(loop(bench), start) != usual


def whole(share: Share) -> Share:
    """A learner that holds nothing out."""
    everything = np.concatenate((share.train, share.validation))
    return Share(everything, np.array([], dtype=np.int64), share.group)


@MODULE
def test_a_task_that_says_so_is_trained_on_what_was_held_out_too(
    make: Callable[[], nn.Module], federation: Federate
) -> None:
    learners, start = federation(make)
    shares = {name: whole(share) for name, share in SHARES.items()}
    plain, _ = federation(make, shares=shares)
    a, _ = bench_of(make)[0].data.profiles()
    full, _ = bench_of(make, shares=shares)[0].data.profiles()
    assert (a.examples(True), a.epoch_steps(True)) == (full.num_examples, full.steps_per_epoch)
    ends = []
    for one, all_examples in ((learners, True), (plain, False)):
        given = replace(task(B, start), all_examples=all_examples)
        one.begin(given, with_loss=False)
        go_on(one, B, 3, 5, 5)  # epochs of five, not four
        ends.append(one.finish(B).tobytes())

    assert ends[0] == ends[1] != trained(learners, start, num_steps=13, learner=B)


def test_that_a_task_takes_all_examples_outlives_a_crash(federation: Federate) -> None:
    learners, start = federation()
    learners.begin(replace(task(B, start), all_examples=True), with_loss=False)
    go_on(learners, B, 3)
    restored, _ = federation()
    restored.restore(learners.state())
    ends = []
    for one in (learners, restored):
        go_on(one, B, 7, done=3)
        ends.append(one.finish(B).tobytes())

    assert ends[0] == ends[1]


# --- scores


def test_counts_are_sklearns_confusion_matrices(federation: Federate) -> None:
    learners, start = federation()
    data = dataset()
    module = dense()
    with torch.no_grad():
        guessed = module(torch.from_numpy(data.x_train)).argmax(1).numpy()
    counts = answers(learners, start, [B, A])

    for learner, got in zip((B, A), counts, strict=True):
        held_out = SHARES[learner].validation
        wanted = confusion_matrix(
            data.y_train[held_out], guessed[held_out], labels=range(NUM_CLASSES)
        )
        assert isinstance(got, ClassCounts)
        assert got.matrix.dtype == np.int64
        assert got.matrix.tolist() == wanted.tolist()


def test_a_regression_is_scored_by_its_sums(federation: Federate) -> None:
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
    (sums,) = answers(learners, weights, [A])
    y = data.y_train[SHARES[A].validation].astype(np.float64)
    error = data.x_train[SHARES[A].validation] @ weights[:12] + weights[12] - y
    assert isinstance(sums, ErrorSums)
    assert sums.num_examples == 9
    assert sums.squared_error == pytest.approx(np.square(error).sum(), rel=1e-4)
    assert sums.absolute_error == pytest.approx(np.abs(error).sum(), rel=1e-4)
    assert sums.target == pytest.approx(y.sum())
    assert sums.target_squared == pytest.approx(np.square(y).sum())


def test_those_without_validation_examples_do_not_judge(federation: Federate) -> None:
    shares = {A: SHARES[A], B: Share(SHARES[B].train, np.array([], dtype=np.int64))}
    learners, start = federation(shares=shares)

    counts = answers(learners, start, [B, A, B])
    assert counts[0] is counts[2] is None
    assert isinstance(counts[1], ClassCounts)
    assert answers(learners, start, [B]) == [None]
    assert answers(learners, start, []) == []
    with pytest.raises(ConfigError, match="b has no validation examples"):
        learners.begin(task(B, start), with_loss=True)


def test_many_models_can_wait_for_their_judges(federation: Federate) -> None:
    learners, start = federation()
    models = [frozen(start * factor) for factor in np.linspace(-2, 2, 30)]
    wanted = [[plain(counts) for counts in answers(learners, model, [A, B])] for model in models]
    questions = [learners.request_counts(model, [A, B]) for model in models]

    for asked, counts in reversed(list(zip(questions, wanted, strict=True))):
        assert [plain(learners.take_counts(question)) for question in asked] == counts
    assert wanted[0] != wanted[-1]


def test_a_judge_that_goes_takes_its_own_answers_along_and_no_others(federation: Federate) -> None:
    learners, start = federation()
    wanted = [plain(counts) for counts in answers(learners, start, [A, B])]
    for first in (A, B):
        question_a, question_b = learners.request_counts(start, [A, B])
        learners.abandon(first)
        if first == A:
            assert plain(learners.take_counts(question_b)) == wanted[1]
        else:
            assert plain(learners.take_counts(question_a)) == wanted[0]

    assert [plain(counts) for counts in answers(learners, start, [A, B])] == wanted


# --- what goes wrong


def test_a_loss_that_is_not_finite_is_told_with_learner_epoch_and_step(
    federation: Federate,
) -> None:
    data = dataset()
    data.x_train[7] = np.nan
    learners, start = federation(data=data)
    learners.begin(task(A, start), with_loss=False)
    with pytest.raises(FloatingPointError, match=r"a: training loss is nan in epoch 1, step \d"):
        go_on(learners, A, 5)
    learners.abandon(A)

    learners.begin(task(B, start), with_loss=False)
    go_on(learners, B, 4)
    assert np.isfinite(learners.finish(B)).all()


class Failing(nn.Module):
    """Gives no numbers in one step of its training, which it counts."""

    passes: Tensor

    def __init__(self, step: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.step = step  # the first is 0
        self.linear = nn.Linear(12, NUM_CLASSES)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        if self.training:
            self.passes += 1
            if int(self.passes) == self.step + 1:
                return logits * np.nan
        return logits


FAILING_STEP = pytest.mark.parametrize("step", [0, 2, 3, 4, 5, 9, 13])


@FAILING_STEP
@pytest.mark.parametrize("counts", [(5, 5, 5), (1,) * 15, (3, 7, 5), (15,)])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_call_that_covers_a_failing_step_fails_and_none_before(
    step: int, counts: tuple[int, ...], at_once: bool, federation: Federate
) -> None:
    learners, start = federation(lambda: Failing(step))
    for _ in range(2):  # a task that failed is abandoned, and the next one fails in the same way
        learners.begin(task(A, start), with_loss=False)
        told = 0
        if at_once:
            learners.announce(A, 15)
        for count in counts:
            told += count
            learners.announce(A, told)
            if told > step:
                break
            learners.advance(A, count)
        where = rf"a: training loss is nan in epoch {step // 5 + 1}, step {step % 5 + 1} of"
        with pytest.raises(FloatingPointError, match=where):
            learners.advance(A, count)
        learners.abandon(A)

    learners.begin(task(B, start), with_loss=False)
    if step:
        go_on(learners, B, step)
        assert np.isfinite(learners.finish(B)).all()


@FAILING_STEP
def test_a_failure_is_told_at_the_same_step_after_a_crash(
    step: int, federations: tuple[Federate, Federate], tmp_path: Path
) -> None:
    begun, gone_on = federations
    learners, start = begun(lambda: Failing(step))
    learners.begin(task(A, start), with_loss=False)
    learners.announce(A, 15)
    told = step // 2
    if told:
        learners.advance(A, told)
    again, _ = gone_on(lambda: Failing(step))
    again.restore(packed(learners.state(), tmp_path))

    if step - told:
        again.advance(A, step - told)
    with pytest.raises(FloatingPointError, match=rf"epoch {step // 5 + 1}, step {step % 5 + 1} of"):
        again.advance(A, 1)


def test_a_validation_loss_that_is_not_finite_is_told(federation: Federate) -> None:
    data = dataset()
    data.x_train[45] = np.nan
    learners, start = federation(data=data)
    learners.begin(task(A, start), with_loss=True)
    with pytest.raises(FloatingPointError, match="a: validation loss is nan after step 5 of"):
        go_on(learners, A, 5)
    learners.abandon(A)

    weights = np.frombuffer(trained(learners, start, num_steps=5), dtype=np.float32)
    assert np.isfinite(weights).all()
    learners.begin(task(B, start), with_loss=True)
    assert np.isfinite(go_on(learners, B, 4)[0]).all()


class Overflowing(nn.Module):
    """Gives no numbers in its evaluation from one step of its training on."""

    passes: Tensor

    def __init__(self, step: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.step = step
        self.linear = nn.Linear(12, NUM_CLASSES)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        if self.training:
            self.passes += 1
        elif int(self.passes) > self.step:
            return logits * np.inf
        return logits


def test_a_validation_loss_fails_the_epoch_before_it_and_none_earlier(
    federation: Federate,
) -> None:
    learners, start = federation(lambda: Overflowing(7))
    learners.begin(task(A, start), with_loss=True)
    assert np.isfinite(go_on(learners, A, 5)[0]).all()
    with pytest.raises(FloatingPointError, match="a: validation loss is nan after step 10 of"):
        go_on(learners, A, 5, done=5)


def test_bytes_are_prepared_and_read_only_arrays_taken(federation: Federate) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    x.flags.writeable = False
    data = Dataset("images", x, np.arange(40) % 10, x[:5], np.arange(5), 10)
    module = build("cifar_cnn", (3, 24, 24), 10, seed=1)
    start = vector_of(module)
    shares = {A: Share(np.arange(30), np.arange(30, 40))}
    training = Training(batch_size=16, weight_decay=0.004, weight_decay_on=("fc1.weight",))
    bench = Bench(*place(module, data, shares, training, preparation_named("cifar10"), seed=1))
    learners = federation.on(bench)

    learners.begin(task(A, start), with_loss=True)
    assert len(go_on(learners, A, 2)[0]) == 2
    assert bench.module.layout.size == len(learners.finish(A)) == 1_068_298


def test_modules_and_data_that_do_not_fit_are_refused_at_once(federation: Federate) -> None:
    with pytest.raises(ModelError, match=r"cannot take inputs of shape \(12,\)"):
        bench_of(lambda: nn.Linear(5, NUM_CLASSES))
    with pytest.raises(ModelError, match=r"outputs of shape \(2, 3\).*4 classes needs \(2, 4\)"):
        bench_of(lambda: nn.Linear(12, 3))
    with pytest.raises(ModelError, match=r"a regression needs \(2, 1\)"):
        bench_of(lambda: nn.Linear(12, 2), data=dataset(num_classes=0))
    with pytest.raises(DataError, match="a has no training examples"):
        bench_of(shares={A: Share(np.array([], dtype=np.int64), np.arange(3))})
    learners, start = federation()
    for size in (3, 1):
        with pytest.raises(ModelError, match="values, but the vector has shape"):
            learners.test(np.zeros(size, dtype=np.float32))
        with pytest.raises(ModelError, match="values, but the vector has shape"):
            learners.begin(task(A, np.zeros(size, dtype=np.float32)), with_loss=False)
    trained(learners, start)
