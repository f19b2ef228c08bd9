"""Calls of which nothing is heard any more, and their end.

A stream can be lost by gRPC when its connection goes at the wrong moment: the server has ended the
call, and the caller waits for ever, even after it has cancelled. (Storms of two minutes showed it.)
No fixed deadline fits a model of any size over any line; that nothing has come for a long time
does. So nobody here waits for gRPC without an end: a thread may have to be left behind.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from metis.core.errors import LineError

_AHEAD = 4  # messages that may lie ready
_LOOK_SECONDS = 1.0


class SilenceError(LineError):
    """Nothing is heard any more; the connection itself may be no good."""


def heard_from(stream: Any, seconds: float) -> Iterator[Any]:
    """Give the messages of a stream. SilenceError if none comes for so long."""
    came: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    room = threading.Semaphore(_AHEAD)
    over = threading.Event()

    def listen() -> None:
        try:
            for message in stream:
                came.put(("message", message))
                room.acquire()
                if over.is_set():
                    return
            came.put(("end", None))
        except grpc.RpcError as error:
            came.put(("error", error))

    threading.Thread(target=listen, daemon=True, name="listening").start()
    try:
        while True:
            try:
                kind, what = came.get(timeout=seconds)
            except queue.Empty:
                raise SilenceError(f"nothing was heard for {seconds:g} s") from None
            if kind == "error":
                raise what
            if kind == "end":
                return
            yield what
            room.release()
    finally:
        over.set()
        room.release()
        stream.cancel()


class Pending:
    """An answer that is waited for while there are signs that it will come."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds

    def heard(self) -> None:
        self._until = time.monotonic() + self._seconds

    def result(self, call: Any) -> Any:
        """Return what a call comes to. SilenceError if nothing is heard of it for too long."""
        while True:
            try:
                return call.result(timeout=min(_LOOK_SECONDS, self._seconds))
            except grpc.FutureTimeoutError:
                if time.monotonic() > self._until:
                    call.cancel()
                    raise SilenceError(f"nothing was heard for {self._seconds:g} s") from None
            except grpc.FutureCancelledError:
                raise LineError("the call was given up") from None
