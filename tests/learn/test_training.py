"""Settings, schedules, optimizers and the step, against the formulas written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from metis.core.errors import ConfigError, ModelError
from metis.learn.evaluator import squared_error
from metis.learn.settings import TrainSettings
from metis.learn.training import device_named, new_optimizer, train_step
from tests.learn.federation import training_of

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]])
Y = torch.tensor([1.0, -2.0, 0.5])


def line() -> nn.Linear:
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.3, -0.2]]))
    return module


def gradient(w: NDArray[np.float64]) -> NDArray[np.float64]:
    x, y = X.numpy().astype(np.float64), Y.numpy().astype(np.float64)
    return np.asarray(2 * (x @ w - y) @ x / len(y))


def trained(
    training: TrainSettings, num_steps: int, start: torch.Tensor | None = None
) -> list[float]:
    module = line()
    optimizer = new_optimizer(training, module)
    anchors = [] if start is None else [(p, start) for p in module.parameters()]
    for _ in range(num_steps):
        train_step(module, optimizer, squared_error, (X, Y), training, anchors)
    return [float(w) for w in module.weight.detach()[0]]


def test_sgd_is_the_papers_momentum() -> None:
    w, u = np.array([0.3, -0.2]), np.zeros(2)
    for _ in range(5):
        u = 0.75 * u + gradient(w)
        w = w - 0.05 * u

    assert trained(training_of(learning_rate=0.05, momentum=0.75), 5) == pytest.approx(w, rel=1e-5)


def test_the_proximal_term_pulls_towards_the_start() -> None:
    rho, start = 0.5, np.array([1.0, 1.0])
    w = np.array([0.3, -0.2])
    for _ in range(3):
        w = w - 0.1 * (gradient(w) + rho * (w - start))
    training = training_of(learning_rate=0.1, momentum=0.0, proximal=rho)

    assert trained(training, 3, torch.ones(1, 2)) == pytest.approx(w, rel=1e-5)


def test_the_gradients_norm_is_clipped() -> None:
    w = np.array([0.3, -0.2])
    g = gradient(w)
    w = w - 0.1 * g * 0.01 / np.linalg.norm(g)
    training = training_of(learning_rate=0.1, momentum=0.0, clip_norm=0.01)

    assert trained(training, 1) == pytest.approx(w, rel=1e-4)


def decay_of(training: TrainSettings, module: nn.Module) -> dict[str, float]:
    optimizer = new_optimizer(training, module)
    names = {id(p): name for name, p in module.named_parameters()}
    return {
        names[id(p)]: group["weight_decay"]
        for group in optimizer.param_groups
        for p in group["params"]
    }


def test_weight_decay_is_for_weights_unless_patterns_say_otherwise() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))

    assert decay_of(training_of(weight_decay=0.1), module) == {
        "0.weight": 0.1,
        "0.bias": 0.0,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "3.weight": 0.1,
        "3.bias": 0.0,
    }
    chosen = decay_of(training_of(weight_decay=0.1, weight_decay_on=("3.*",)), module)
    assert [name for name, decay in chosen.items() if decay] == ["3.weight", "3.bias"]
    assert set(decay_of(training_of(optimizer="AdamW"), module).values()) == {0.0}


def test_weight_decay_adds_to_the_gradient() -> None:
    w = np.array([0.3, -0.2])
    w = w - 0.1 * (gradient(w) + 0.4 * w)
    training = training_of(learning_rate=0.1, momentum=0.0, weight_decay=0.4)

    assert trained(training, 1) == pytest.approx(w, rel=1e-5)


def test_the_factor_of_a_task_multiplies_the_learning_rate() -> None:
    optimizer = new_optimizer(training_of(learning_rate=0.5), line(), rate_factor=0.25)

    assert {group["lr"] for group in optimizer.param_groups} == {0.125}


@pytest.mark.parametrize("name", ["Adam", "adamw", "RMSprop", "nadam", "adagrad", "Rprop"])
def test_any_optimizer_of_torch_lowers_the_loss(name: str) -> None:
    before = float(np.square(X.numpy() @ [0.3, -0.2] - Y.numpy()).mean())
    w = trained(training_of(optimizer=name, learning_rate=0.01), 20)

    assert float(np.square(X.numpy() @ w - Y.numpy()).mean()) < before


def test_options_reach_the_optimizer() -> None:
    training = training_of(optimizer="adam", optimizer_options={"betas": (0.5, 0.6)})

    assert new_optimizer(training, line()).param_groups[0]["betas"] == (0.5, 0.6)


def test_wrong_settings_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="batch_size = 0: must be at least 1"):
        training_of(batch_size=0)
    with pytest.raises(ConfigError, match="device = 'gpu'"):
        device_named("gpu")
    for training, message in (
        (training_of(optimizer="adm"), "did you mean 'adam'"),
        (training_of(optimizer="lbfgs"), "unknown optimizer 'lbfgs'"),
        (training_of(optimizer_options={"nesterow": True}), "nesterow"),
        (training_of(optimizer_options={"lr": 1}), "set learning_rate instead of lr"),
        (training_of(weight_decay=0.1, weight_decay_on=("fc9.*",)), r"matches 'fc9.\*'.*weight"),
        (training_of(optimizer="rprop", weight_decay=0.1), "knows no weight_decay"),
    ):
        with pytest.raises(ConfigError, match=message):
            new_optimizer(training, line())


def test_a_module_that_is_frozen_altogether_is_refused() -> None:
    with pytest.raises(ModelError, match="no trainable parameter"):
        new_optimizer(training_of(), line().requires_grad_(False))
