"""Controllers as a config composes them, where the policy alone does not say it all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from metis.config import load
from metis.core.types import Snapshot
from metis.simulation.run import run


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )


@pytest.mark.parametrize(
    ("policy", "recipe"),
    [
        ("fedavgm", {}),
        ("fedadam", {"server_rate": 0.1}),
        ("fedyogi", {"server_rate": 0.1}),
        ("fedbuff", {"buffer_size": 3}),
    ],
)
def test_no_server_step_makes_a_running_variance_negative(
    policy: str, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Snapshot] = []
    monkeypatch.setattr(
        "metis.simulation.session.Session._tested", lambda self, model, best: models.append(model)
    )
    config = load(
        None,
        policy=policy,
        learners=4,
        engine="loop",
        threads=1,
        train={"learning_rate": 0.02},
        horizon={"versions": 12, "test_every": 1},
        recipe=recipe,
    )
    module = network()
    module(torch.zeros(2, 1, 8, 8))
    result = run(config, model=module)

    ((start, _),) = result.layout.spans("buffer")
    assert len(models) == 13
    for model in models:
        mean_and_variance = model.weights[start : start + 8].reshape(2, 4)
        assert (mean_and_variance[1] > 0.0).all(), f"version {model.version}"
    assert all(np.isfinite(r["loss"]) for r in result.records if r["kind"] == "test")
