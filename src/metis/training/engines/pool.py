"""Forked processes and the pipes to them."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, cast

from metis.core.errors import RunError


def can_fork() -> bool:
    """Whether this system can fork: the child has all memory of its parent, at no cost."""
    return sys.platform == "linux"


class Pool:
    """Some processes, each at the other end of a pipe. They end when this one does."""

    def __init__(self, size: int, serve: Callable[[int, Connection], NoReturn]) -> None:
        """`serve` is the life of a process: it is given the process's number and its pipe."""
        self.size = size
        self.pids: list[int] = []
        self.pipes: list[Connection] = []
        self._serve = serve

    def start(self) -> None:
        """Start the processes, unless they run already."""
        for number in range(self.size if not self.pipes else 0):
            mine, theirs = Pipe()
            pid = _fork()
            if pid == 0:
                for pipe in (*self.pipes, mine):
                    pipe.close()  # else this process would not see its parent's end
                self._serve(number, theirs)
            theirs.close()
            self.pipes.append(mine)
            self.pids.append(pid)

    def __len__(self) -> int:
        """The number of processes that have been started."""
        return len(self.pipes)

    def send(self, worker: int, *message: Any) -> None:
        """Send a message to a process. Raises RunError if the process is gone."""
        try:
            self.pipes[worker].send(message)
        except OSError:
            self._lost(worker)

    def receive(self, worker: int) -> tuple[str, list[Any]]:
        """Return the next message of a process. Raises RunError if the process is gone."""
        try:
            kind, *values = self.pipes[worker].recv()
        except (EOFError, OSError):
            self._lost(worker)
        return kind, values

    def ready(self) -> list[int]:
        """Wait until a process has sent a message; return all that have."""
        return [self.pipes.index(cast(Connection, pipe)) for pipe in wait(self.pipes)]

    def close(self) -> None:
        """Kill the processes."""
        for pipe in self.pipes:
            pipe.close()
        self.pipes.clear()
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        self.pids.clear()

    def _lost(self, worker: int) -> NoReturn:
        raise RunError(
            f"process {self.pids[worker]} of this run is gone; the system may have ended it for "
            "lack of memory: use fewer threads (each is a process), or engine = loop"
        )


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of threads at this point. The child touches none of theirs: it reads
        # from its pipe, computes, and ends without cleaning up.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
