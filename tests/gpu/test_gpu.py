r"""What only a GPU can show; skipped where there is none.

On a machine without our test tools:

    PYTHONPATH=src python -m pytest -c /dev/null --rootdir . --noconftest \
        tests/gpu tests/zoo/test_fused_kernels.py
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metis.config import Config, load
from metis.core.errors import Interrupted
from metis.data.dataset import Advice, Dataset
from metis.learn import workbench
from metis.runtime.journal import Record
from metis.runtime.run import resume, run
from metis.runtime.session import Result
from metis.runtime.together import JointRun, run_together
from metis.zoo.cifar_cnn import CifarCnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

#: A model: the shape of its inputs, how they are augmented, its options.
MODELS: dict[str, tuple[str, tuple[int, ...], str, dict[str, Any]]] = {
    "cnn": ("cifar_cnn", (3, 32, 32), "cifar10", {"lrn": False}),
    "cnn with lrn": ("cifar_cnn", (3, 32, 32), "cifar10", {}),
    "leaf": ("leaf_cnn", (1, 28, 28), "none", {}),
    "resnet": ("resnet50_cifar", (3, 32, 32), "cifar100", {"num_blocks": 1}),
    "mlp": ("mlp", (12,), "none", {}),
}
POLICIES: dict[str, dict[str, Any]] = {
    "sync-dvw": {"train": {"epochs": 2, "keep_momentum": True}},
    "async-fedavg": {"train": {"epochs": 2, "clip_norm": 1.0}},
    "fedasync": {"train": {"epochs": 1, "proximal": 0.1}},
    "async-dvw-adaptive": {
        "groups": {"fast": {"vc_tomb": 1}, "slow": {"vc_tomb": 0}},
        "train": {"max_epochs": 4, "burn_in_epochs": 1, "offer": "best"},
    },
}
#: How far models may be apart after five versions, relative to their length.
CLOSE = {"float32": 1e-3, "tf32": 1e-2, "bf16": 2e-2}


def data_for(model: str, num_train: int = 160) -> Dataset:
    """Examples whose class shows, in a dataset that asks for this model."""
    name, shape, augment, _ = MODELS[model]
    rng = np.random.default_rng(7)
    total = num_train + 20
    y = np.arange(total) % 3
    x: Any
    if len(shape) == 3:
        x = rng.integers(0, 120, size=(total, *shape), dtype=np.uint8)
        x[:, :, 10:14] += (y * 40).astype(np.uint8)[:, None, None, None]
    else:
        x = (rng.normal(size=(total, *shape)) + y[:, None]).astype(np.float32)
    advice = Advice(name, 0.01, 0.75, 16, weight_decay=0.001, augment=augment)
    return Dataset(
        "made", x[:num_train], y[:num_train], x[num_train:], y[num_train:], 3, advice=advice
    )


def federation(model: str, policy: str, **values: Any) -> Config:
    chosen = {
        "learners": 4,
        "policy": policy,
        "device": "cuda",
        "precision": "float32",
        "partition": {"sizes": "skewed", "classes": "iid"},
        "horizon": {"versions": 5, "test_every": 2},
        "model": {"name": MODELS[model][0], "options": MODELS[model][3]},
        "validation": {"fraction": 0.1, "stratified": False},
    }
    return load(None, **{**chosen, **POLICIES[policy], **values})


def simulated(model: str, policy: str, **values: Any) -> Result:
    return run(federation(model, policy, **values), data=data_for(model))


def without_wall(result: Result) -> list[Record]:
    return [{k: v for k, v in r.items() if k != "wall_seconds"} for r in result.records[1:]]


def distance(one: Result, other: Result) -> float:
    return float(np.linalg.norm(one.weights - other.weights) / np.linalg.norm(one.weights))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", MODELS)
def test_graphs_come_to_the_model_of_the_loop(model: str, policy: str) -> None:
    loop = simulated(model, policy, engine="loop")
    graphs = simulated(model, policy)

    assert graphs.config.engine == "graphs"
    assert distance(graphs, loop) < CLOSE["float32"]


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive"])
def test_graphs_obey_what_a_task_says_as_the_loop_does(policy: str) -> None:
    """Its learning rate, what it is trained on; and whose running statistics it begins with."""
    falling = {"schedule": "plateau", "schedule_versions": 1, "schedule_improvement": 9.0}
    train = {**POLICIES[policy]["train"], **falling, "batch_norm_statistics": "local"}
    chosen: dict[str, Any] = {
        "train": train,
        "validation": {"fraction": 0.2, "release_last": 3, "stratified": False},
        "horizon": {"versions": 6 if policy == "sync-dvw" else 20},
    }
    loop = simulated("resnet", policy, engine="loop", **chosen)
    graphs = simulated("resnet", policy, **chosen)

    assert graphs.config.engine == "graphs"
    told = [(r["rate_factor"], r["all_examples"]) for r in graphs.records if r["kind"] == "task"]
    assert told == [
        (r["rate_factor"], r["all_examples"]) for r in loop.records if r["kind"] == "task"
    ]
    assert len(set(told)) >= 3
    assert distance(graphs, loop) < CLOSE["float32"]
    shared = {**train, "batch_norm_statistics": "shared"}
    other = simulated("resnet", policy, **{**chosen, "train": shared})
    assert other.weights.tobytes() != graphs.weights.tobytes()


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_lower_precision_stays_near(model: str, precision: str) -> None:
    exact = simulated(model, "sync-dvw")
    coarse = simulated(model, "sync-dvw", precision=precision)

    assert 0 < distance(coarse, exact) < CLOSE[precision]


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_two_runs_write_the_same_bytes(model: str, precision: str) -> None:
    first, second = (simulated(model, "sync-dvw", precision=precision) for _ in range(2))

    assert first.weights.tobytes() == second.weights.tobytes()
    assert without_wall(first) == without_wall(second)


def test_the_cifar_network_is_computed_by_kernels_of_its_own() -> None:
    """Without them all results would be as good, and late."""
    pytest.importorskip("triton")
    names = [f"metis.zoo.{name}_cuda" for name in ("lrn", "patches", "pool")]
    for name in names:
        sys.modules.pop(name, None)

    CifarCnn(10).cuda()(torch.rand(2, 3, 24, 24, device="cuda"))

    assert all(name in sys.modules for name in names)


class StopAt:
    """A user who presses Ctrl-C at a version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def __call__(self, record: Record) -> None:
        if record["kind"] == "version" and record["version"] == self.version:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive"])
def test_a_resumed_run_comes_to_the_same_bytes(policy: str, tmp_path: Path) -> None:
    config, data = federation("cnn", policy), data_for("cnn")
    whole = run(config, data=data)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", data=data, listeners=(StopAt(3),))

    resumed = resume(tmp_path / "cut", data=data)

    assert resumed.weights.tobytes() == whole.weights.tobytes()


def test_judges_answer_alike_whether_asked_one_by_one_or_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many examples judges are computed as they are asked, else all when the first is."""
    at_once = simulated("cnn", "sync-dvw")
    monkeypatch.setattr(workbench, "WHOLE_SET", 5)
    as_asked = simulated("cnn", "sync-dvw")

    def folds(result: Result) -> list[Any]:
        return [record["folds"] for record in result.records if record["kind"] == "version"]

    assert folds(at_once)[0] == folds(as_asked)[0]
    assert distance(at_once, as_asked) < CLOSE["float32"]


def test_runs_computed_together_come_to_the_bytes_of_runs_apart(tmp_path: Path) -> None:
    policies = ("sync-fedavg", "sync-dvw", "async-dvw")
    configs = [
        load(None, policy=policy, device="cuda", learners=5, horizon={"versions": 10})
        for policy in policies
    ]

    apart = [run(config) for config in configs]
    plans = [
        JointRun(config, tmp_path / name) for name, config in zip(policies, configs, strict=True)
    ]
    run_together(plans)

    for result, plan in zip(apart, plans, strict=True):
        assert result.config.engine == "graphs"
        written = [json.loads(line) for line in (plan.out / "journal.jsonl").open()]
        digests = [r["digest"] for r in written if r["kind"] == "version"]
        assert digests == [r["digest"] for r in result.records if r["kind"] == "version"]
