"""From stored examples to what a model is fed: scaling, cropping, flipping, standardising.

Randomness is drawn apart from its use: `draw` gives every number an epoch needs at once, one row
per example, and `train` applies rows to examples without looking back. So the examples of many
learners can be prepared in one call, and a preparation gives the same values however the rows
are cut into batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from metis.core.errors import ConfigError, unknown

#: One row per example of numbers uniform in [0, 1); what a column stands for is the preparation's.
Draws: TypeAlias = NDArray[np.float32]


class Preparation(Protocol):
    """How inputs are made ready. Holds no state; works on whatever device the inputs are."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a prepared example. Raises ConfigError for one it cannot take."""
        ...

    def draw(self, rng: np.random.Generator, num_examples: int) -> Draws:
        """Return all random numbers for `num_examples` examples, one row each."""
        ...

    def train(self, x: Tensor, draws: Tensor) -> Tensor:
        """Return a batch prepared for training; `draws` holds one row for each example."""
        ...

    def evaluate(self, x: Tensor) -> Tensor:
        """Return a batch prepared for evaluation: nothing random."""
        ...


@dataclass(frozen=True, slots=True)
class AsIs:
    """Bytes are scaled to 0..1, everything else is fed as it is stored."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        return input_shape

    def draw(self, rng: np.random.Generator, num_examples: int) -> Draws:
        return np.empty((num_examples, 0), dtype=np.float32)

    def train(self, x: Tensor, draws: Tensor) -> Tensor:
        return self.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor:
        return x.float() / 255 if x.dtype == torch.uint8 else x


@dataclass(frozen=True, slots=True)
class CropAndDistort:
    """The TensorFlow CIFAR-10 tutorial's: crop, flip, brightness, contrast, standardise.

    Evaluation takes the centre crop and standardises it. Float images are taken to be on the
    same 0..255 scale as bytes. Nothing is clipped, as in the tutorial, so the standardisation
    takes the brightness out again (up to rounding); it is applied all the same, for nothing:
    it is added to a mean per channel.
    """

    size: int = 24
    max_brightness: float = 63.0
    contrast: tuple[float, float] = (0.2, 1.8)

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) != 3 or min(input_shape[1:]) < self.size:
            raise ConfigError(
                f"preparation 'cifar10' crops images (channels first) to {self.size}x{self.size}, "
                f"but the data has shape {input_shape}"
            )
        return (input_shape[0], self.size, self.size)

    def draw(self, rng: np.random.Generator, num_examples: int) -> Draws:
        return rng.random((num_examples, 5), dtype=np.float32)

    def train(self, x: Tensor, draws: Tensor) -> Tensor:
        top, left, flip, brightness, contrast = draws.unbind(1)
        image = _random_crop(x, self.size, top, left, flip).float()
        low, high = self.contrast
        factor = (low + (high - low) * contrast)[:, None, None, None]
        shift = (self.max_brightness * (2 * brightness - 1))[:, None, None, None]
        mean = image.mean(dim=(2, 3), keepdim=True)
        return _standardise((image - mean) * factor + (mean + shift))

    def evaluate(self, x: Tensor) -> Tensor:
        top, left = (x.shape[2] - self.size) // 2, (x.shape[3] - self.size) // 2
        return _standardise(x[:, :, top : top + self.size, left : left + self.size].float())


@dataclass(frozen=True, slots=True)
class PadAndCrop:
    """The usual one for CIFAR-100: border of zeros, crop to the old size, flip, standardise."""

    border: int = 4

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
            raise ConfigError(
                "preparation 'cifar100' takes square images (channels first), "
                f"but the data has shape {input_shape}"
            )
        return input_shape

    def draw(self, rng: np.random.Generator, num_examples: int) -> Draws:
        return rng.random((num_examples, 3), dtype=np.float32)

    def train(self, x: Tensor, draws: Tensor) -> Tensor:
        top, left, flip = draws.unbind(1)
        padded = F.pad(x, (self.border,) * 4)
        return _standardise(_random_crop(padded, x.shape[2], top, left, flip).float())

    def evaluate(self, x: Tensor) -> Tensor:
        return _standardise(x.float())


PREPARATIONS: dict[str, Preparation] = {
    "none": AsIs(),
    "cifar10": CropAndDistort(),
    "cifar100": PadAndCrop(),
}


def preparation_named(name: str) -> Preparation:
    """Return a preparation by its name in a config. Raises ConfigError for a wrong one."""
    if name not in PREPARATIONS:
        raise ConfigError(unknown("preparation", name, PREPARATIONS))
    return PREPARATIONS[name]


def _random_crop(x: Tensor, size: int, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    # One gather for the whole batch: each example has its own rows and columns, and a mirrored
    # one has its columns from right to left.
    along = torch.arange(size, device=x.device)
    rows = _offset(top, x.shape[2] - size)[:, None] + along
    columns = torch.where((flip < 0.5)[:, None], along, size - 1 - along)
    columns = _offset(left, x.shape[3] - size)[:, None] + columns
    example = torch.arange(len(x), device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return x[example, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _offset(uniform: Tensor, largest: int) -> Tensor:
    # The product of a float32 just below 1 can round up to largest + 1.
    return (uniform * (largest + 1)).long().clamp(max=largest)


def _standardise(image: Tensor) -> Tensor:
    """Subtract each image's mean and divide by its deviation, at least 1/sqrt(number of values)."""
    num_values = math.prod(image.shape[1:])
    deviation, mean = torch.std_mean(image, dim=(1, 2, 3), correction=0, keepdim=True)
    return (image - mean) / deviation.clamp(min=1 / math.sqrt(num_values))
