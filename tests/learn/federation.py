"""Small federations for tests of learners: data, modules, settings, and ways to compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metis.core.local_run import Learners
from metis.core.types import LearnerId, Snapshot, Task, Vector
from metis.data.dataset import Dataset
from metis.learn.cohort import Cohort
from metis.learn.epochs import Share
from metis.learn.flat import vector_of
from metis.learn.loop import Loop
from metis.learn.prepare import preparation_named
from metis.learn.processes import Processes, can_fork
from metis.learn.settings import TrainSettings
from metis.learn.workbench import Workbench
from metis.zoo import build

A, B = LearnerId("a"), LearnerId("b")
NUM_CLASSES = 4
PICTURE = (3, 4, 4)

# 41 and 39 training examples: a last batch of one, and one of nine, with batches of ten.
SHARES = {
    A: Share(np.arange(0, 41), np.arange(41, 50), "fast"),
    B: Share(np.arange(50, 89), np.arange(89, 100), "slow"),
}


def dataset(
    num_classes: int = NUM_CLASSES, shape: tuple[int, ...] = (12,), num_test: int = 50
) -> Dataset:
    """A few numbers per example; the class, or the target, is a noisy function of them."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    x = rng.normal(size=(100 + num_test, size)).astype(np.float32)
    signal = x @ rng.normal(size=(size, max(num_classes, 1)))
    y: Any = signal.argmax(axis=1) if num_classes else signal[:, 0].astype(np.float32)
    x = x.reshape(-1, *shape)
    return Dataset("made", x[:100], y[:100], x[100:], y[100:], num_classes)


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


def with_convolutions() -> nn.Module:
    """Its filters are kept with their channels last."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3),
        nn.Flatten(),
        nn.Linear(20, NUM_CLASSES),
    )


def training_of(**values: Any) -> TrainSettings:
    """Return settings with nothing left open."""
    filled: dict[str, Any] = {
        "batch_size": 32,
        "learning_rate": 0.05,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "weight_decay_on": (),
        "proximal": 0.0,
    }
    return TrainSettings(**{**filled, **values})


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "dropout": with_dropout,
    "batch_norm": with_batch_norm,
    "counting_batch_norm": with_counting_batch_norm,
    "frozen": with_frozen_part,
    "tied": TiedAutoencoder,
    "convolutions": with_convolutions,
}
MODULE = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
TRAININGS = {
    "sgd": training_of(batch_size=10),
    "adam": training_of(batch_size=10, optimizer="adam", learning_rate=0.01),
    "proximal": training_of(batch_size=10, proximal=0.1, weight_decay=0.01),
}
TRAINING = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())


def bench_of(
    make: Callable[[], nn.Module] = dense,
    training: TrainSettings = TRAININGS["sgd"],
    seed: int = 1,
    data: Dataset | None = None,
    shares: Mapping[LearnerId, Share] = SHARES,
) -> tuple[Workbench, Vector]:
    """Return a module with its data, and the model it starts from."""
    module = make()
    start = vector_of(module)
    if data is None:
        has_filters = any(isinstance(part, nn.Conv2d) for part in module.modules())
        data = dataset(shape=PICTURE) if has_filters else dataset()
    return Workbench(
        module, data, shares, training, preparation_named("none"), seed, "cpu", "tf32"
    ), start


def loop(bench: Workbench) -> Cohort:
    return Cohort(bench, Loop(bench))


def processes(bench: Workbench) -> Processes:
    return Processes(bench, Loop(bench), num_workers=2, max_at_work=len(bench.shares))


ENGINES: dict[str, Callable[[Workbench], Learners]] = {"loop": loop}
if can_fork():
    ENGINES["processes"] = processes


@dataclass(frozen=True, slots=True)
class Federate:
    """Makes learners for a test, all in one way; they are closed when it ends."""

    engine: str
    opened: ExitStack

    def __call__(
        self,
        make: Callable[[], nn.Module] = dense,
        training: TrainSettings = TRAININGS["sgd"],
        seed: int = 1,
        data: Dataset | None = None,
        shares: Mapping[LearnerId, Share] = SHARES,
    ) -> tuple[Learners, Vector]:
        bench, start = bench_of(make, training, seed, data, shares)
        return self.on(bench), start

    def on(self, bench: Workbench) -> Learners:
        learners = ENGINES[self.engine](bench)
        self.opened.callback(learners.close)
        return learners


def task(learner: LearnerId, start: Vector, version: int = 0, rate_factor: float = 1.0) -> Task:
    return Task(
        number=1,
        learner=learner,
        start=Snapshot(version, start),
        committed_steps=0,
        ordinal=version + 1,
        rate_factor=rate_factor,
    )


def go_on(
    learners: Learners, learner: LearnerId, *counts: int, done: int = 0
) -> list[tuple[float, ...]]:
    """Announce and fetch so many steps, then so many more; return the losses told each time."""
    told = []
    for count in counts:
        done += count
        learners.expect(learner, done)
        told.append(learners.advance(learner, count))
    return told


def trained(
    learners: Learners,
    start: Vector,
    version: int = 0,
    num_steps: int = 5,
    learner: LearnerId = A,
    rate_factor: float = 1.0,
) -> bytes:
    """Return the model after a whole task."""
    learners.begin(task(learner, start, version, rate_factor), with_loss=False)
    go_on(learners, learner, num_steps)
    return learners.finish(learner).tobytes()
