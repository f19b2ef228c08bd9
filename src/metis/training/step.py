"""How a learner trains: the settings, the learning rate over time, the optimizer, one step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from metis.core.errors import ConfigError, ModelError, unknown

#: From outputs and targets to the mean loss of a batch.
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

#: float32 throughout; float32 whose products a GPU may round to 10 bits first; or bfloat16 where
#: torch's autocast allows for it, on a CPU too. Weights and updates are float32 in any case.
PRECISIONS = ("float32", "tf32", "bf16")

#: What becomes of an epoch's last mini-batch that is not full; see `Epochs`.
LAST_BATCHES = ("fill", "short", "drop")

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


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of local training, the same for every learner.

    A task says what its learning rate is multiplied by (`core.schedules`), so a learner needs no
    memory of its own for that.
    """

    batch_size: int = 32
    offers_best: bool = False  # the model of least validation loss, where losses are wanted
    last_batch: str = "fill"  # what becomes of a last mini-batch that is not full; see Epochs
    shuffle_buffer: int | None = None  # None: every epoch is a random order; see Epochs
    learning_rate: float = 0.05
    momentum: float = 0.9  # for optimizers that have one
    optimizer: str = "sgd"  # a name in torch.optim, in any case
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    proximal: float = 0.0  # rho of the term rho/2 * ||w - w_start||^2, over trained parameters
    weight_decay: float = 0.0
    weight_decay_on: tuple[str, ...] = ()  # parameter-name patterns; empty: all weights (ndim >= 2)
    keep_momentum: bool = False  # carry the optimizer's state over from task to task
    local_statistics: bool = False  # a learner keeps its batch-norm running statistics to itself
    clip_norm: float | None = None  # of the whole gradient, the proximal term's included
    device: str = "cpu"
    precision: str = "tf32"  # of products on a GPU, see PRECISIONS

    def __post_init__(self) -> None:
        if self.optimizer.lower() not in OPTIMIZERS:
            raise ConfigError(unknown("optimizer", self.optimizer, OPTIMIZERS))
        if self.precision not in PRECISIONS:
            raise ConfigError(unknown("precision", self.precision, PRECISIONS))
        if self.last_batch not in LAST_BATCHES:
            raise ConfigError(unknown("last_batch", self.last_batch, LAST_BATCHES))
        for name, is_right, wanted in (
            ("batch_size", self.batch_size >= 1, "at least 1"),
            (
                "shuffle_buffer",
                self.shuffle_buffer is None or self.shuffle_buffer >= 1,
                "at least 1",
            ),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "from 0 to below 1"),
            ("proximal", self.proximal >= 0, "at least 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "above 0"),
        ):
            if not is_right:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be {wanted}")

    def torch_device(self) -> torch.device:
        """Return the device to compute on. Raises ConfigError when this machine has none such."""
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ConfigError(f"device = {self.device!r}: must be 'cpu' or 'cuda'") from None
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
    training: Training, module: nn.Module, rate_factor: float = 1.0
) -> torch.optim.Optimizer:
    """Return a fresh optimizer for a task with this factor of the learning rate.

    SGD is the papers': u = momentum * u + gradient; w = w - rate * u, with u = 0 at first.
    """
    cls = OPTIMIZERS[training.optimizer.lower()]
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


def not_plain_sgd(training: Training) -> str | None:
    """Say why an engine that knows SGD only cannot train with these settings; None if it can."""
    if training.optimizer.lower() != "sgd":
        return f"the optimizer is {training.optimizer}, not sgd"
    more = set(training.optimizer_options) - {"nesterov"}
    return f"SGD's option {min(more)} is set" if more else None


def _options(training: Training) -> dict[str, Any]:
    taken = {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"}
    for name in training.optimizer_options:
        if name in taken:
            raise ConfigError(f"optimizer_options: set {taken[name]} instead of {name}")
    return dict(training.optimizer_options)


def decayed_names(training: Training, module: nn.Module) -> set[str]:
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
    training: Training,
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
