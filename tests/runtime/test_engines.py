"""However learners are computed, a federation takes the same decisions and comes to one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metis.config import Config, load
from metis.core.errors import ConfigError
from metis.data.dataset import Advice, Dataset
from metis.models import build
from metis.runtime.journal import Record
from metis.runtime.run import run
from metis.runtime.session import Result
from metis.training.engines.stack import Stack, Stacked
from metis.training.flat import vector_of
from metis.training.learner_data import LearnerData
from metis.training.prepare import preparation_named

MODELS: dict[str, tuple[tuple[int, ...], int, str, dict[str, Any]]] = {
    "cifar_cnn": ((3, 32, 32), 3, "cifar10", {}),
    "leaf_cnn": ((1, 28, 28), 3, "none", {}),
    "resnet50_cifar": ((3, 32, 32), 3, "cifar100", {"num_blocks": 1}),
}
POLICIES: dict[str, dict[str, Any]] = {
    "sync-dvw": {"train": {"epochs": 2}},
    "async-fedavg": {"train": {"epochs": 2}},
    "async-dvw-adaptive": {
        "groups": {"fast": {"vc_tomb": 1}, "slow": {"vc_tomb": 0}},
        "train": {"max_epochs": 4, "burn_in_epochs": 1, "offer": "best"},
    },
}
#: Fields that a decision is made of; losses, scores and weights are compared as numbers.
DECISIONS = ("kind", "at", "learner", "task", "version", "num_steps", "epoch", "judge", "reason")


def images(model: str) -> tuple[Dataset, dict[str, Any]]:
    """A few made-up images whose class shows, in a dataset that asks for this model."""
    shape, num_classes, augment, options = MODELS[model]
    rng = np.random.default_rng(7)
    y = np.arange(90) % num_classes
    x = rng.integers(0, 120, size=(90, *shape), dtype=np.uint8)
    x[:, :, 10:14] += (y * (120 // num_classes)).astype(np.uint8)[:, None, None, None]
    advice = Advice(model, 0.01, 0.75, 16, weight_decay=0.001, augment=augment)
    dataset = Dataset("made", x[:80], y[:80], x[80:], y[80:], num_classes, advice=advice)
    return dataset, options


def federation(engine: str, policy: str, model: str, **values: Any) -> Config:
    chosen = {
        "learners": 4,
        "policy": policy,
        "engine": engine,
        "threads": 1 if engine != "processes" else 2,
        "partition": {"sizes": "skewed", "classes": "iid"},
        "horizon": {"versions": 5, "test_every": 2},
        "model": {"name": model, "options": MODELS[model][3]},
        "validation": {"fraction": 0.1, "stratified": False},
    }
    return load(None, **{**chosen, **POLICIES[policy], **values})


def decisions(records: list[Record]) -> list[tuple[Any, ...]]:
    return [tuple(record.get(name) for name in DECISIONS) for record in records[1:]]


def initial(result: Result) -> Any:
    """The model a run began with."""
    dataset, options = images(result.config.model.name or "")
    shape = preparation_named(dataset.advice.augment).output_shape(dataset.input_shape)
    module = build(
        dataset.advice.model, shape, dataset.num_classes, seed=result.config.seed, **options
    )
    return vector_of(module)


def distance(one: Result, other: Result) -> float:
    return float(np.linalg.norm(one.weights - other.weights) / np.linalg.norm(one.weights))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", MODELS)
def test_every_engine_takes_the_same_decisions_and_comes_to_the_same_model(
    model: str, policy: str
) -> None:
    dataset, _ = images(model)

    reference = run(federation("loop", policy, model), data=dataset)
    stacked = run(federation("stack", policy, model), data=dataset)
    beside = run(federation("processes", policy, model), data=dataset)

    assert reference.config.engine == "loop"
    assert stacked.config.engine == "stack"
    assert decisions(stacked.records) == decisions(reference.records)
    assert distance(stacked, reference) < 1e-4
    assert decisions(beside.records) == decisions(reference.records)
    assert beside.weights.tobytes() == reference.weights.tobytes()
    moved = np.linalg.norm(reference.weights - initial(reference))
    assert moved > 100 * np.linalg.norm(stacked.weights - reference.weights)


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive"])
@pytest.mark.parametrize("engine", ["loop", "stack", "processes"])
def test_every_mini_batch_is_full_on_every_engine_and_short_ones_are_seen(
    engine: str, policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset, _ = images("leaf_cnn")
    seen = tmp_path / "sizes"
    fed, stepped = LearnerData.feed_training, Stack._step

    def note(sizes: list[int]) -> None:
        with seen.open("a") as file:  # which processes that were forked can write to as well
            file.write("".join(f"{size}\n" for size in sizes))

    def feed(data: LearnerData, examples: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        if engine != "stack":
            note([len(examples)])
        return fed(data, examples, draws)

    def step(
        stack: Stack, part: Stacked, examples: Tensor, draws: Tensor, weights: Tensor
    ) -> Tensor:
        note([int(size) for size in weights.sum(1)])  # what fills a stack up counts nothing
        return stepped(stack, part, examples, draws, weights)

    monkeypatch.setattr(LearnerData, "feed_training", feed)
    monkeypatch.setattr(Stack, "_step", step)

    def sizes(last_batch: str) -> tuple[set[int], Result]:
        seen.unlink(missing_ok=True)
        train = {**POLICIES[policy]["train"], "last_batch": last_batch, "batch_size": 7}
        result = run(federation(engine, policy, "leaf_cnn", train=train), data=dataset)
        assert result.config.engine == engine
        return set(map(int, seen.read_text().split())), result

    full, filled = sizes("fill")
    assert full == {7}
    some_short, short = sizes("short")
    assert 7 in some_short
    assert min(some_short) < 7
    assert sizes("drop")[0] == {7}

    def missing(result: Result) -> set[int]:
        steps = [record for record in result.records if record["kind"] == "steps"]
        return {record["num_steps"] * 7 - record["samples"] for record in steps}

    assert missing(filled) == {0}
    assert max(missing(short)) > 0


@pytest.mark.parametrize("policy", ["fedasync", "sync-fedavg"])
@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.0},
        {"optimizer_options": {"nesterov": True}},
        {"clip_norm": 0.05, "keep_momentum": True, "schedule": "step", "schedule_versions": 2},
    ],
    ids=["plain", "nesterov", "clipped"],
)
def test_a_stack_knows_all_trimmings_of_sgd(policy: str, train: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 12)).astype(np.float32)
    y = (x @ rng.normal(size=(12, 3))).argmax(1)
    dataset = Dataset("made", x[:150], y[:150], x[150:], y[150:], 3)
    values: dict[str, Any] = {
        "learners": 6,
        "policy": policy,
        "threads": 1,
        "partition": {"sizes": "powerlaw", "classes": "iid"},
        "horizon": {"versions": 6},
        "train": {"epochs": 3, "batch_size": 8, **train},
    }

    reference = run(load(None, engine="loop", **values), data=dataset)
    stacked = run(load(None, engine="stack", **values), data=dataset)

    assert stacked.config.engine == "stack"
    assert decisions(stacked.records) == decisions(reference.records)
    assert distance(stacked, reference) < 1e-5


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive"])
def test_local_statistics_are_the_same_whoever_computes_them(policy: str) -> None:
    def ended(engine: str, statistics: str = "local") -> Result:
        values: dict[str, Any] = {
            "policy": policy,
            "learners": 5,
            "threads": 2 if engine == "processes" else 1,
            "horizon": {"versions": 3 if policy == "sync-dvw" else 15},
            "groups": {"fast": {"vc_tomb": 1}, "slow": {"vc_tomb": 0}},
            "validation": {"fraction": 0.2},
            "train": {"batch_norm_statistics": statistics, "max_epochs": 4, "epochs": 2},
        }
        return run(load(None, engine=engine, **values), model=normed(), data=table())

    reference, shared = ended("loop"), ended("loop", "shared")
    beside, stacked = ended("processes"), ended("stack")

    assert beside.config.engine == "processes"
    assert decisions(beside.records) == decisions(reference.records)
    assert beside.weights.tobytes() == reference.weights.tobytes()
    assert stacked.config.engine == "stack"
    assert decisions(stacked.records) == decisions(reference.records)
    assert distance(stacked, reference) < 1e-4
    assert reference.weights.tobytes() != shared.weights.tobytes()


class Odd(nn.Module):
    """Looks at a value to decide what to do, which no batched program can."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return -y if float(y.sum()) > 1e9 else y


def table() -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 12)).astype(np.float32)
    y = rng.integers(0, 3, 100)
    return Dataset("made", x[:80], y[:80], x[80:], y[80:], 3)


@pytest.mark.parametrize(
    ("module", "values", "reason"),
    [
        (Odd(), {}, "Odd cannot be stacked"),
        (
            nn.Sequential(nn.Linear(12, 8), nn.Dropout(), nn.Linear(8, 3)),
            {},
            "Sequential draws random numbers",
        ),
        (nn.Linear(12, 3), {"train": {"optimizer": "adam"}}, "the optimizer is adam, not sgd"),
    ],
    ids=["odd", "dropout", "adam"],
)
def test_what_cannot_be_stacked_is_said_and_computed_one_by_one(
    module: nn.Module, values: dict[str, Any], reason: str
) -> None:
    config = load(None, engine="stack", learners=3, horizon={"versions": 1}, **values)

    result = run(config, model=module, data=table())

    assert result.config.engine == "loop"
    assert reason in result.records[0]["engine_note"]


def test_graphs_without_a_gpu_are_said_to_need_one() -> None:
    config = load(None, engine="graphs", learners=3, horizon={"versions": 1})

    result = run(config, model=nn.Linear(12, 3), data=table())

    assert "CUDA graphs need device = cuda" in result.records[0]["engine_note"]


def test_the_rule_stacks_small_models_and_puts_larger_ones_side_by_side() -> None:
    values: dict[str, Any] = {"learners": 3, "threads": 2, "horizon": {"versions": 1}}
    small, large = nn.Linear(12, 3), nn.Sequential(nn.Linear(12, 9000), nn.Linear(9000, 3))

    assert run(load(None, **values), model=small, data=table()).config.engine == "stack"
    assert run(load(None, **values), model=large, data=table()).config.engine == "processes"
    alone = load(None, **{**values, "threads": 1})
    assert run(alone, model=large, data=table()).config.engine == "loop"


def test_a_stack_that_must_be_split_gives_the_same_model() -> None:
    values: dict[str, Any] = {
        "learners": 6,
        "engine": "stack",
        "threads": 1,
        "horizon": {"versions": 3},
        "policy": "sync-fedavg",
    }
    module = nn.Linear(12, 3)
    torch.manual_seed(0)
    nn.init.normal_(module.weight)
    start = {name: value.clone() for name, value in module.state_dict().items()}

    whole = run(load(None, **values), model=module, data=table())
    module.load_state_dict(start)
    split = run(load(None, **values, memory_gib=2e-5), model=module, data=table())

    assert distance(whole, split) < 1e-6
    module.load_state_dict(start)
    with pytest.raises(ConfigError, match=r"one learner alone needs .* GiB with batches of"):
        run(load(None, **values, memory_gib=1e-9), model=module, data=table())


def test_more_learners_at_work_than_memory_can_hold_are_refused_beforehand() -> None:
    module = nn.Sequential(nn.Linear(12, 100_000), nn.Linear(100_000, 3))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20_000, 12)), rng.integers(0, 3, 20_000)
    dataset = Dataset("made", x, y, x[:9], y[:9], 3)
    split = {"sizes": "uniform", "classes": "iid"}
    config = load(None, policy="sync-fedavg", learners=20_000, partition=split)

    with pytest.raises(ConfigError, match=r"20,000 learners at work at once need .* GiB"):
        run(config, model=module, data=dataset)
