"""What things cost in virtual time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """The speed of one device class and its link to the controller."""

    seconds_per_step: float
    seconds_per_evaluated_example: float = 0.0
    request_overhead_seconds: float = 0.0
    latency_seconds: float = 0.0
    bandwidth_bytes_per_second: float | None = None  # each way; None: no limit

    def transfer_seconds(self, num_bytes: int) -> float:
        """Return how long so many bytes take, one way."""
        if self.bandwidth_bytes_per_second is None:
            return self.latency_seconds
        return self.latency_seconds + num_bytes / self.bandwidth_bytes_per_second
