"""Calls of which nothing is heard any more, and their end.

A stream can be lost by gRPC when its connection goes at the wrong moment: the server has ended the
call, the new connection is alive and answers pings, and the caller waits for ever. (Two of five
storms of two minutes ended so.) No fixed deadline fits a model of any size over any line; that
nothing has come for a long time does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LOOK_SECONDS = 0.5


class Silence:
    """Cancels calls that have been silent for too long. Its thread lives while there are calls."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._until: dict[Any, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def limited(self, call: Any, seconds: float) -> Iterator[Callable[[], None]]:
        """Watch a call meanwhile. Gives what is to be called whenever it was heard of."""

        def heard() -> None:
            with self._turn:
                if call in self._until:
                    self._until[call] = time.monotonic() + seconds

        with self._turn:
            self._until[call] = time.monotonic() + seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, daemon=True, name="silence")
                self._thread.start()
        try:
            yield heard
        finally:
            with self._turn:
                self._until.pop(call, None)

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._turn:
                if not self._until:
                    self._thread = None
                    return
                now = time.monotonic()
                silent = [call for call, until in self._until.items() if until < now]
            for call in silent:
                call.cancel()
