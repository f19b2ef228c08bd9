"""What a data source hands over: arrays and the few facts a federation needs about them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError

MAX_CLASSES = 100_000  # a confusion matrix has the square of it; more is a mistake in the labels


@dataclass(frozen=True, slots=True)
class Advice:
    """How the papers, or common sense, train on this data. A config may overrule each of them."""

    model: str = "mlp"
    learning_rate: float = 0.05
    momentum: float = 0.9
    batch_size: int = 32
    weight_decay: float = 0.0
    weight_decay_on: tuple[str, ...] = ()  # parameter-name patterns; empty: all weights
    augment: str = "none"  # how inputs are prepared for training: see training/prepare.py


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
        if isinstance(self.num_classes, bool) or not isinstance(self.num_classes, int | np.integer):
            raise DataError(
                f"{self.name}: num_classes = {self.num_classes!r} must be a whole number"
            )
        if not 0 <= self.num_classes <= MAX_CLASSES:
            raise DataError(
                f"{self.name}: num_classes = {self.num_classes} must be 0 (a regression) "
                f"or at most {MAX_CLASSES:,}"
            )
        for part in ("train", "test"):
            for axis in ("x", "y"):
                # Whatever can be an array becomes one: lists, tensors on the CPU, memory maps.
                values = np.asarray(getattr(self, f"{axis}_{part}"))
                if len(np.atleast_1d(values)) == 0:
                    raise DataError(f"{self.name}: no {part} examples")
                check = self._inputs if axis == "x" else self._targets
                object.__setattr__(self, f"{axis}_{part}", check(values, f"{axis}_{part}"))
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                raise DataError(f"{self.name}: {len(x)} {part} inputs but {len(y)} {part} targets")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"{self.name}: train inputs have shape {self.x_train.shape[1:]}, "
                f"test inputs {self.x_test.shape[1:]}"
            )
        if self.owners is not None and len(self.owners) != len(self.x_train):
            raise DataError(
                f"{self.name}: {len(self.owners)} owners for {len(self.x_train)} train examples"
            )

    def _inputs(self, x: NDArray[Any], what: str) -> NDArray[Any]:
        if x.dtype == np.uint8:
            checked = x
        elif x.dtype.kind in "fiu":
            checked = x.astype(np.float32, copy=False)
        else:
            raise DataError(f"{self.name}: {what} must hold numbers, not {x.dtype}")
        if x.ndim < 2 or 0 in x.shape:
            raise DataError(
                f"{self.name}: {what} has shape {x.shape}; examples first, then their features"
            )
        if checked.dtype != np.uint8 and not np.isfinite(checked).all():
            raise DataError(f"{self.name}: {what} holds values that are not finite")
        return checked

    def _targets(self, y: NDArray[Any], what: str) -> NDArray[Any]:
        if y.dtype.kind not in "fiu" or y.ndim != 1:
            raise DataError(
                f"{self.name}: {what} must be one number for each example, "
                f"not {y.dtype} of shape {y.shape}"
            )
        if not np.isfinite(y).all():
            raise DataError(f"{self.name}: {what} holds values that are not finite")
        if self.num_classes == 0:
            return y.astype(np.float32, copy=False)
        if (y != np.floor(y)).any():
            raise DataError(f"{self.name}: {what} must hold whole class numbers")
        if y.min() < 0 or y.max() >= self.num_classes:
            raise DataError(
                f"{self.name}: {what}: labels span {y.min()}..{y.max()}, "
                f"but there are {self.num_classes} classes (0..{self.num_classes - 1})"
            )
        return y.astype(np.int64, copy=False)

    @property
    def digest(self) -> str:
        """Equal for two datasets exactly when their examples are. Reads all of them."""
        found = hashlib.sha256()
        for values in (self.x_train, self.y_train, self.x_test, self.y_test):
            found.update(str(values.shape).encode())
            found.update(np.ascontiguousarray(values).data)
        return found.hexdigest()[:16]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example as stored, without the batch dimension."""
        return tuple(int(n) for n in np.shape(self.x_train)[1:])
