"""Says no, in words, to inputs a network was not made for."""

from __future__ import annotations

from collections.abc import Sequence

from metis.core.errors import ModelError


def require_shape(model: str, wanted: Sequence[int | None], got: Sequence[int]) -> None:
    """Raise ModelError with both shapes unless they agree; None stands for any size."""
    fits = len(wanted) == len(got) and all(
        w is None or w == g for w, g in zip(wanted, got, strict=True)
    )
    if not fits:
        shape = "x".join("any" if size is None else str(size) for size in wanted)
        has = "x".join(str(size) for size in got)
        raise ModelError(f"{model} takes inputs of shape {shape}, but the prepared data has {has}")
