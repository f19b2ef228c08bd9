"""One module and the data on one device: what is needed to train or to score any learner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from metis.core.errors import ConfigError
from metis.core.local_run import TestResult
from metis.core.scores import accuracy, r_squared
from metis.core.types import ClassCounts, Counts, Layout, LearnerId, Profile, Vector
from metis.data.dataset import Dataset
from metis.learn.epochs import Epochs, Share, order_of
from metis.learn.evaluator import (
    Evaluator,
    Examples,
    Scores,
    each_cross_entropy,
    each_squared_error,
    held_ready,
    pooled,
    squared_error,
)
from metis.learn.flat import flatten
from metis.learn.prepare import Preparation
from metis.learn.settings import TrainSettings
from metis.learn.training import Loss, device_named, new_optimizer, trained_parameters

#: Who scores a model, and the running statistics to score it with; None: those of the model.
Judge: TypeAlias = tuple[LearnerId, Vector | None]

#: Trained models, and what they predict, that stay on a GPU, since they will be asked for soon.
RECENT_MODELS = 32
#: A GPU applies a model to all validation examples at once if they are no more than this.
WHOLE_SET = 5_000


class Workbench:
    """Takes a module over: its parameters become views of one vector, on the training's device.

    The module holds whatever was computed last. Filters are kept with their channels last where
    the module takes such inputs, which is tried out here; it is faster on CPUs and GPUs alike.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        shares: Mapping[LearnerId, Share],
        training: TrainSettings,
        preparation: Preparation,
        seed: int,
        device: str,
        precision: str,
    ) -> None:
        self.device = device_named(device)
        self.precision = precision
        self.dataset = dataset
        self.training = training
        self.preparation = preparation
        self.shares = dict(shares)
        self.loss: Loss = F.cross_entropy if dataset.num_classes else squared_error
        self.losses: Loss = each_cross_entropy if dataset.num_classes else each_squared_error

        self.has_batch_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
        if self.has_batch_norm and training.batch_size == 1:
            raise ConfigError("batch_size = 1: batch-norm needs at least 2 examples in a batch")
        whole = {learner: share.released() for learner, share in self.shares.items()}
        self.epochs, self.full_epochs = (
            Epochs(
                held,
                preparation,
                training.batch_size,
                seed,
                no_single=self.has_batch_norm,
                last_batch=training.last_batch,
                order=order_of(training.shuffle_buffer, dataset.y_train),
            )
            for held in (self.shares, whole)
        )
        preparation.output_shape(dataset.input_shape)
        num_classes = dataset.num_classes
        self.train = Examples.on(self.device, dataset.x_train, dataset.y_train, num_classes)
        test = Examples.on(self.device, dataset.x_test, dataset.y_test, num_classes)

        self.module = module.to(self.device)
        self.counters = [b for b in module.buffers() if not b.is_floating_point()]
        self.initial_counters = [counter.clone() for counter in self.counters]
        self.trained = trained_parameters(module)
        new_optimizer(training, module)  # wrong settings are told now, not in a task
        self.flat = flatten(module)
        self._evaluator = Evaluator(module, self.feed_evaluation, self.loss, num_classes)
        self._evaluator.check(self.train)
        if self._takes_channels_last():
            self.flat = flatten(module, channels_last=True)
        self._own_values = self.flat.values  # not those of a learner
        self._statistics = torch.from_numpy(self.layout.running_statistics()).to(self.device)
        everything = torch.arange(len(test.y), device=self.device)
        self._test = held_ready(test, everything, self.feed_evaluation)
        self._recent: deque[tuple[Vector, Tensor]] = deque(maxlen=RECENT_MODELS)
        self._predicted: deque[tuple[Vector, Tensor]] = deque(maxlen=RECENT_MODELS)
        self._gather_validation()
        self.draws_chance = self._draws_chance()

    def _gather_validation(self) -> None:
        """Put all validation sets into one, a learner's examples side by side."""
        sizes = [len(share.validation) for share in self.shares.values()]
        ends = np.cumsum(sizes).tolist()
        self._spans = {
            learner: slice(end - size, end)
            for learner, size, end in zip(self.shares, sizes, ends, strict=True)
        }
        self._validation = {
            learner: torch.arange(span.start, span.stop, device=self.device)
            for learner, span in self._spans.items()
        }
        chosen = np.concatenate([share.validation for share in self.shares.values()])
        indices = torch.from_numpy(chosen.astype(np.int64)).to(self.device)
        self.validation = held_ready(self.train, indices, self.feed_evaluation)
        self._validation_y = self.validation.y.cpu()

    @property
    def layout(self) -> Layout:
        """How the module lies in a vector."""
        return self.flat.layout

    def profiles(self) -> list[Profile]:
        return [self._profile(learner, share) for learner, share in self.shares.items()]

    def _profile(self, learner: LearnerId, share: Share) -> Profile:
        held_out, steps = len(share.validation), self.epochs.num_steps(learner)
        full = self.full_epochs.num_steps(learner) if held_out else None
        return Profile(learner, len(share.train), steps, share.group, held_out, full)

    def epochs_of(self, all_examples: bool) -> Epochs:
        """Return what learners train on: also what they hold out, in a task that says so."""
        return self.full_epochs if all_examples else self.epochs

    def feed_training(self, examples: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return chosen training examples ready for the module, and their targets."""
        x = self.preparation.train(self.train.x[examples], draws)
        return self._arranged(x), self.train.y[examples]

    def feed_evaluation(self, x: Tensor) -> Tensor:
        """Return stored inputs ready for the module in evaluation mode."""
        return self._arranged(self.preparation.evaluate(x))

    def anchors(
        self, start: Tensor | None, module: nn.Module | None = None
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Return each trained parameter with its value at the start, if the loss asks for it."""
        if start is None:
            return []
        parts = self.flat.parts(start)
        named = self.trained if module is None else trained_parameters(module)
        return [(parameter, parts[name]) for name, parameter in named]

    def validation_loss(self, learner: LearnerId, module: nn.Module | None = None) -> Tensor:
        """Return the mean loss of the model in the module on a learner's validation set."""
        evaluator = self._evaluator
        if module is not None:
            evaluator = Evaluator(module, self.feed_evaluation, self.loss, evaluator.num_classes)
        with self.arithmetic():
            return evaluator.mean_loss(self.validation, self.validation_of(learner))

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
        """Return a learner's validation inputs, ready for the module, and their targets."""
        indices = self.validation_of(learner)
        x, y = self.validation.x[indices], self.validation.y[indices]
        return (x if self.validation.prepared else self.feed_evaluation(x)), y

    def is_kin_of(self, other: Workbench) -> bool:
        """Whether learners of both can be trained by one trainer: same data, model, settings."""
        return (
            _are_same(self.dataset, other.dataset)
            and self.layout == other.layout
            and self.training == other.training
            and (self.device, self.precision) == (other.device, other.precision)
            and self.preparation == other.preparation
            and repr(self.module) == repr(other.module)
        )

    def put_statistics(self, values: Tensor, statistics: Vector) -> None:
        """Write running statistics to where they lie in a model."""
        values[self._statistics] = torch.from_numpy(statistics.copy()).to(values.device)

    def counts(self, asked: Sequence[tuple[Vector, Sequence[Judge]]]) -> list[list[Counts | None]]:
        """Return each judge's counts of each model: one pass for a model, one wait for all."""
        able = [[one for one in judges if len(self._validation[one[0]])] for _, judges in asked]
        predicted = []
        with self.arithmetic():
            for (weights, _), judges in zip(asked, able, strict=True):
                if judges:
                    predicted += self._predictions(weights, judges)
        if not predicted:
            return [[None] * len(judges) for _, judges in asked]
        spans = [self._spans[judge] for judges in able for judge, _ in judges]
        sizes = [span.stop - span.start for span in spans]
        actual = torch.cat([self._validation_y[span] for span in spans])
        counts = iter(self._evaluator.counts(actual, torch.cat(predicted), sizes))
        return [
            [next(counts) if len(self._validation[judge]) else None for judge, _ in judges]
            for _, judges in asked
        ]

    def _predictions(self, weights: Vector, judges: Sequence[Judge]) -> list[Tensor]:
        """Return what a model predicts for each judge's examples."""
        indices = [self._validation[judge] for judge, _ in judges]
        if any(own is not None for _, own in judges):
            return [self._predictions_with(weights, own, self._validation[j]) for j, own in judges]
        if self.device.type == "cpu":
            # The last bits of a product depend on what else is in the batch. A CPU loses little by
            # taking judges one by one, and then their answers do not depend on who else was asked.
            self._load(weights)
            return [self._evaluator.predictions(self.validation, place) for place in indices]
        wanted = torch.cat(list(indices))
        if len(self.validation.y) > WHOLE_SET:
            self._load(weights)
            return [self._evaluator.predictions(self.validation, wanted)]
        # A GPU takes hardly longer for so few than for one judge's. Whoever is asked first, the
        # model is applied to all of them; the rest is there when they are asked too.
        for vector, predicted in self._predicted:
            if vector is weights:
                return [predicted[wanted]]
        self._load(weights)
        everything = torch.arange(len(self.validation.y), device=self.device)
        predicted = self._evaluator.predictions(self.validation, everything)
        self._predicted.append((weights, predicted))
        return [predicted[wanted]]

    def _predictions_with(self, weights: Vector, own: Vector | None, place: Tensor) -> Tensor:
        """Return what a model predicts with these running statistics instead of its own."""
        self.flat.point_to(self._own_values)  # not where a learner's model may be
        self.flat.load_vector(weights)
        if own is not None:
            self.put_statistics(self._own_values, own)
        return self._evaluator.predictions(self.validation, place)

    def trained_vector(self, values: Tensor) -> Vector:
        """Return a trained model as a vector. Those seen last need not be brought back to a GPU."""
        vector = self.flat.as_vector(values)
        if self.device.type == "cuda":
            self._recent.append((vector, values))
        return vector

    def _load(self, weights: Vector) -> None:
        """Have the module hold a model, to be looked at, not to be trained."""
        for vector, values in self._recent:
            if vector is weights:
                self.flat.point_to(values)
                return
        self.flat.point_to(self._own_values)
        self.flat.load_vector(weights)

    def test_parts(self, weights: Vector, part: int, num_parts: int) -> list[Scores]:
        """Return the scores of every batch in one of so many parts of the test set."""
        self._load(weights)
        with self.arithmetic():
            return self._evaluator.scores(self._test, part, num_parts)

    @staticmethod
    def test_result(scores: Sequence[Scores]) -> TestResult:
        """Return what the scores of all batches, in their order, come to."""
        counts, loss = pooled(scores)
        score = accuracy(counts) if isinstance(counts, ClassCounts) else r_squared(counts)
        return TestResult(score, loss)

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute with the precision asked for and, on a GPU, with repeatable algorithms."""
        precision = self.precision
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
        with ExitStack() as stack:
            if precision == "bf16":
                # No cache of converted weights: a captured graph would go on reading an old one.
                stack.enter_context(
                    torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
                )
            if self.device.type == "cuda":
                stack.callback(_set_flags, *before)
                _set_flags(False, True, precision != "float32", precision != "float32")
            yield

    @contextmanager
    def chance(self) -> Iterator[Callable[[int], object]]:
        """Give a way to seed torch; afterwards its generators are as they were before."""
        if self.device.type != "cuda":
            with torch.random.fork_rng(devices=[]):
                yield torch.default_generator.manual_seed
            return
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]

        def seed_both(seed: int) -> None:
            torch.default_generator.manual_seed(seed)
            generator.manual_seed(seed)

        with torch.random.fork_rng(devices=[index]):
            yield seed_both

    def new_velocity(self, kept: object | None) -> dict[str, Tensor]:
        """Return SGD's state at the start of a task: zero, or a copy of what was kept."""
        if kept is not None:
            assert isinstance(kept, dict)
            return {name: value.clone() for name, value in kept.items()}
        if not self.training.momentum:
            return {}
        return {"momentum": torch.zeros_like(self.flat.values)}

    def step_bytes(self) -> int:
        """Return what one mini-batch holds on to between the forward and the backward pass."""
        own = self.flat.values.untyped_storage().data_ptr()
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() != own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        few = torch.arange(min(self.training.batch_size, len(self.train.y)), device=self.device)
        with self.as_it_was(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            x = self.feed_evaluation(self.train.x[few])
            held = self.loss(self.module.train()(x), self.train.y[few])
            del held
        return sum(saved.values()) + x.nbytes

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Let a trial run train the module; afterwards its weights and counters are as before."""
        own, held = self.flat.values, self.flat.values.clone()
        counted = [counter.clone() for counter in self.counters]
        with self.chance():
            try:
                yield
            finally:
                self.flat.point_to(own)
                own.copy_(held)
                for counter, value in zip(self.counters, counted, strict=True):
                    counter.copy_(value)

    def _arranged(self, x: Tensor) -> Tensor:
        if self.flat.channels_last and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def _takes_channels_last(self) -> bool:
        """Try the module on two examples; `view` in its forward, say, cannot take such inputs."""
        few = self.train.x[:2]
        if self.preparation.evaluate(few).ndim != 4:
            return False
        self.module.eval()
        with torch.no_grad():
            plain = self.module(self.feed_evaluation(few))
            self.flat = flatten(self.module, channels_last=True)
            try:
                moved = self.module(self.feed_evaluation(few))
                with self.as_it_was():
                    self.module.train()(self.feed_evaluation(few))
            except Exception:  # whatever the user's own module raises
                moved = None
            self.flat = flatten(self.module)
        return moved is not None and torch.allclose(plain, moved, rtol=1e-3, atol=1e-4)

    def _draws_chance(self) -> bool:
        """Try whether the module asks torch for random numbers when it trains, as dropout does."""
        few = self.train.x[:2]
        with self.as_it_was(), torch.no_grad():
            before = _generators(self.device)
            try:
                self.module.train()(self.feed_evaluation(few))
            except Exception:  # it fails only when it trains: that is told when it does
                return True
            after = _generators(self.device)
        return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_flags(benchmark: bool, deterministic: bool, cudnn_tf32: bool, matmul_tf32: bool) -> None:
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
    torch.backends.cuda.matmul.allow_tf32 = matmul_tf32


def _are_same(one: Dataset, other: Dataset) -> bool:
    """Whether two hold the same. Inputs are not compared: labels alone are ever exchanged."""
    return one is other or (
        one.x_train is other.x_train
        and one.x_test is other.x_test
        and np.array_equal(one.y_train, other.y_train)
        and np.array_equal(one.y_test, other.y_test)
    )
