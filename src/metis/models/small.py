"""Networks that train in seconds on two cores: for demos, tests and tables of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from metis.models.shapes import require_shape


def digits_cnn(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return a CNN for 8x8 grey images: two 3x3 convolutions, one pool, one hidden layer."""
    require_shape("digits_cnn", (1, 8, 8), input_shape)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, num_outputs),
    )


def mnist_cnn(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return a CNN for 28x28 grey images, a small sister of `femnist_cnn`."""
    require_shape("mnist_cnn", (1, 28, 28), input_shape)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, num_outputs),
    )


def mlp(input_shape: Sequence[int], num_outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Return a perceptron with ReLU layers of these sizes; inputs of any shape are flattened."""
    layers: list[nn.Module] = [nn.Flatten()]
    num_in = math.prod(input_shape)
    for width in hidden:
        layers += [nn.Linear(num_in, width), nn.ReLU()]
        num_in = width
    return nn.Sequential(*layers, nn.Linear(num_in, num_outputs))


def linear(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return a linear model: logistic regression, or least squares for one output."""
    return mlp(input_shape, num_outputs, hidden=())
