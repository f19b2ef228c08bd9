"""Scoring a model on examples: counts that may leave a site, and the mean loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from metis.core.errors import DataError, ModelError
from metis.core.types import ClassCounts, Counts, ErrorSums
from metis.training.step import Loss

# The size of a batch, about. Results must not depend on memory that happens to be free, so these
# are numbers, not measures. A GPU is not busy with 500 examples of a small network.
EVALUATION_BATCH = {"cpu": 500, "cuda": 2500}


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets on the device they are computed with; bytes stay bytes until used."""

    x: Tensor
    y: Tensor
    prepared: bool = False  # whether x is ready for a network in evaluation mode

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


#: Inputs that take no more than this are prepared once, not for every model again.
PREPARED_BYTES = 256 * 2**20


def held_ready(examples: Examples, indices: Tensor, feed: Callable[[Tensor], Tensor]) -> Examples:
    """Return some examples for scoring models, prepared if that takes little enough memory."""
    x, y = examples.x[indices], examples.y[indices]
    if len(y) == 0 or feed(x[:1]).nbytes * len(y) > PREPARED_BYTES:
        return Examples(x, y)
    return Examples(torch.cat([feed(part) for part in batches(x)]), y, prepared=True)


def batches(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut what is to be evaluated into batches: even ones, since a small one takes as long."""
    size = EVALUATION_BATCH[rows.device.type]
    return torch.tensor_split(rows, max(1, (len(rows) + size // 2) // size))


def _to(device: torch.device, array: NDArray[Any]) -> Tensor:
    # torch cannot promise to leave a read-only array alone, and warns: such a one is copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of one output per example, be it a column or a plain row of numbers."""
    return F.mse_loss(outputs.reshape(y.shape), y)


def each_squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of each example."""
    return (outputs.reshape(y.shape) - y).square()


def each_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each example."""
    return F.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True, slots=True)
class Scores:
    """How a model does on some examples: its counts, and the sum of its losses."""

    counts: Counts
    loss: float
    num_examples: int


def pooled(scores: Sequence[Scores]) -> tuple[Counts, float]:
    """Return the counts over all examples, and the mean loss. The order matters to the last bit."""
    first, *rest = (part.counts for part in scores)
    counts: Any = first
    for more in rest:
        counts = counts + more
    num_examples = sum(part.num_examples for part in scores)
    return counts, sum(part.loss for part in scores) / num_examples


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Applies the present model of a network, in evaluation mode."""

    network: nn.Module
    feed: Callable[[Tensor], Tensor]  # makes stored inputs ready for the network
    loss: Loss
    num_classes: int

    def mean_loss(self, examples: Examples, indices: Tensor) -> Tensor:
        """Return the mean loss over some examples, still on the device."""
        total = torch.zeros((), dtype=torch.float64, device=indices.device)
        for part, outputs in self._outputs(examples, indices):
            total += self.loss(outputs, examples.y[part]).double() * len(part)
        return total / len(indices)

    def predictions(self, examples: Examples, indices: Tensor) -> Tensor:
        """Return the predicted class or number of each example, still on the device."""
        return torch.cat([self._predicted(out) for _, out in self._outputs(examples, indices)])

    def scores(self, examples: Examples, part: int, num_parts: int) -> list[Scores]:
        """Return the scores of each batch in part number `part` of all examples."""
        indices = torch.arange(len(examples.y), device=examples.y.device)
        all_of_them = batches(indices)
        first, last = (at * len(all_of_them) // num_parts for at in (part, part + 1))
        found = []
        for batch in all_of_them[first:last]:
            ((_, outputs),) = self._outputs(examples, batch)
            y = examples.y[batch]
            (counts,) = self.counts(y, self._predicted(outputs), [len(batch)])
            loss = float(self.loss(outputs, y).double()) * len(batch)
            found.append(Scores(counts, loss, len(batch)))
        return found

    def _outputs(self, examples: Examples, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the indices of each batch, and its outputs."""
        self.network.eval()
        # no_grad, not inference_mode: what a user's network caches on its first pass here
        # (a positional table, say) is needed for training later.
        with torch.no_grad():
            for part in batches(indices):
                x = examples.x[part]
                yield part, self.network(x if examples.prepared else self.feed(x)).float()

    def _predicted(self, outputs: Tensor) -> Tensor:
        """Return the predicted class or number of each example."""
        return outputs.argmax(1) if self.num_classes else outputs.reshape(-1)

    def counts(self, y: Tensor, predicted: Tensor, sizes: Sequence[int]) -> list[Counts]:
        """Return the counts of consecutive runs of examples, each of such a size."""
        actual = y.cpu().numpy()
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


def check_outputs(network: nn.Module, x: Tensor, num_classes: int) -> None:
    """Feed a network a few examples. Raises ModelError when it does not fit the data."""
    name, count = type(network).__name__, len(x)
    network.eval()
    try:
        with torch.no_grad():
            outputs = network(x)
    except Exception as error:  # whatever the user's own module raises
        shape = tuple(x.shape[1:])
        raise ModelError(f"{name} cannot take inputs of shape {shape}: {error!r}") from error
    if not isinstance(outputs, Tensor):
        raise ModelError(f"{name} returns a {type(outputs).__name__}, not a tensor")
    got, wanted = tuple(outputs.shape), (count, num_classes or 1)
    if got != wanted and (num_classes or got != wanted[:1]):
        what = f"{num_classes} classes" if num_classes else "a regression"
        raise ModelError(
            f"{name} gives outputs of shape {got} for {count} examples, but {what} needs {wanted}"
        )


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
