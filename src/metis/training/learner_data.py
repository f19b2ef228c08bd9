"""The learners' data on the training's device: mini-batches, validation sets, the test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from metis.core.errors import ConfigError
from metis.core.learners import TestResult
from metis.core.scores import accuracy, r_squared
from metis.core.types import ClassCounts, Counts, LearnerId, Profile, Vector
from metis.data.dataset import Dataset
from metis.training.epochs import Epochs, Share, order_of
from metis.training.evaluator import Evaluator, Examples, Scores, held_ready, pooled
from metis.training.module import ModuleOnDevice, check_batch_size, has_batch_norm
from metis.training.prepare import Preparation
from metis.training.recent import RecentTensors
from metis.training.settings import TrainSettings
from metis.training.step import device_named

#: A learner that scores a model, and its own running statistics; None: those of the model.
JudgeWithStatistics: TypeAlias = tuple[LearnerId, Vector | None]

#: Models whose predictions stay on a GPU, since other judges will be asked for theirs soon.
RECENT_PREDICTIONS = 32
#: A GPU applies a model to all validation examples at once if they are no more than this.
WHOLE_SET = 5_000


class LearnerData:
    """What the learners of a federation train on, and what they score models with.

    Scores with the network of a `ModuleOnDevice`, into which it loads the models.
    """

    def __init__(
        self,
        module: ModuleOnDevice,
        dataset: Dataset,
        train: Examples,
        shares: Mapping[LearnerId, Share],
        epochs: Epochs,
        full_epochs: Epochs,
        preparation: Preparation,
    ) -> None:
        """`train` are the dataset's training examples, on the module's device."""
        self._module = module
        self._dataset = dataset
        self._preparation = preparation
        self._train = train
        self.shares = dict(shares)
        self.epochs = epochs
        self._full_epochs = full_epochs
        device, num_classes = module.device, dataset.num_classes
        self._evaluator = Evaluator(module.network, self.feed_evaluation, module.loss, num_classes)
        test = Examples.on(device, dataset.x_test, dataset.y_test, num_classes)
        everything = torch.arange(len(test.y), device=device)
        self._test = held_ready(test, everything, self.feed_evaluation)
        self._predicted = RecentTensors(RECENT_PREDICTIONS)
        self._gather_validation()

    def _gather_validation(self) -> None:
        """Put all validation sets into one, where each learner's examples are consecutive."""
        device = self._module.device
        sizes = [len(share.validation) for share in self.shares.values()]
        ends = np.cumsum(sizes).tolist()
        self._spans = {
            learner: slice(end - size, end)
            for learner, size, end in zip(self.shares, sizes, ends, strict=True)
        }
        self._validation = {
            learner: torch.arange(span.start, span.stop, device=device)
            for learner, span in self._spans.items()
        }
        chosen = np.concatenate([share.validation for share in self.shares.values()])
        indices = torch.from_numpy(chosen.astype(np.int64)).to(device)
        self._held_out = held_ready(self._train, indices, self.feed_evaluation)
        self._held_out_y = self._held_out.y.cpu()

    def is_kin_of(self, other: LearnerData) -> bool:
        """Whether one engine can train learners of both: same data, model and settings."""
        mine, theirs = self._module, other._module
        return (
            _are_same(self._dataset, other._dataset)
            and mine.layout == theirs.layout
            and mine.training == theirs.training
            and (mine.device, mine.precision) == (theirs.device, theirs.precision)
            and self._preparation == other._preparation
            and repr(mine.network) == repr(theirs.network)
        )

    # ---- training -----------------------------------------------------------------------------

    def profiles(self) -> list[Profile]:
        """Return what the federation knows about each learner."""
        return [self._profile(learner, share) for learner, share in self.shares.items()]

    def _profile(self, learner: LearnerId, share: Share) -> Profile:
        held_out, steps = len(share.validation), self.epochs.num_steps(learner)
        full = self._full_epochs.num_steps(learner) if held_out else None
        return Profile(learner, len(share.train), steps, share.group, held_out, full)

    def epochs_of(self, all_examples: bool) -> Epochs:
        """Return the epochs over training examples alone, or over all examples of a learner."""
        return self._full_epochs if all_examples else self.epochs

    def feed_training(self, examples: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return chosen training examples ready for the network, and their targets."""
        x = self._preparation.train(self._train.x[examples], draws)
        return self._module.arranged(x), self._train.y[examples]

    def feed_evaluation(self, x: Tensor) -> Tensor:
        """Return stored inputs ready for the network in evaluation mode."""
        return self._module.arranged(self._preparation.evaluate(x))

    def batch_bytes(self) -> int:
        """Return the memory of a mini-batch that is ready for the network."""
        return self.feed_evaluation(self._train.x[:1])[0].nbytes * self._module.training.batch_size

    # ---- validation ---------------------------------------------------------------------------

    def validation_loss(self, learner: LearnerId, network: nn.Module | None = None) -> Tensor:
        """Return the mean loss of a network's present model on a learner's validation set."""
        evaluator = self._evaluator
        if network is not None:
            loss, num_classes = self._module.loss, evaluator.num_classes
            evaluator = Evaluator(network, self.feed_evaluation, loss, num_classes)
        with self._module.arithmetic():
            return evaluator.mean_loss(self._held_out, self.validation_of(learner))

    def validation_of(self, learner: LearnerId) -> Tensor:
        """Return which of the validation examples are a learner's. ConfigError if none are."""
        indices = self._validation[learner]
        if len(indices) == 0:
            raise ConfigError(
                f"{learner} has no validation examples, but its trigger needs a validation loss: "
                "hold some out (validation.fraction) or use a trigger of fixed epochs"
            )
        return indices

    def validation_set(self, learner: LearnerId) -> tuple[Tensor, Tensor]:
        """Return a learner's validation inputs, ready for the network, and their targets."""
        indices = self.validation_of(learner)
        x, y = self._held_out.x[indices], self._held_out.y[indices]
        return (x if self._held_out.prepared else self.feed_evaluation(x)), y

    # ---- scores -------------------------------------------------------------------------------

    def counts(
        self, asked: Sequence[tuple[Vector, Sequence[JudgeWithStatistics]]]
    ) -> list[list[Counts | None]]:
        """Return each judge's counts of each model: one pass for a model, one wait for all."""
        able = [[one for one in judges if len(self._validation[one[0]])] for _, judges in asked]
        predicted = []
        with self._module.arithmetic():
            for (weights, _), judges in zip(asked, able, strict=True):
                if judges:
                    predicted += self._predictions(weights, judges)
        if not predicted:
            return [[None] * len(judges) for _, judges in asked]
        spans = [self._spans[judge] for judges in able for judge, _ in judges]
        sizes = [span.stop - span.start for span in spans]
        actual = torch.cat([self._held_out_y[span] for span in spans])
        counts = iter(self._evaluator.counts(actual, torch.cat(predicted), sizes))
        return [
            [next(counts) if len(self._validation[judge]) else None for judge, _ in judges]
            for _, judges in asked
        ]

    def _predictions(self, weights: Vector, judges: Sequence[JudgeWithStatistics]) -> list[Tensor]:
        """Return what a model predicts for each judge's examples."""
        module, indices = self._module, [self._validation[judge] for judge, _ in judges]
        if any(own is not None for _, own in judges):
            return [self._predictions_with(weights, own, self._validation[j]) for j, own in judges]
        if module.device.type == "cpu":
            # The last bits of a product depend on what else is in the batch. A CPU loses little by
            # taking judges one by one, and then their counts do not depend on who else was asked.
            module.load(weights)
            return [self._evaluator.predictions(self._held_out, place) for place in indices]
        wanted = torch.cat(list(indices))
        if len(self._held_out.y) > WHOLE_SET:
            module.load(weights)
            return [self._evaluator.predictions(self._held_out, wanted)]
        # A GPU takes hardly longer for all validation examples than for one judge's. So the first
        # request applies the model to all of them, and later requests find the rest.
        predicted = self._predicted.get(weights)
        if predicted is None:
            module.load(weights)
            everything = torch.arange(len(self._held_out.y), device=module.device)
            predicted = self._evaluator.predictions(self._held_out, everything)
            self._predicted.put(weights, predicted)
        return [predicted[wanted]]

    def _predictions_with(self, weights: Vector, own: Vector | None, place: Tensor) -> Tensor:
        """Return what a model predicts with these running statistics instead of its own."""
        self._module.load_with(weights, own)
        return self._evaluator.predictions(self._held_out, place)

    def test_parts(self, weights: Vector, part: int, num_parts: int) -> list[Scores]:
        """Return the scores of every batch in part number `part` of the test set."""
        self._module.load(weights)
        with self._module.arithmetic():
            return self._evaluator.scores(self._test, part, num_parts)


def test_result(scores: Sequence[Scores]) -> TestResult:
    """Return the result of the scores of all test batches, in their order."""
    counts, loss = pooled(scores)
    score = accuracy(counts) if isinstance(counts, ClassCounts) else r_squared(counts)
    return TestResult(score, loss)


def place(
    network: nn.Module,
    dataset: Dataset,
    shares: Mapping[LearnerId, Share],
    training: TrainSettings,
    preparation: Preparation,
    seed: int,
    device: str,
    precision: str,
) -> tuple[ModuleOnDevice, LearnerData]:
    """Put a network and the data of some learners on the training's device.

    Raises a MetisError if they do not fit each other.
    """
    check_batch_size(network, training)
    whole = {learner: share.released() for learner, share in shares.items()}
    epochs, full_epochs = (
        Epochs(
            held,
            preparation,
            training.batch_size,
            seed,
            no_single=has_batch_norm(network),
            last_batch=training.last_batch,
            order=order_of(training.shuffle_buffer, dataset.y_train),
        )
        for held in (shares, whole)
    )
    preparation.output_shape(dataset.input_shape)
    train = Examples.on(device_named(device), dataset.x_train, dataset.y_train, dataset.num_classes)
    module = ModuleOnDevice(
        network, training, device, precision, train, preparation.evaluate, dataset.num_classes
    )
    data = LearnerData(module, dataset, train, shares, epochs, full_epochs, preparation)
    return module, data


def _are_same(one: Dataset, other: Dataset) -> bool:
    """Whether two hold the same. Inputs are not compared: labels alone are ever exchanged."""
    return one is other or (
        one.x_train is other.x_train
        and one.x_test is other.x_test
        and np.array_equal(one.y_train, other.y_train)
        and np.array_equal(one.y_test, other.y_test)
    )
