"""How a class declares the settings it takes: each key once, beside the class it configures.

`metis.config` nests these classes, reads them from a file and writes them back with their docs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from metis.core.errors import ConfigError, unknown


def key(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
    shared: bool = False,
) -> Any:
    """Declare a key: its default, one line for people, and what values it may take.

    A default that is None is filled in when a run is set up. `shared`: a live federation's sites
    and its controller must agree on the value.
    """
    limits = {"low": low, "high": high, "above": above, "below": below}
    return field(
        default=default, metadata={"doc": doc, **limits, "choices": choices, "shared": shared}
    )


def mapping(doc: str, *, shared: bool = False) -> Any:
    """Declare a key that maps names to values; it is empty by default."""
    return field(default_factory=dict, metadata={"doc": doc, "shared": shared})


def check_limits(settings: Any) -> None:
    """Raise ConfigError for a value that its key does not allow. None is left to be filled in."""
    for one in dataclasses.fields(settings):
        check_value(getattr(settings, one.name), one.metadata, one.name)


def check_value(value: Any, limits: Mapping[str, Any], path: str) -> None:
    choices = limits.get("choices")
    if choices and value is not None and value not in choices:
        raise ConfigError(f"{path}: {unknown('value', value, choices)}")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    low, high = limits.get("low"), limits.get("high")
    above, below = limits.get("above"), limits.get("below")
    finite = isinstance(value, int) or math.isfinite(value)
    if (
        not finite
        or (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
        or (below is not None and value >= below)
    ):
        bounds = [
            "" if finite else "a finite number",
            f"at least {low:g}" if low is not None else "",
            f"more than {above:g}" if above is not None else "",
            f"at most {high:g}" if high is not None else "",
            f"less than {below:g}" if below is not None else "",
        ]
        allowed = " and ".join(b for b in bounds if b)
        raise ConfigError(f"{path} = {value}: must be {allowed}")
