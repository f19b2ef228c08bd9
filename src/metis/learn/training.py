"""How a learner trains: the settings, the learning rate over time, the optimizer, one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from metis.core.errors import ConfigError, ModelError, unknown
from metis.learn.settings import TrainSettings

#: From outputs and targets to the mean loss of a batch.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# One evaluates the loss many times a step, the other takes sparse gradients only.
_UNFIT = {"LBFGS", "SparseAdam"}
OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    name.lower(): cls
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type)
    and issubclass(cls, torch.optim.Optimizer)
    and cls is not torch.optim.Optimizer
    and name not in _UNFIT
}


def device_named(name: str) -> torch.device:
    """Return the device to compute on. Raises ConfigError when this machine has none such."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r}: must be 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': torch finds no CUDA device here; use 'cpu'")
    return device


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are not frozen, tied ones once. Raises ModelError for none."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise ModelError(f"{type(module).__name__} has no trainable parameter")
    return named


def new_optimizer(
    training: TrainSettings, module: nn.Module, rate_factor: float = 1.0
) -> torch.optim.Optimizer:
    """Return a fresh optimizer for a task with this factor of the learning rate.

    SGD is the papers': u = momentum * u + gradient; w = w - rate * u, with u = 0 at first.
    """
    cls = _optimizer_class(training.optimizer)
    takes = inspect.signature(cls).parameters
    settings: dict[str, Any] = {"lr": training.learning_rate * rate_factor}
    if "momentum" in takes:
        settings["momentum"] = training.momentum
    if cls is torch.optim.SGD and not {"foreach", "fused"} & training.optimizer_options.keys():
        settings["fused"] = True  # one pass over the weights instead of three
    names = decayed_names(training, module)
    named = trained_parameters(module)
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name in names]},
        {"params": [p for name, p in named if name not in names]},
    ]
    if "weight_decay" in takes:
        groups[0]["weight_decay"] = training.weight_decay
        groups[1]["weight_decay"] = 0.0
    elif training.weight_decay > 0:
        raise ConfigError(f"optimizer {training.optimizer!r} knows no weight_decay: set it to 0")
    try:
        return cls([group for group in groups if group["params"]], **settings, **_options(training))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {training.optimizer!r}: {error}") from error


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    if name.lower() not in OPTIMIZERS:
        raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name.lower()]


def not_plain_sgd(training: TrainSettings) -> str | None:
    """Say what keeps a trainer that knows SGD only from doing what these settings ask for."""
    if training.optimizer.lower() != "sgd":
        return f"the optimizer is {training.optimizer}, not sgd"
    more = set(training.optimizer_options) - {"nesterov"}
    return f"SGD's option {min(more)} is set" if more else None


def _options(training: TrainSettings) -> dict[str, Any]:
    taken = {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"}
    for name in training.optimizer_options:
        if name in taken:
            raise ConfigError(f"optimizer_options: set {taken[name]} instead of {name}")
    return dict(training.optimizer_options)


def decayed_names(training: TrainSettings, module: nn.Module) -> set[str]:
    """Return which parameters decay. Raises ConfigError for a pattern that matches none."""
    named = trained_parameters(module)
    if training.weight_decay == 0:
        return set()
    patterns = training.weight_decay_on
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            names = ", ".join(name for name, _ in named[:8]) + (", ..." if len(named) > 8 else "")
            raise ConfigError(
                f"weight_decay_on: no trainable parameter matches {pattern!r} (there are {names})"
            )
    if patterns:
        return {name for name, _ in named if any(fnmatchcase(name, p) for p in patterns)}
    return {name for name, parameter in named if parameter.ndim >= 2}


def train_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    batch: tuple[Tensor, Tensor],
    training: TrainSettings,
    anchors: Sequence[tuple[nn.Parameter, Tensor]],
) -> Tensor:
    """Take one optimizer step on a prepared batch; return its loss, still on the device.

    `anchors` pairs each trained parameter with its start value; empty without a proximal term.
    """
    x, y = batch
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(module(x), y)
    torch.autograd.backward(loss)
    for parameter, start in anchors:
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - start, alpha=training.proximal)
    if training.clip_norm is not None:
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, training.clip_norm)
    optimizer.step()
    return loss.detach()
