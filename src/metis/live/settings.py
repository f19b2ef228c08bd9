"""The settings of a controller that is a service."""

from __future__ import annotations

from dataclasses import dataclass

from metis.core.keys import key


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one caller may do, so that no caller can keep the others out."""

    calls_per_second: float = key(
        200.0, "that one learner may make of a controller, for a while twice as many", above=0
    )
    calls_at_once: int = key(8, "that one learner may have under way", low=4, high=1000)
