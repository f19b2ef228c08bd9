"""Networks by name. Each is a plain `nn.Module`; a user's own needs no place here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import nn

from metis.core.errors import ModelError, unknown
from metis.models.cifar_cnn import cifar_cnn
from metis.models.leaf_cnn import femnist_cnn, leaf_cnn
from metis.models.resnet50 import resnet50
from metis.models.resnet_cifar import resnet50_cifar
from metis.models.small import digits_cnn, linear, mlp, mnist_cnn

#: Each takes (input_shape, num_outputs) and the few options that its signature names.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "cifar_cnn": cifar_cnn,
    "digits_cnn": digits_cnn,
    "femnist_cnn": femnist_cnn,
    "leaf_cnn": leaf_cnn,
    "linear": linear,
    "mlp": mlp,
    "mnist_cnn": mnist_cnn,
    "resnet50": resnet50,
    "resnet50_cifar": resnet50_cifar,
}


def build(
    name: str, input_shape: Sequence[int], num_outputs: int, seed: int, **options: object
) -> nn.Module:
    """Return a new network whose weights follow from these arguments alone.

    `input_shape` is that of one prepared example. torch's own generator is left as it was.
    Raises ModelError for an unknown name or option, and for a shape the network does not take.
    """
    if name not in MODELS:
        raise ModelError(unknown("model", name, MODELS))
    known = list(inspect.signature(MODELS[name]).parameters)[2:]
    for option in options:
        if option not in known:
            if not known:
                raise ModelError(f"{name} has no options, so {option!r} cannot be set")
            raise ModelError(unknown(f"option of {name}", option, known))
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would reseed every accelerator too and not put it back.
        torch.default_generator.manual_seed(seed)
        try:
            return MODELS[name](tuple(input_shape), num_outputs, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"{name} cannot be built with {options}: {error}") from error
