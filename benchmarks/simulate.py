"""How fast a simulation trains, beside a plain PyTorch loop that takes the same SGD steps.

    python benchmarks/simulate.py --workload w1|w2|async|dvw|kernels [--device cuda]
        [--out FILE.json]

w1     10 learners x 500 images 3x32x32, CIFAR CNN without LRN, batch 100, one epoch, FedAvg
w2     1,000 learners with about 100 images 1x28x28 of 62 classes, FEMNIST CNN, batch 16, 20 a round
async  5 fast and 5 slow learners, AsyncDVW adaptive, the data of w1, beside w1 itself
dvw    seconds per round of SyncDVW beside SyncFedAvg, at 1 and at 4 epochs, the data of w1
kernels  the networks of the paper's Tables I and II in rounds as of w1, with their own GPU
         kernels and without; on a CPU, which has none, both are the same

The plain loop is one nn.Module, torch.optim.SGD, batches by index slices of float inputs that are
cropped in advance, two threads: no federation, no augmentation. The simulation is the real one:
controller, journal, packets, augmentation; only the test set is left alone, since the loop has
none. Each is timed in turn, `--pairs` times, for at least `--seconds` each; a ratio is that of one
pair, and above 1 the simulation is faster. What comes before the first version (reading, checking,
starting processes, capturing graphs) is told apart as start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from machine import machine
from metis.config import Config, load
from metis.data.dataset import Advice, Dataset
from metis.journal.file import Record
from metis.models import build
from metis.models.ops import dispatch
from metis.simulation.run import run

THREADS = 2  # of the plain loop
NEVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """What is simulated, and what the plain loop does beside it."""

    dataset: Dataset
    values: dict[str, Any]  # of the config
    shares: list[NDArray[np.int64]]  # whom the plain loop trains on, one after another
    per_round: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", choices=tuple(MEASURES), default="w1")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--examples", type=int, default=500, help="per learner; not of w2")
    parser.add_argument("--lrn", action="store_true", help="w1 with the CNN's two normalisations")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement, at least")
    parser.add_argument("--quick", action="store_true", help="one pair of a second: does it run?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.seconds = 1, 1.0
    load_average = os.getloadavg()[0]
    found = MEASURES[options.workload](options)
    about = machine(load_average) | {"torch": torch.__version__}
    if options.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    text = json.dumps({"machine": about, "workload": options.workload, **found}, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


# ---- the workloads ----------------------------------------------------------------------------


def images(options: argparse.Namespace) -> Workload:
    """W1: the same number of images for each of ten learners."""
    advice = Advice(
        "cifar_cnn", learning_rate=0.05, momentum=0.75, batch_size=100, augment="cifar10"
    )
    return images_for(advice, 10, {"lrn": options.lrn}, options.examples)


def images_for(advice: Advice, num_classes: int, of_model: dict[str, Any], each: int) -> Workload:
    """Return rounds of ten learners with so many images each, for any model that takes them."""
    rng = np.random.default_rng(1)
    total = 10 * each
    x = rng.integers(0, 256, size=(total + 100, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(0, num_classes, size=len(x))
    dataset = Dataset("w1", x[:total], y[:total], x[total:], y[total:], num_classes, advice=advice)
    values = {
        "policy": "sync-fedavg",
        "partition": {"sizes": "uniform", "classes": "iid"},
        "train": {"epochs": 1},
        "model": {"options": of_model},
    }
    return Workload(dataset, values, np.array_split(np.arange(total), 10), 10)


def writers(options: argparse.Namespace) -> Workload:
    """W2: a thousand writers, twenty of them in each round."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(80, 121, size=1000)
    owners = np.repeat(np.arange(1000), sizes)
    x = rng.integers(0, 256, size=(len(owners) + 100, 1, 28, 28), dtype=np.uint8)
    y = rng.integers(0, 62, size=len(x))
    total = len(owners)
    advice = Advice("femnist_cnn", learning_rate=0.05, momentum=0.0, batch_size=16)
    dataset = Dataset("w2", x[:total], y[:total], x[total:], y[total:], 62, owners, advice)
    values = {
        "policy": "sync-fedavg",
        "learners": 1000,
        "partition": {"sizes": "uniform", "classes": "natural"},
        "train": {"epochs": 1},
        "recipe": {"sample": 20},
    }
    return Workload(dataset, values, np.split(np.arange(total), np.cumsum(sizes)[:-1]), 20)


def config_of(work: Workload, options: argparse.Namespace, **values: Any) -> Config:
    merged = {**work.values, **values}
    merged["device"] = options.device
    merged["engine"] = options.engine
    merged["precision"] = options.precision
    merged["threads"] = THREADS if options.device == "cpu" else None
    return load(None, **merged)


# ---- what is measured -------------------------------------------------------------------------


def throughput(options: argparse.Namespace) -> dict[str, Any]:
    """W1 and W2: samples a second, and their ratio to the plain loop's."""
    work = images(options) if options.workload == "w1" else writers(options)
    config = long_enough(work, config_of(work, options), options)
    pairs = []
    for _ in range(options.pairs):
        reference = plain_loop(work, options)
        simulated = simulation(work, config)
        pairs.append({"reference": reference, "simulated": simulated})
    return {
        "device": options.device,
        "precision": options.precision,
        "lrn": options.lrn,
        "learners": config.learners,
        "examples_per_learner": options.examples if options.workload == "w1" else 100,
        "engine": pairs[0]["simulated"]["engine"],
        "samples_per_second": spread(p["simulated"]["samples_per_second"] for p in pairs),
        "rounds_per_second": spread(p["simulated"]["versions_per_second"] for p in pairs),
        "startup_seconds": spread(p["simulated"]["startup_seconds"] for p in pairs),
        "reference_samples_per_second": spread(p["reference"]["samples_per_second"] for p in pairs),
        "ratio": spread(
            p["simulated"]["samples_per_second"] / p["reference"]["samples_per_second"]
            for p in pairs
        ),
        "pairs": pairs,
    }


def asynchronous(options: argparse.Namespace) -> dict[str, Any]:
    """AsyncDVW with adaptive learners beside W1: what asynchrony costs the simulator."""
    work = images(options)
    rounds = long_enough(work, config_of(work, options), options)
    policy = "async-dvw-adaptive"
    config = long_enough(work, config_of(work, options, policy=policy), options)
    pairs = []
    for _ in range(options.pairs):
        w1, simulated = simulation(work, rounds), simulation(work, config)
        pairs.append({"w1": w1, "simulated": simulated})
    return {
        "device": options.device,
        "examples_per_learner": options.examples,
        "engine": pairs[0]["simulated"]["engine"],
        "samples_per_second": spread(p["simulated"]["samples_per_second"] for p in pairs),
        "w1_samples_per_second": spread(p["w1"]["samples_per_second"] for p in pairs),
        "ratio_to_w1": spread(
            p["simulated"]["samples_per_second"] / p["w1"]["samples_per_second"] for p in pairs
        ),
        "pairs": pairs,
    }


def judged(options: argparse.Namespace) -> dict[str, Any]:
    """A round of SyncDVW beside one of SyncFedAvg: what the distributed validation costs."""
    work = images(options)
    rows = []
    for epochs in (1, 4):
        configs = {
            policy: long_enough(
                work, config_of(work, options, policy=policy, train={"epochs": epochs}), options
            )
            for policy in ("sync-fedavg", "sync-dvw")
        }
        pairs = []
        for _ in range(options.pairs):
            times = {name: simulation(work, config) for name, config in configs.items()}
            pairs.append({name: 1 / t["versions_per_second"] for name, t in times.items()})
        rows.append(
            {
                "epochs": epochs,
                "seconds_per_round_fedavg": spread(p["sync-fedavg"] for p in pairs),
                "seconds_per_round_dvw": spread(p["sync-dvw"] for p in pairs),
                "dvw_to_fedavg": spread(p["sync-dvw"] / p["sync-fedavg"] for p in pairs),
            }
        )
    return {"device": options.device, "examples_per_learner": options.examples, "rows": rows}


def own_kernels(options: argparse.Namespace) -> dict[str, Any]:
    """Networks with kernels of their own beside torch's operations."""
    networks: list[tuple[Advice, int, dict[str, Any]]] = [
        (Advice("cifar_cnn", 0.05, 0.75, 100, augment="cifar10"), 10, {}),
        (
            Advice("resnet50_cifar", 0.1, 0.9, 128, augment="cifar100"),
            100,
            {"num_blocks": 1} if options.quick else {},
        ),
    ]
    rows = []
    for advice, num_classes, of_model in networks:
        work = images_for(advice, num_classes, of_model, options.examples)
        config = config_of(work, options)
        with kernels(used=False):
            config = long_enough(work, config, options)
        pairs = []
        for _ in range(options.pairs):
            with kernels(used=False):
                without = simulation(work, config)
            pairs.append({"without": without, "with": simulation(work, config)})
        rows.append(
            {
                "model": advice.model,
                "engine": pairs[0]["with"]["engine"],
                "samples_per_second": spread(p["with"]["samples_per_second"] for p in pairs),
                "samples_per_second_without": spread(
                    p["without"]["samples_per_second"] for p in pairs
                ),
                "ratio": spread(
                    p["with"]["samples_per_second"] / p["without"]["samples_per_second"]
                    for p in pairs
                ),
            }
        )
    return {
        "device": options.device,
        "precision": options.precision,
        "examples_per_learner": options.examples,
        "has_kernels": options.device == "cuda" and dispatch.HAS_TRITON,
        "rows": rows,
    }


@contextmanager
def kernels(used: bool) -> Iterator[None]:
    """Let networks take their own kernels, where there are any, or not."""
    before = dispatch.HAS_TRITON
    dispatch.HAS_TRITON = before and used
    try:
        yield
    finally:
        dispatch.HAS_TRITON = before


def long_enough(work: Workload, config: Config, options: argparse.Namespace) -> Config:
    """Return the config with as many versions as take the seconds wanted."""
    trial = replace(config, horizon=replace(config.horizon, versions=4, test_every=NEVER))
    rate = simulation(work, trial)["versions_per_second"]
    versions = max(4, int(rate * options.seconds * 1.1) + 1)
    return replace(config, horizon=replace(config.horizon, versions=versions, test_every=NEVER))


def simulation(work: Workload, config: Config) -> dict[str, Any]:
    """Run a federation; count from its first version to its last."""
    stamps: list[tuple[float, int]] = []
    samples = 0

    def listen(record: Record) -> None:
        nonlocal samples
        if record["kind"] == "steps":
            samples += record["samples"]
        if record["kind"] == "version":
            stamps.append((time.perf_counter(), samples))

    began = time.perf_counter()
    result = run(config, data=work.dataset, listeners=(listen,))
    first, last = stamps[0], stamps[-1]
    seconds = last[0] - first[0]
    return {
        "engine": result.config.engine,
        "threads": result.config.threads,
        "seconds": seconds,
        "samples_per_second": (last[1] - first[1]) / seconds,
        "versions_per_second": (len(stamps) - 1) / seconds,
        "startup_seconds": first[0] - began,
    }


def plain_loop(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Train one module on the learners' batches, one learner after another, for so long."""
    dataset, device = work.dataset, torch.device(options.device)
    shape = dataset.input_shape
    crop = slice(4, 28) if dataset.advice.augment == "cifar10" else slice(None)
    if dataset.advice.augment == "cifar10":
        shape = (3, 24, 24)
    x = torch.from_numpy(dataset.x_train[:, :, crop, crop].astype(np.float32) / 255).to(device)
    y = torch.from_numpy(dataset.y_train).to(device)
    more = {"lrn": options.lrn} if dataset.advice.model == "cifar_cnn" else {}
    module = build(dataset.advice.model, shape, dataset.num_classes, seed=1, **more).to(device)
    advice = dataset.advice
    torch.set_num_threads(THREADS)
    torch.backends.cuda.matmul.allow_tf32 = options.precision != "float32"
    rng = np.random.default_rng(3)
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    samples, began, position = 0, time.perf_counter(), 0
    while True:
        share = torch.from_numpy(rng.permutation(work.shares[position % len(work.shares)]))
        share, position = share.to(device), position + 1
        optimizer = torch.optim.SGD(
            module.parameters(), lr=advice.learning_rate, momentum=advice.momentum
        )
        for at in range(0, len(share), advice.batch_size):
            chosen = share[at : at + advice.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x[chosen]), y[chosen])
            torch.autograd.backward(loss)
            optimizer.step()
        samples += len(share)
        if position % work.per_round == 0:
            wait()
            if time.perf_counter() - began > options.seconds:
                break
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "samples_per_second": samples / seconds}


def spread(values: Any) -> dict[str, float]:
    """Return the median of some figures, and the lowest and highest of them."""
    found = sorted(values)
    return {"median": statistics.median(found), "low": found[0], "high": found[-1]}


MEASURES = {
    "w1": throughput,
    "w2": throughput,
    "async": asynchronous,
    "dvw": judged,
    "kernels": own_kernels,
}

if __name__ == "__main__":
    main()
