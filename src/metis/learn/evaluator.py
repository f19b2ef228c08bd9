"""Scoring a model on examples: counts that may leave a site, and the mean loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from metis.core.errors import DataError, ModelError
from metis.core.types import ClassCounts, Counts, ErrorSums
from metis.learn.prepare import Preparation
from metis.learn.training import Loss

# Results must not depend on memory that happens to be free, so this is a number, not a measure.
EVALUATION_BATCH = 500


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets on the device they are computed with; bytes stay bytes until used."""

    x: Tensor
    y: Tensor

    @classmethod
    def on(
        cls, device: torch.device, x: NDArray[Any], y: NDArray[Any], num_classes: int
    ) -> Examples:
        """Copy arrays to a device. Targets become int64 classes, or one float32 number each."""
        if x.dtype.kind == "f":
            x = x.astype(np.float32, copy=False)
        if not num_classes and y.size != len(y):
            raise DataError(f"a regression has one target per example, but y has shape {y.shape}")
        y = y.astype(np.int64 if num_classes else np.float32, copy=False).reshape(len(y))
        return cls(_to(device, x), _to(device, y))


def _to(device: torch.device, array: NDArray[Any]) -> Tensor:
    # torch cannot promise to leave a read-only array alone, and warns: such a one is copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of one output per example, be it a column or a plain row of numbers."""
    return F.mse_loss(outputs.reshape(y.shape), y)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Applies the model that a module holds at the moment, in evaluation mode."""

    module: nn.Module
    preparation: Preparation
    loss: Loss
    num_classes: int

    def check(self, examples: Examples) -> None:
        """Feed the module two examples. Raises ModelError when it does not fit the data."""
        name = type(self.module).__name__
        few = Examples(examples.x[:2], examples.y[:2])
        shape = tuple(self.preparation.evaluate(few.x).shape[1:])
        self.module.eval()
        try:
            with torch.no_grad():
                outputs = self.module(self.preparation.evaluate(few.x))
        except Exception as error:  # whatever the user's own module raises
            raise ModelError(f"{name} cannot take inputs of shape {shape}: {error!r}") from error
        if not isinstance(outputs, Tensor):
            raise ModelError(f"{name} returns a {type(outputs).__name__}, not a tensor")
        got = tuple(outputs.shape)
        wanted = (len(few.y), self.num_classes or 1)
        if got != wanted and (self.num_classes or got != wanted[:1]):
            what = f"{self.num_classes} classes" if self.num_classes else "a regression"
            raise ModelError(
                f"{name} gives outputs of shape {got} for {len(few.y)} examples, "
                f"but {what} needs {wanted}"
            )

    def mean_loss(self, examples: Examples, indices: Tensor) -> float:
        """Return the mean loss over some examples."""
        return self._apply(examples, indices)[1]

    def counts(self, examples: Examples, indices: Tensor, sizes: Sequence[int]) -> list[Counts]:
        """Return the counts of consecutive runs of examples, each of such a size, in one pass."""
        return self._count(examples, indices, sizes, self._apply(examples, indices)[0])

    def counts_and_loss(self, examples: Examples) -> tuple[Counts, float]:
        """Return the counts and the mean loss over all examples."""
        indices = torch.arange(len(examples.y), device=examples.y.device)
        predicted, loss = self._apply(examples, indices)
        return self._count(examples, indices, [len(indices)], predicted)[0], loss

    def _apply(self, examples: Examples, indices: Tensor) -> tuple[Tensor, float]:
        """Return the predicted class or number of each example, and the mean loss."""
        self.module.eval()
        predicted: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float64, device=indices.device)
        # no_grad, not inference_mode: what a module of the user's caches on its first pass here
        # (a positional table, say) must be fit for training later.
        with torch.no_grad():
            for part in torch.split(indices, EVALUATION_BATCH):
                y = examples.y[part]
                outputs = self.module(self.preparation.evaluate(examples.x[part]))
                predicted.append(outputs.argmax(1) if self.num_classes else outputs.reshape(-1))
                total += self.loss(outputs, y).double() * len(part)
        return torch.cat(predicted), float(total) / len(indices)

    def _count(
        self, examples: Examples, indices: Tensor, sizes: Sequence[int], predicted: Tensor
    ) -> list[Counts]:
        actual = examples.y[indices].cpu().numpy()
        guessed = predicted.cpu().numpy()
        if not self.num_classes:
            ends = np.cumsum(sizes)[:-1]
            return [
                _error_sums(y, f)
                for y, f in zip(np.split(actual, ends), np.split(guessed, ends), strict=True)
            ]
        num_cells = self.num_classes**2
        run = np.repeat(np.arange(len(sizes)), sizes)
        cells = run * num_cells + actual * self.num_classes + guessed
        table = np.bincount(cells, minlength=len(sizes) * num_cells)
        return [
            ClassCounts(matrix.astype(np.int64))
            for matrix in table.reshape(len(sizes), self.num_classes, self.num_classes)
        ]


def _error_sums(actual: NDArray[np.float32], predicted: NDArray[np.float32]) -> ErrorSums:
    y = actual.astype(np.float64)
    error = predicted.astype(np.float64) - y
    return ErrorSums(
        num_examples=len(y),
        squared_error=float(error @ error),
        absolute_error=float(np.abs(error).sum()),
        target=float(y.sum()),
        target_squared=float(y @ y),
    )
