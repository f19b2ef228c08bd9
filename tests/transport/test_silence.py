"""A call of which nothing is heard is given up, one that goes on is not."""

from __future__ import annotations

import time

import pytest

from metis.core.errors import LineError
from metis.core.types import LearnerId
from metis.live.line import Delivery, Item, Receipt, SnapshotOf
from metis.transport import dial
from metis.transport.dial import RpcLine
from metis.transport.rpc import Opening, serve
from metis.transport.silence import Silence
from tests.live.toy import eventually


class Call:
    """Stands for a call: it can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_a_silent_call_is_cancelled_and_one_that_is_heard_of_is_not() -> None:
    silence, silent, lively = Silence(), Call(), Call()
    with silence.limited(silent, 0.3), silence.limited(lively, 0.8) as heard:
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            heard()
            time.sleep(0.05)

    assert silent.cancelled
    assert not lively.cancelled


def test_nothing_is_left_of_a_call_that_has_ended() -> None:
    silence, call = Silence(), Call()
    with silence.limited(call, 0.1) as heard:
        pass
    heard()  # late

    assert eventually(lambda: silence._thread is None)
    assert not call.cancelled


class Mute:
    """A service that takes calls and never answers."""

    def __init__(self) -> None:
        self.terms = type("Terms", (), {"num_classes": 0})

    def fetch(self, learner: LearnerId, item: Item) -> object:
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
    line = RpcLine(f"127.0.0.1:{port}", "a")
    try:
        began = time.monotonic()
        with pytest.raises(LineError):
            list(line.fetch(SnapshotOf(1)))
        with pytest.raises(LineError):
            line.deliver(Delivery(1, 0, 1, 1, 0.0, None), iter([b"y"]))
        took = time.monotonic() - began
    finally:
        line.close()
        server.stop(grace=None).wait()

    assert took < 4.0
