"""Models in memory that several processes share."""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import ModelError
from metis.core.types import Vector


class SharedRows:
    """Rows of memory for a model each. Forked processes see the same rows."""

    def __init__(self, num_rows: int, size: int) -> None:
        # Memory is used when it is written to, so rows that are never needed cost nothing.
        memory = mmap.mmap(-1, num_rows * size * 4)
        self.rows: NDArray[np.float32] = np.frombuffer(memory, np.float32).reshape(num_rows, size)
        self._free = deque(range(num_rows))

    def take(self) -> int | None:
        """Return the number of a free row; None if all are taken."""
        return self._free.popleft() if self._free else None

    def give_back(self, row: int) -> None:
        """Free a row that no process uses any more."""
        self._free.append(row)

    def check(self, weights: Vector) -> None:
        """Raise ModelError for a model of another size."""
        size = self.rows.shape[1]
        if weights.shape != (size,):
            raise ModelError(
                f"the model has {size} values, but the vector has shape {weights.shape}"
            )
