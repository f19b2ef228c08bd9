"""Setting examples aside for validation or testing, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError

Ints = NDArray[np.int64]


def holdout(
    labels: NDArray[Any],
    fraction: float,
    seed_key: Sequence[int],
    *,
    num_classes: int,
    stratified: bool = True,
) -> tuple[Ints, Ints]:
    """Return (kept, held out) as sorted indices; the same key gives the same split.

    Per class `round(fraction * n_c)`, halves up, at least 1 where `n_c >= 2`, never all of it
    (spec section 3). A regression (`num_classes` 0), or `stratified=False`, treats all examples
    as one class. A fraction of 0 holds out nothing.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"a held-out fraction of {fraction} must be at least 0 and below 1")
    rng = np.random.default_rng(list(seed_key))
    strata = np.asarray(labels) if num_classes and stratified else np.zeros(len(labels), np.int64)
    out = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        out[rng.permutation(members)[: _num_out(len(members), fraction)]] = True
    return np.flatnonzero(~out), np.flatnonzero(out)


def _num_out(num_members: int, fraction: float) -> int:
    if fraction == 0 or num_members < 2:
        return 0
    # In decimal, because 0.145 * 100 is 14.499999999999998 in binary and would round down.
    exact = Decimal(str(float(fraction))) * num_members
    rounded = int(exact.to_integral_value(ROUND_HALF_UP))
    return min(max(rounded, 1), num_members - 1)
