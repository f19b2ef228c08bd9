"""A whole federation on one machine, for trying out: real processes, real gRPC, plain text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from metis.config import Config, dump
from metis.core.errors import RunError
from metis.journal.file import Listener, Record
from metis.journal.paths import JOURNAL

_LOOK_SECONDS = 0.1
_START_SECONDS = 60.0
_END_SECONDS = 40.0  # for what is under way, when it is stopped
_LISTENING = re.compile(r"listening on (\S+:\d+)")


@dataclass(frozen=True, slots=True)
class Started:
    """A process and where it writes what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    began: int  # where in the log this process begins

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def run_local(
    config: Config, directory: Path, listener: Listener, stop: threading.Event
) -> str | None:
    """Start a controller and its learners, and tell of each record until it is over.

    Returns why it ended; None if it was stopped, and would go on if started again in the same
    directory. Raises RunError if a process dies.
    """
    path = directory / "fed.toml"
    path.write_text(dump(config), encoding="utf-8")
    state = directory / "state"
    family: list[Started] = []
    try:
        arguments = ["--config", str(path), "--listen", "127.0.0.1:0", "--state", str(state)]
        family.append(_start(directory, "controller", "controller", *arguments))
        address = _address(family[0], stop)
        if address is None:
            return None
        for name in config.learner_names():
            arguments = ["--controller", address, "--name", name, "--config", str(path)]
            own = directory / name
            family.append(_start(directory, name, "learner", *arguments, "--state", str(own)))
        return _follow(state / JOURNAL, family, listener, stop)
    finally:
        _end(family)


def _start(directory: Path, name: str, verb: str, *arguments: str) -> Started:
    log = directory / f"{name}.log"
    with open(log, "ab") as file:
        began = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "metis", verb, "--plain", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for us alone: we end them in order
        )
    return Started(name, process, log, began)


def _address(controller: Started, stop: threading.Event) -> str | None:
    """Return where a controller listens, as soon as it does; None if it is to stop first."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and not stop.wait(_LOOK_SECONDS):
        with open(controller.log, "rb") as file:
            file.seek(controller.began)
            found = _LISTENING.findall(file.read().decode(errors="replace"))
        if controller.process.poll() is not None:
            raise RunError(f"the controller ended: {controller.last_words()}")
        if found:
            return str(found[-1])
    if stop.is_set():
        return None
    raise RunError(f"the controller did not start; see {controller.log}")


def _follow(
    journal: Path, family: list[Started], listener: Listener, stop: threading.Event
) -> str | None:
    ended: str | None = None
    for record in _tail(journal, family[0]):
        if record is not None:
            listener(record)
            if record["kind"] == "end":
                ended = str(record["reason"])
        if stop.is_set():
            return None
        for one in family[1:]:
            if one.process.poll() not in (None, 0):
                raise RunError(f"{one.name} ended: {one.last_words()} (see {one.log})")
    if family[0].process.wait() != 0:
        raise RunError(f"the controller ended: {family[0].last_words()} (see {family[0].log})")
    return ended


def _tail(path: Path, controller: Started) -> Iterator[Record | None]:
    """Give records as they are written, None when there is none for a moment."""
    with open(path, "rb") as file:
        rest = b""
        while True:
            alive = controller.process.poll() is None  # before reading: nothing comes after
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                yield json.loads(line)
            if not lines:
                if not alive:
                    return
                yield None
                time.sleep(_LOOK_SECONDS)


def _end(family: list[Started]) -> None:
    """End learners first, so that the controller has taken what they delivered."""
    for one in [*family[1:], *family[:1]]:
        if one.process.poll() is None:
            one.process.terminate()
    until = time.monotonic() + _END_SECONDS
    for one in family:
        try:
            one.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()
