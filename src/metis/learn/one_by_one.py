"""Every learner of a simulation, trained one after another with one module."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from metis.core.errors import ConfigError, DataError
from metis.core.local_run import TestResult
from metis.core.scores import accuracy, r_squared
from metis.core.types import ClassCounts, Counts, Layout, LearnerId, Profile, Task, Vector, frozen
from metis.data.dataset import Dataset
from metis.learn.evaluator import Evaluator, Examples, squared_error
from metis.learn.flat import as_tensor, flatten
from metis.learn.optimizer_state import from_plain, to_plain
from metis.learn.prepare import Preparation
from metis.learn.training import Loss, Training, new_optimizer, train_step, trained_parameters


@dataclass(frozen=True, slots=True)
class Share:
    """Which training examples of the dataset a learner holds, and which of them it sets aside."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]  # never trained on; may be empty
    group: str = "default"


@dataclass(slots=True)
class InFlight:
    """A learner's task under way: all that the next mini-batch depends on, but the data."""

    version: int  # its learning rate follows from this
    ordinal: int  # its chance follows from this
    weights: Tensor
    counters: list[Tensor]  # buffers that are not float, such as batch-norm's step counters
    start: Tensor | None  # kept for the proximal term only
    optimizer: torch.optim.Optimizer
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """All chance of one epoch: the order of the examples, their augmentation, and torch's seeds."""

    examples: Tensor
    draws: Tensor
    seeds: list[int]  # one for each mini-batch


class OneByOne:
    """The `Learners` of a simulation, one at a time.

    Takes the module over: its parameters become views of one vector, on the training's device,
    and hold whatever was computed last. Nothing random outlives a mini-batch: the order of the
    examples, their augmentation and torch's seed (dropout) follow from the seed, the learner, how
    many tasks it was given before, the epoch and the mini-batch. So results do not depend on the
    order of calls for different learners, nor on how a task is cut into calls; on one kind of
    machine with one number of threads they are the same bytes.

    The last partial batch is used. Batch-norm cannot be trained on a single example: where the
    last batch would be one, the first example of the epoch joins it.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        shares: Mapping[LearnerId, Share],
        training: Training,
        preparation: Preparation,
        seed: int,
        loss: Literal["auto"] | Loss = "auto",
    ) -> None:
        """`loss` auto: cross-entropy, or squared error for a regression; or any mean loss."""
        self._device = training.torch_device()
        self._shares = dict(shares)
        self._training = training
        self._preparation = preparation
        self._seed = seed
        if loss == "auto":
            loss = F.cross_entropy if dataset.num_classes else squared_error
        self._loss: Loss = loss

        for learner, share in self._shares.items():
            if len(share.train) == 0:
                raise DataError(f"{learner} has no training examples")
        self._module = module.to(self._device)
        self._has_batch_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
        if self._has_batch_norm and training.batch_size == 1:
            raise ConfigError("batch_size = 1: batch-norm needs at least 2 examples in a batch")
        self._flat = flatten(module)
        self._counters = [b for b in module.buffers() if not b.is_floating_point()]
        self._initial_counters = [counter.clone() for counter in self._counters]
        self._places = {place.name: place for place in self._flat.layout.tensors}
        self._trained = trained_parameters(module)
        new_optimizer(training, module, version=0)  # wrong settings are told now, not in a task

        preparation.output_shape(dataset.input_shape)
        self._train = Examples.on(
            self._device, dataset.x_train, dataset.y_train, dataset.num_classes
        )
        self._test = Examples.on(self._device, dataset.x_test, dataset.y_test, dataset.num_classes)
        self._validation = {
            learner: torch.from_numpy(np.array(share.validation, dtype=np.int64)).to(self._device)
            for learner, share in self._shares.items()
        }
        self._evaluator = Evaluator(module, preparation, self._loss, dataset.num_classes)
        self._evaluator.check(self._train)
        self._in_flight: dict[LearnerId, InFlight] = {}
        self._kept: dict[LearnerId, dict[str, Any]] = {}

    @property
    def layout(self) -> Layout:
        """How the module lies in a vector."""
        return self._flat.layout

    def profiles(self) -> Sequence[Profile]:
        return [
            Profile(learner, len(share.train), self._steps_per_epoch(learner), share.group)
            for learner, share in self._shares.items()
        ]

    def begin(self, task: Task, with_loss: bool) -> float | None:
        weights = as_tensor(task.start.weights, self.layout).to(self._device)
        optimizer = new_optimizer(self._training, self._module, task.start.version)
        if task.learner in self._kept:
            rates = [group["lr"] for group in optimizer.param_groups]
            # A copy: if this task is abandoned, what was kept must be as it was.
            optimizer.load_state_dict(copy.deepcopy(self._kept[task.learner]))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self._in_flight[task.learner] = run = InFlight(
            version=task.start.version,
            ordinal=task.ordinal,
            weights=weights,
            counters=[counter.clone() for counter in self._initial_counters],
            start=weights.clone() if self._training.proximal else None,
            optimizer=optimizer,
        )
        if not with_loss:
            return None
        self._flat.values.copy_(run.weights)
        return self._validation_loss(task.learner)

    def advance(self, learner: LearnerId, num_steps: int, with_loss: bool) -> float | None:
        run = self._in_flight[learner]
        self._flat.values.copy_(run.weights)
        _copy_all(self._counters, run.counters)
        losses = self._steps(learner, run, num_steps)
        self._check_finite(learner, run, losses)
        run.weights.copy_(self._flat.values)
        _copy_all(run.counters, self._counters)
        run.num_steps += num_steps
        if not with_loss:
            return None
        loss = self._validation_loss(learner)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"{learner}: validation loss is {loss} after step {run.num_steps} of its task"
            )
        return loss

    def finish(self, learner: LearnerId) -> Vector:
        run = self._in_flight.pop(learner)
        if self._training.keep_momentum:
            self._kept[learner] = run.optimizer.state_dict()
        return frozen(run.weights.cpu().numpy())

    def abandon(self, learner: LearnerId) -> None:
        self._in_flight.pop(learner, None)

    def evaluate(self, weights: Vector, judges: Sequence[LearnerId]) -> list[Counts | None]:
        able = [judge for judge in judges if len(self._validation[judge])]
        if not able:
            return [None] * len(judges)
        self._flat.load_vector(weights)
        indices = [self._validation[judge] for judge in able]
        counts = self._evaluator.counts(self._train, torch.cat(indices), [len(i) for i in indices])
        found = dict(zip(able, counts, strict=True))
        return [found.get(judge) for judge in judges]

    def test(self, weights: Vector) -> TestResult:
        self._flat.load_vector(weights)
        counts, loss = self._evaluator.counts_and_loss(self._test)
        score = accuracy(counts) if isinstance(counts, ClassCounts) else r_squared(counts)
        return TestResult(score, loss)

    def state(self) -> object:
        return {
            "in_flight": {
                learner: {
                    "version": run.version,
                    "ordinal": run.ordinal,
                    "num_steps": run.num_steps,
                    "weights": to_plain(run.weights),
                    "counters": to_plain(run.counters),
                    "start": to_plain(run.start),
                    "optimizer": to_plain(run.optimizer.state_dict()),
                }
                for learner, run in self._in_flight.items()
            },
            "kept": {learner: to_plain(kept) for learner, kept in self._kept.items()},
        }

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self._in_flight = {}
        for learner, saved in state["in_flight"].items():
            optimizer = new_optimizer(self._training, self._module, saved["version"])
            optimizer.load_state_dict(from_plain(saved["optimizer"], self._device))
            self._in_flight[learner] = InFlight(
                version=saved["version"],
                ordinal=saved["ordinal"],
                weights=from_plain(saved["weights"], self._device),
                counters=from_plain(saved["counters"], self._device),
                start=from_plain(saved["start"], self._device),
                optimizer=optimizer,
                num_steps=saved["num_steps"],
            )
        self._kept = {
            learner: from_plain(kept, self._device) for learner, kept in state["kept"].items()
        }

    def _steps_per_epoch(self, learner: LearnerId) -> int:
        return math.ceil(len(self._shares[learner].train) / self._training.batch_size)

    def _steps(self, learner: LearnerId, run: InFlight, num_steps: int) -> Tensor:
        """Train the module, which holds the learner's weights; return the loss of each step."""
        steps_per_epoch = self._steps_per_epoch(learner)
        batch_size = self._training.batch_size
        anchors = self._anchors(run)
        losses: list[Tensor] = []
        epoch: Epoch | None = None
        self._module.train()
        with _repeatable(self._device) as seed_torch:
            for number in range(run.num_steps, run.num_steps + num_steps):
                epoch_number, step = divmod(number, steps_per_epoch)
                if epoch is None or step == 0:
                    epoch = self._epoch(learner, run.ordinal, epoch_number)
                rows = slice(step * batch_size, (step + 1) * batch_size)
                chosen = epoch.examples[rows]
                seed_torch(epoch.seeds[step])
                x = self._preparation.train(self._train.x[chosen], epoch.draws[rows])
                losses.append(
                    train_step(
                        self._module,
                        run.optimizer,
                        self._loss,
                        (x, self._train.y[chosen]),
                        self._training,
                        anchors,
                    )
                )
        return torch.stack(losses)

    def _epoch(self, learner: LearnerId, ordinal: int, number: int) -> Epoch:
        """Return what chance decides for one epoch; the same whenever it is asked for."""
        train = self._shares[learner].train
        rng = np.random.default_rng([self._seed, _stable_hash(learner), ordinal, number])
        order = rng.permutation(len(train))
        draws = self._preparation.draw(rng, len(train))
        seeds = rng.integers(2**63, size=self._steps_per_epoch(learner), dtype=np.uint64)
        if self._has_batch_norm and len(train) % self._training.batch_size == 1:
            order = np.append(order, order[:1])
            draws = np.concatenate((draws, draws[:1]))
        return Epoch(
            examples=torch.from_numpy(np.asarray(train, dtype=np.int64)[order]).to(self._device),
            draws=torch.from_numpy(draws).to(self._device),
            seeds=[int(seed) for seed in seeds],
        )

    def _anchors(self, run: InFlight) -> list[tuple[nn.Parameter, Tensor]]:
        """Return each trained parameter with its value at the start, if the loss asks for it."""
        if run.start is None:
            return []
        return [
            (parameter, run.start[place.offset : place.offset + place.size].view(place.shape))
            for name, parameter in self._trained
            for place in (self._places[name],)
        ]

    def _validation_loss(self, learner: LearnerId) -> float:
        indices = self._validation[learner]
        if len(indices) == 0:
            raise ConfigError(
                f"{learner} has no validation examples, but its trigger needs a validation loss: "
                "hold some out (validation.fraction) or use a trigger of fixed epochs"
            )
        return self._evaluator.mean_loss(self._train, indices)

    def _check_finite(self, learner: LearnerId, run: InFlight, losses: Tensor) -> None:
        # One look per call: looking at each loss would make an accelerator wait at every step.
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            first = int(bad[0])
            epoch, step = divmod(run.num_steps + first, self._steps_per_epoch(learner))
            raise FloatingPointError(
                f"{learner}: training loss is {float(losses[first])} "
                f"in epoch {epoch + 1}, step {step + 1} of its task"
            )
        # A sum is finite only if all of its terms are, and needs no second array to tell.
        if not math.isfinite(float(self._flat.values.sum())):
            raise FloatingPointError(
                f"{learner}: weights are not finite after step "
                f"{run.num_steps + len(losses)} of its task"
            )


def _stable_hash(learner: LearnerId) -> int:
    """Return the same number for a name in every process, which Python's own hash does not."""
    return int.from_bytes(hashlib.sha256(learner.encode()).digest()[:8], "little")


def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


@contextmanager
def _repeatable(device: torch.device) -> Iterator[Callable[[int], object]]:
    """Give a way to seed torch, for the block only, and have CUDA choose repeatable algorithms."""
    if device.type != "cuda":
        with torch.random.fork_rng(devices=[]):
            yield torch.default_generator.manual_seed
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]

    def seed_both(seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        generator.manual_seed(seed)

    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        with torch.random.fork_rng(devices=[index]):
            yield seed_both
    finally:
        cudnn.benchmark, cudnn.deterministic = before
