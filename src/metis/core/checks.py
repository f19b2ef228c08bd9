"""What a learner or a judge may send: the controller takes in nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from metis.core.kernels import all_finite
from metis.core.types import ClassCounts, Counts, ErrorSums, Model, Sparse, Task, Update

#: The most steps, examples or errors that anybody can have counted: sums of them stay exact.
MOST = 1 << 40


def fault_of(update: Update, task: Task) -> str | None:
    """Return what makes an answer to a task unfit to be folded, if anything."""
    expected = task.start.weights.shape
    if update.weights.shape != expected:
        return f"its model has shape {update.weights.shape}, the federation's has {expected}"
    if not is_finite(update.weights):
        return "its model holds values that are not finite"
    if update.base_version != task.start.version:
        return f"it started from version {update.base_version}, not {task.start.version}"
    if not (1 <= update.num_steps <= MOST and 1 <= update.num_examples <= MOST):
        return f"it reports {update.num_steps} steps on {update.num_examples} examples"
    return None


def is_finite(model: Model) -> bool:
    if isinstance(model, Sparse):
        with np.errstate(over="ignore"):
            changed = model.base[model.at] + model.by
        return all_finite(changed) and all_finite(model.values)
    return all_finite(model)


def _are_sums(counts: ErrorSums) -> bool:
    """Whether a judge's errors and targets can add up to these sums."""
    squares = (counts.squared_error, counts.absolute_error, counts.target_squared)
    return (
        0 <= counts.num_examples <= MOST
        and all(0.0 <= value < math.inf for value in squares)
        and math.isfinite(counts.target)
    )


def fits(counts: Counts, num_classes: int | None, others: Iterable[Counts]) -> bool:
    """Whether a judge's counts are what this federation counts, and can be pooled with others."""
    if num_classes is not None and isinstance(counts, ClassCounts) != (num_classes > 0):
        return False
    if not isinstance(counts, ClassCounts):
        return _are_sums(counts) and all(type(other) is type(counts) for other in others)
    shape = counts.matrix.shape
    square = len(shape) == 2 and shape[0] == shape[1]
    expected = shape[:1] if num_classes is None else (num_classes,)
    return (
        square
        and shape[:1] == expected
        and bool(((counts.matrix >= 0) & (counts.matrix <= MOST)).all())
        and all(isinstance(other, ClassCounts) and other.matrix.shape == shape for other in others)
    )
