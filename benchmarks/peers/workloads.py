"""The two workloads that other simulators are measured on, in plain PyTorch, and the yardstick.

    python workloads.py make      --workload w1 --data FOLDER --out FILE.json
    python workloads.py reference --workload w1 --data FOLDER --out FILE.json --seconds 30
    python workloads.py check     --workload w1 --data FOLDER --out FILE.json --peer FILE.json

This file runs in a peer's own environment, where Metis is not installed, so the two networks of
`metis.models` are written out again here; their parameters are counted each time one is built. A
peer is a file `run_NAME.py` beside this one: it takes `arguments()`, trains from `initial_model`
with the batches of `Shards`, and ends with `report(...)`. `benchmarks/peers.py` does the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 1990
NUM_THREADS = 2  # in all: one process with two, or two processes with one each


class CifarCnn(nn.Module):
    """The network of `metis.models.cifar_cnn` without its normalisations."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 6 * 6, 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, stride=2, ceil_mode=True)
        x = F.max_pool2d(F.relu(self.conv2(x)), 3, stride=2, ceil_mode=True)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits


class FemnistCnn(nn.Module):
    """The network of `metis.models.femnist_cnn`."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, 512)
        self.fc2 = nn.Linear(512, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        logits: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return logits


@dataclass(frozen=True, slots=True)
class Workload:
    """Who trains what, and how; one local epoch of SGD, averaged by number of examples."""

    num_learners: int
    learners_per_round: int
    num_classes: int
    network: type[CifarCnn] | type[FemnistCnn]
    num_parameters: int
    batch_size: int
    learning_rate: float
    momentum: float

    def model(self) -> nn.Module:
        """Return a new network, with values nobody has set."""
        model = self.network(self.num_classes)
        found = sum(parameter.numel() for parameter in model.parameters())
        assert found == self.num_parameters, f"{found:,} parameters, not {self.num_parameters:,}"
        return model

    def initial_model(self) -> nn.Module:
        """Return the network every run starts from: the same values each time."""
        torch.manual_seed(SEED)
        return self.model()

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum)

    def make(self) -> tuple[NDArray[np.float32], NDArray[np.int64], list[int]]:
        """Return images as the network takes them, labels, and where each learner's begin."""
        random = np.random.default_rng(SEED)
        if self.network is CifarCnn:
            sizes = np.full(self.num_learners, 500)
            images = random.integers(0, 256, (int(sizes.sum()), 3, 32, 32), dtype=np.uint8)
            images = images[:, :, 4:28, 4:28]
        else:
            sizes = random.integers(80, 121, self.num_learners)
            images = random.integers(0, 256, (int(sizes.sum()), 1, 28, 28), dtype=np.uint8)
        labels = random.integers(0, self.num_classes, len(images))
        starts = [0, *np.cumsum(sizes).tolist()]
        pixels = np.ascontiguousarray(images, np.float32)
        return pixels / np.float32(127.5) - np.float32(1), labels, starts


WORKLOADS = {
    "w1": Workload(10, 10, 10, CifarCnn, 1_068_298, 100, 0.05, 0.75),
    "w2": Workload(1_000, 20, 62, FemnistCnn, 1_690_046, 16, 0.05, 0.0),
}


@dataclass(frozen=True, slots=True)
class Shards:
    """Every learner's examples, as views of one array each of images and labels."""

    images: Tensor
    labels: Tensor
    starts: Sequence[int]

    def num_examples(self, learner: int) -> int:
        return self.starts[learner + 1] - self.starts[learner]

    def of(self, learner: int) -> tuple[Tensor, Tensor]:
        own = slice(self.starts[learner], self.starts[learner + 1])
        return self.images[own], self.labels[own]

    def batches(self, learner: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the learner's examples in their order, the last batch perhaps smaller."""
        images, labels = self.of(learner)
        for start in range(0, len(labels), size):
            yield images[start : start + size], labels[start : start + size]


@lru_cache(maxsize=1)
def shards(folder: Path) -> Shards:
    """Return what `make` has put there; read once per process, from mapped files."""
    # "c" maps the file so that torch may think it writable; nobody writes.
    images, labels = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("x", "y"))
    starts = json.loads((folder / "starts.json").read_text())
    return Shards(torch.from_numpy(images), torch.from_numpy(labels), starts)


@lru_cache(maxsize=1)
def shared_model(name: str) -> nn.Module:
    """Return this process's one model of a workload, for workers that outlive a task."""
    return WORKLOADS[name].model()


def train(
    model: nn.Module, optimizer: torch.optim.SGD, batches: Iterator[tuple[Tensor, Tensor]]
) -> None:
    """Take one SGD step for each batch."""
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    """Return all parameters of a model in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def arguments() -> argparse.Namespace:
    """Return what `benchmarks/peers.py` passes to every `run_NAME.py`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--data", type=Path, required=True, help="a folder `make` has filled")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    return parser.parse_args()


def report(
    out: Path,
    round_ends: Sequence[float],
    cohorts: Sequence[Sequence[int]],
    model: nn.Module,
    threads: int,
) -> None:
    """Write what a peer's run came to: when each round ended (`time.time()`), and who trained.

    `model` is the average after the last round, trained with so many threads; `check` asks.
    """
    assert len(round_ends) == len(cohorts), (len(round_ends), len(cohorts))
    np.save(out.with_suffix(".npy"), flat(model).numpy())
    found = {"round_ends": round_ends, "cohorts": cohorts, "threads": threads}
    out.write_text(json.dumps(found))


def make(workload: Workload, folder: Path) -> dict[str, Any]:
    """Write the data of a workload; return how many examples each learner has."""
    images, labels, starts = workload.make()
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", labels)
    (folder / "starts.json").write_text(json.dumps(starts))
    digest = hashlib.sha256(images.data)
    digest.update(labels.data)
    sizes = [end - start for start, end in pairwise(starts)]
    return {"sizes": sizes, "sha256": digest.hexdigest()}


def reference(workload: Workload, data: Shards, seconds: float) -> dict[str, Any]:
    """Time the bare SGD steps: one model, one optimizer, learner after learner, no averaging.

    As many learners as in a round are one lap. The first lap is not counted, as a peer's first
    round is not, and at least one other is.
    """
    torch.set_num_threads(NUM_THREADS)
    model = workload.initial_model()
    optimizer = workload.optimizer(model)
    laps: list[dict[str, float]] = []
    learner = 0
    begin = time.perf_counter()
    while len(laps) < 2 or time.perf_counter() - begin < seconds:
        start, samples = time.perf_counter(), 0
        for _ in range(workload.learners_per_round):
            train(model, optimizer, data.batches(learner, workload.batch_size))
            samples += data.num_examples(learner)
            learner = (learner + 1) % workload.num_learners
        laps.append({"samples": samples, "seconds": time.perf_counter() - start})
    assert bool(flat(model).isfinite().all()), "the plain loop has diverged"
    return {"laps": laps[1:]}


def check(workload: Workload, data: Shards, peer: Path) -> dict[str, Any]:
    """Say how far a peer's model is from what FedAvg by hand makes of the same cohorts.

    The distance is relative to how far training went. It is meant for a run of one round: with
    each further round rounding errors grow, until they look like another algorithm.
    """
    found = json.loads(peer.read_text())
    torch.set_num_threads(found["threads"])  # sums of another order are other sums
    initial = flat(workload.initial_model())
    current = initial.clone()
    model = workload.model()
    for cohort in found["cohorts"]:
        total = torch.zeros(len(initial), dtype=torch.float64)
        for learner in cohort:
            # a clone, because the parameters become views of it and are trained in place
            nn.utils.vector_to_parameters(current.clone(), model.parameters())
            train(model, workload.optimizer(model), data.batches(learner, workload.batch_size))
            total += data.num_examples(learner) * flat(model)
        current = (total / sum(data.num_examples(learner) for learner in cohort)).float()
    theirs = torch.from_numpy(np.load(peer.with_suffix(".npy")))
    return {"distance": float((theirs - current).norm() / (current - initial).norm())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "reference", "check"))
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--peer", type=Path, help="what a peer's run has reported")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    match options.what:
        case "make":
            found = make(workload, options.data)
        case "reference":
            found = reference(workload, shards(options.data), options.seconds)
        case _:
            found = check(workload, shards(options.data), options.peer)
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
