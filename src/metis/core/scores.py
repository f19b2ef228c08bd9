"""What a model is worth: pure functions of counts pooled over the judges.

Every score is at most 1, and higher is better. A ratio without a denominator is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import ConfigError, DataError, unknown
from metis.core.types import ClassCounts, Counts, ErrorSums


def micro_f1(counts: ClassCounts) -> float:
    """F1 over all classes taken together (Metis paper, equation 3): 2TP / (2TP + FP + FN).

    TP is the trace, FP the column sums and FN the row sums less the diagonal. With one label per
    example FP = FN, and this equals accuracy.
    """
    hits, actual, predicted = _margins(counts)
    true_positive = int(hits.sum())
    false_positive = int((predicted - hits).sum())
    false_negative = int((actual - hits).sum())
    return _ratio(2 * true_positive, 2 * true_positive + false_positive + false_negative)


def macro_f1(counts: ClassCounts) -> float:
    """Mean of the classes' F1. Classes neither seen nor predicted are left out, as in sklearn."""
    hits, actual, predicted = _margins(counts)
    present = (actual + predicted) > 0
    if not present.any():
        return 0.0
    return float((2 * hits[present] / (actual + predicted)[present]).mean())


def accuracy(counts: ClassCounts) -> float:
    """Share of examples classified rightly."""
    return _ratio(int(np.trace(counts.matrix)), int(counts.matrix.sum()))


def g_mean(counts: ClassCounts) -> float:
    """Geometric mean of the recalls of the classes that have examples; 0 if one is never found."""
    hits, actual, _ = _margins(counts)
    recalls = [_ratio(int(h), int(n)) for h, n in zip(hits, actual, strict=True) if n]
    if not recalls or min(recalls) == 0.0:
        return 0.0
    return math.exp(math.fsum(math.log(recall) for recall in recalls) / len(recalls))


def mcc(counts: ClassCounts) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004): -1 to 1, 0 for a guess."""
    hits, actual, predicted = (margin.tolist() for margin in _margins(counts))
    # Python integers: products of counts pooled over many sites can pass 2^63.
    num_examples, num_hits = sum(actual), sum(hits)
    agreement = num_hits * num_examples - sum(t * p for t, p in zip(actual, predicted, strict=True))
    actual_spread = num_examples**2 - sum(t * t for t in actual)
    predicted_spread = num_examples**2 - sum(p * p for p in predicted)
    return _ratio(agreement, math.sqrt(actual_spread * predicted_spread))


def inverse_mse(sums: ErrorSums) -> float:
    """1 / (1 + mean squared error)."""
    return _ratio(1.0, 1.0 + sums.squared_error / sums.num_examples) if sums.num_examples else 0.0


def inverse_mae(sums: ErrorSums) -> float:
    """1 / (1 + mean absolute error)."""
    return _ratio(1.0, 1.0 + sums.absolute_error / sums.num_examples) if sums.num_examples else 0.0


def r_squared(sums: ErrorSums) -> float:
    """1 - squared error / squared deviation of the targets from their mean; may be negative.

    Where the targets do not vary it is 1 for a perfect model and 0 for any other, as in sklearn.
    """
    if not sums.num_examples:
        return 0.0
    spread = sums.target_squared - sums.target**2 / sums.num_examples
    if spread <= 0.0:
        return 1.0 if sums.squared_error == 0.0 else 0.0
    return 1.0 - sums.squared_error / spread


CLASS_SCORES: Mapping[str, Callable[[ClassCounts], float]] = {
    "micro_f1": micro_f1,
    "macro_f1": macro_f1,
    "accuracy": accuracy,
    "g_mean": g_mean,
    "mcc": mcc,
}
ERROR_SCORES: Mapping[str, Callable[[ErrorSums], float]] = {
    "inverse_mse": inverse_mse,
    "inverse_mae": inverse_mae,
    "r2": r_squared,
}
SCORES: Mapping[str, Callable[..., float]] = {**CLASS_SCORES, **ERROR_SCORES}


def score(metric: str, counts: Counts) -> float:
    """Return a score fit to be a weight: finite and at least 0. No examples score 0."""
    if metric not in SCORES:
        raise ConfigError(unknown("score", metric, SCORES))
    if isinstance(counts, ClassCounts):
        if metric not in CLASS_SCORES:
            raise ConfigError(
                f"score {metric!r} is for regression, but the judges classify: "
                f"use one of {', '.join(CLASS_SCORES)}"
            )
        value = CLASS_SCORES[metric](counts)
    else:
        if metric not in ERROR_SCORES:
            raise ConfigError(
                f"score {metric!r} is for classification, but the judges measure errors: "
                f"use one of {', '.join(ERROR_SCORES)}"
            )
        value = ERROR_SCORES[metric](counts)
    return max(value, 0.0) if math.isfinite(value) else 0.0


def pool(counts: Sequence[Counts]) -> Counts:
    """Return the sum of at least one judge's counts. The order of the judges changes no bit."""
    matrices = [c.matrix for c in counts if isinstance(c, ClassCounts)]
    sums = [c for c in counts if isinstance(c, ErrorSums)]
    if matrices and sums:
        raise DataError("some judges classify and others measure errors: they cannot be pooled")
    if matrices:
        shapes = sorted({matrix.shape for matrix in matrices})
        if len(shapes) > 1:
            raise DataError(f"confusion matrices of shapes {shapes} cannot be pooled")
        return ClassCounts(np.sum(matrices, axis=0, dtype=np.int64))
    if not sums:
        raise DataError("no counts to pool: at least one judge must have answered")
    return ErrorSums(
        sum(s.num_examples for s in sums),
        math.fsum(s.squared_error for s in sums),
        math.fsum(s.absolute_error for s in sums),
        math.fsum(s.target for s in sums),
        math.fsum(s.target_squared for s in sums),
    )


def _margins(
    counts: ClassCounts,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return per class how often it was found, how often it occurred, how often predicted."""
    matrix = counts.matrix
    return matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
