"""A call of which nothing is heard is given up, one that goes on is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from metis.core.errors import LineError
from metis.core.types import LearnerId
from metis.service.connection import Delivery, ModelRef, Receipt, SnapshotOf
from metis.service.grpc import client as dial
from metis.service.grpc.client import GrpcConnection
from metis.service.grpc.idle import SilenceError, heard_from
from metis.service.grpc.server import Opening, serve
from tests.service.toy import eventually


class Mute:
    """A service that takes calls and never answers."""

    def __init__(self) -> None:
        self.terms = type("Terms", (), {"num_classes": 0})

    def fetch(self, learner: LearnerId, item: ModelRef) -> Iterator[bytes]:
        yield b"x"
        time.sleep(4.0)

    def deliver(self, learner: LearnerId, delivery: Delivery, packet: object) -> Receipt:
        time.sleep(4.0)
        return Receipt(True)

    def audit(self, what: str, who: str, reason: str) -> None:
        pass


def test_a_line_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(dial, "_STORING_SECONDS", 0.5)
    service: object = Mute()
    server, port = serve(service, Opening("127.0.0.1:0", 1))  # type: ignore[arg-type]
    line = GrpcConnection(f"127.0.0.1:{port}", "a")
    try:
        began = time.monotonic()
        with pytest.raises(LineError, match=r"nothing was heard for 0.5 s"):
            list(line.fetch(SnapshotOf(1)))
        with pytest.raises(LineError, match=r"nothing was heard for 0.5 s"):
            line.deliver(Delivery(1, 0, 1, 1, 0.0, None), iter([b"y"]))
        took = time.monotonic() - began
    finally:
        line.close()
        server.stop(grace=None).wait()

    assert took < 4.0


class Lost:
    """A stream as gRPC may leave it: nothing comes, and to cancel it changes nothing."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"first"
        threading.Event().wait()

    def cancel(self) -> None:
        pass


def test_a_stream_that_cannot_even_be_cancelled_is_left_behind() -> None:
    heard = heard_from(Lost(), 0.3)

    assert next(heard) == b"first"
    with pytest.raises(SilenceError):
        next(heard)


def test_a_stream_that_goes_on_slowly_is_heard_to_its_end() -> None:
    def slowly() -> Iterator[int]:
        for number in range(8):
            time.sleep(0.1)
            yield number

    class Stream:
        def __iter__(self) -> Iterator[int]:
            return slowly()

        def cancel(self) -> None:
            pass

    assert list(heard_from(Stream(), 0.5)) == list(range(8))


def test_who_stops_listening_leaves_no_thread_behind() -> None:
    class Endless:
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"x"

        def cancel(self) -> None:
            pass

    before = threading.active_count()
    heard = heard_from(Endless(), 1.0)
    for _ in range(3):
        next(heard)
    heard.close()  # type: ignore[attr-defined]

    assert eventually(lambda: threading.active_count() <= before)
