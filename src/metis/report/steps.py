"""Scores as steps: a model keeps its score until the next one is there. Never a slope between two.

A step function is its moments, ascending, and the value from each of them on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def values_at(at: Floats, values: Floats, moments: Floats) -> Floats:
    """Return the value in force at each moment; before the first there is none, so NaN."""
    places = np.searchsorted(at, moments, side="right") - 1
    return np.where(places >= 0, values[np.maximum(places, 0)], np.nan)


def together(lines: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return every moment at which one of several changes, and the values of each by then.

    Only where all of them are known: from the last beginning to the first end.
    """
    first = max(at[0] for at, _ in lines)
    last = max(first, min(at[-1] for at, _ in lines))
    moments = np.unique(np.concatenate([[first, last], *(at for at, _ in lines)]))
    moments = moments[(moments >= first) & (moments <= last)]
    return moments, np.stack([values_at(at, values, moments) for at, values in lines])


def running_mean(at: Floats, values: Floats, moments: Floats, windows: Floats) -> Floats:
    """Return the mean over the window that ends at each moment, each value as long as it was there.

    A window does not reach back beyond the first value; one of no length has the value in force.
    """
    windows = np.minimum(windows, moments - at[0])
    areas = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(at))])

    def area(until: Floats) -> Floats:
        """Return what lies below the steps from their beginning on."""
        places = np.maximum(np.searchsorted(at, until, side="right") - 1, 0)
        return np.asarray(areas[places] + values[places] * (until - at[places]))

    now = values_at(at, values, moments)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (area(moments) - area(moments - windows)) / windows
    return np.where(windows > 0, mean, now)
