"""Models of any size pass through the transport; neither end holds more than a little of one."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metis.core.types import LearnerId
from metis.service.connection import Delivery, ModelRef, Receipt, SnapshotOf
from metis.service.grpc.client import GrpcConnection
from metis.service.grpc.server import Opening, serve
from metis.storage.packets import Piece

CHUNK = 1 << 20


class Pipe:
    """Stands for a service: counts what is delivered, and gives as much when it is asked."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self.delivered = 0
        self.terms = SimpleNamespace(num_classes=0)

    def deliver(self, learner: LearnerId, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        self.delivered = sum(len(piece) for piece in packet)
        return Receipt(True)

    def fetch(self, learner: LearnerId, item: ModelRef) -> Iterator[Piece]:
        return zeros(self._num_bytes)

    def audit(self, what: str, who: str, reason: str) -> None:
        raise AssertionError(reason)


def zeros(num_bytes: int) -> Iterator[Piece]:
    block = memoryview(bytes(CHUNK))
    for start in range(0, num_bytes, CHUNK):
        yield block[: min(CHUNK, num_bytes - start)]


class Peak:
    """The most memory this process had resident while it was watched."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self.most = resident_bytes()

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, resident_bytes())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def carried(num_bytes: int) -> int:
    """Send so many bytes up and down; return how much more memory that took at most."""
    service: Any = Pipe(num_bytes)
    server, port = serve(service, Opening("127.0.0.1:0", 1))
    line = GrpcConnection(f"127.0.0.1:{port}", "learner-01")
    try:
        with Peak() as peak:
            receipt = line.deliver(Delivery(1, 0, 1, 1, 0.0, None), zeros(num_bytes))
            fetched = sum(len(piece) for piece in line.fetch(SnapshotOf(1)))
    finally:
        line.close()
        server.stop(grace=None).wait()
    assert receipt.taken
    assert service.delivered == fetched == num_bytes
    return peak.most - peak.before


def test_a_model_of_a_quarter_gigabyte_takes_little_memory_on_its_way() -> None:
    assert carried(256 << 20) < 100 << 20


@pytest.mark.soak
def test_a_model_of_three_gigabytes_takes_little_memory_on_its_way() -> None:
    assert carried(3 << 30) < 100 << 20
