"""Who was turned away, written down for good, but not so often that it fills the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

#: Told what was refused, to whom, and why.
Audit: TypeAlias = Callable[[str, str, str], None]

QUIET_SECONDS = 10.0  # between two notes of one kind about one of them
_MANY = 10_000  # that are remembered: names and addresses can be had by the million


@dataclass(slots=True)
class Complaint:
    """When it was last written down, and how often it has come since."""

    told: float = float("-inf")
    num_since: int = 0


class Complaints:
    """Any thread may add to them."""

    def __init__(self, audit: Audit, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._clock = clock
        self._turn = threading.Lock()
        self._known: dict[tuple[str, str], Complaint] = {}

    def add(self, what: str, who: str, reason: str, kind: str | None = None) -> None:
        """Write it down, or count it, if one of its kind was written down just now.

        `kind` must not be the caller's to choose; unless given, it is what was refused.
        """
        now = self._clock()
        with self._turn:
            if len(self._known) > _MANY:
                self._known.clear()
            complaint = self._known.setdefault((who, kind or what), Complaint())
            if now - complaint.told < QUIET_SECONDS:
                complaint.num_since += 1
                return
            number, complaint.num_since = complaint.num_since, 0
            complaint.told = now
        more = f" (and {number} more since the last note)" if number else ""
        self._audit(what, who, reason + more)
