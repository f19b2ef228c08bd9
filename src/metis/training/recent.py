"""A small cache of tensors that belong to models."""

from __future__ import annotations

from collections import deque

from torch import Tensor

from metis.core.types import Vector


class RecentTensors:
    """The last few tensors that were computed for models, found by the model's vector.

    The key is the identity of the vector: an equal one elsewhere in memory is not found. Comparing
    values would cost more than the cache saves.
    """

    def __init__(self, size: int) -> None:
        self._kept: deque[tuple[Vector, Tensor]] = deque(maxlen=size)

    def put(self, weights: Vector, tensor: Tensor) -> None:
        """Keep a tensor; the oldest one goes when there are too many."""
        self._kept.append((weights, tensor))

    def get(self, weights: Vector) -> Tensor | None:
        """Return the tensor of a model, if it is still there."""
        for vector, tensor in self._kept:
            if vector is weights:
                return tensor
        return None
