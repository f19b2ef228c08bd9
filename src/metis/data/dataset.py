"""What a data source hands over: arrays and the few facts a federation needs about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError


@dataclass(frozen=True, slots=True)
class Advice:
    """How the papers, or common sense, train on this data. A config may overrule each of them."""

    model: str = "mlp"
    learning_rate: float = 0.05
    momentum: float = 0.9
    batch_size: int = 32
    weight_decay: float = 0.0
    weight_decay_on: tuple[str, ...] = ()  # parameter-name patterns; empty: all weights
    augment: str = "none"  # how inputs are prepared for training: see learn/prepare.py


@dataclass(frozen=True, slots=True)
class Dataset:
    """A task with its training and test examples.

    `x` is float32, ready to be fed to a model, or uint8 (images, channels first), which the
    preparation step scales. `num_classes` is 0 for regression; `y` is then float32, else int64.
    `owners` names who each training example came from (writer, hospital, user), where known.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    num_classes: int
    owners: NDArray[Any] | None = None
    advice: Advice = field(default_factory=Advice)

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                raise DataError(f"{self.name}: {len(x)} {part} inputs but {len(y)} {part} targets")
            if len(x) == 0:
                raise DataError(f"{self.name}: no {part} examples")
            if self.num_classes and (y.min() < 0 or y.max() >= self.num_classes):
                raise DataError(
                    f"{self.name}: {part} labels span {y.min()}..{y.max()}, "
                    f"but there are {self.num_classes} classes (0..{self.num_classes - 1})"
                )
        if self.owners is not None and len(self.owners) != len(self.x_train):
            raise DataError(
                f"{self.name}: {len(self.owners)} owners for {len(self.x_train)} train examples"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example as stored, without the batch dimension."""
        return tuple(int(n) for n in np.shape(self.x_train)[1:])
