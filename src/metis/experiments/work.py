"""Cells are made: those that are finished are left alone, interrupted ones taken up again.

On a GPU, and wherever several are made at a time, each has a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from metis.config import load
from metis.core.errors import Interrupted, MetisError, RunError
from metis.experiments.cells import Cell, Setting
from metis.experiments.mps import computing_at_once
from metis.experiments.outcome import (
    FILE,
    Outcome,
    precision_of,
    read_outcome,
    write_outcome,
)
from metis.journal.file import Listener, Record
from metis.journal.follow import Follower
from metis.journal.paths import CONFIG, JOURNAL

LOG = "log.txt"  # what a process of its own said
INTERRUPTED = 130  # exit status
_LOOK_SECONDS = 0.5

#: Is told a line of text.
Tell = Callable[[str], None]
#: Shows a cell while it is made: a context that gives listeners.
Watch = Callable[[Cell], AbstractContextManager[tuple[Listener, ...]]]


def countdown(seconds: float | None) -> Callable[[], float | None]:
    """Return what tells how many of these real seconds are left; None: there is no limit."""
    if seconds is None:
        return lambda: None
    until = time.monotonic() + seconds
    return lambda: max(0.0, until - time.monotonic())


def run_cell(cell: Cell, directory: Path, listeners: tuple[Listener, ...] = ()) -> Outcome:
    """Make one cell, from where it stands to its `cell.json`."""
    from metis.simulation.run import run_or_resume

    config = cell.config
    if (directory / CONFIG).is_file():
        # How it is computed was settled when it began; with more jobs it would be settled anew.
        begun = load(directory / CONFIG)
        config = replace(config, engine=begun.engine, threads=begun.threads)
    run_or_resume(config, directory, listeners)
    return write_outcome(cell, directory)


def finished(cell: Cell, out: Path) -> bool:
    """Whether a cell is there. Raises RunError if what is there was asked for differently."""
    path = cell.directory(out) / FILE
    if not path.is_file():
        return False
    there = read_outcome(path)
    if (there.scale, there.horizon) != (cell.scale, cell.horizon.in_words()):
        raise RunError(
            f"{path} was made at scale {there.scale} for {there.horizon}, but scale {cell.scale} "
            f"and {cell.horizon.in_words()} are asked for: choose another --out"
        )
    if not there.is_current:
        raise RunError(
            f"{path} was made at {there.commit}, whose arithmetic is not today's: remove it, so "
            "that the cell is made again, or choose another --out"
        )
    if there.precision != precision_of(cell.config):
        raise RunError(
            f"{path} was made with precision {there.precision}, but {precision_of(cell.config)} is "
            "asked for: choose another --out"
        )
    return True


def make(cells: Sequence[Cell], setting: Setting, tell: Tell, watch: Watch) -> None:
    """Make all cells that are not there yet. Raises RunError at the end if some could not be.

    Stops, leaving cells that can be taken up again, when the user or `stop_after` says so.
    """
    waiting = [cell for cell in cells if not finished(cell, setting.out)]
    if len(waiting) < len(cells):
        tell(f"{len(cells) - len(waiting)} of {len(cells)} cells are there already")
    for cell in waiting if setting.restart else ():
        shutil.rmtree(cell.directory(setting.out), ignore_errors=True)
    if not waiting:
        return
    progress = _Progress(len(waiting), tell)
    if setting.side_by_side:
        _side_by_side(waiting, setting, progress, watch)
    else:
        _one_by_one(waiting, setting, progress, watch)
    progress.close()


@dataclass(slots=True)
class _Progress:
    """Counts what is done, and remembers what went wrong."""

    total: int
    tell: Tell
    done: int = 0
    failed: list[str] = field(default_factory=list)

    def ended(self, outcome: Outcome, name: str) -> None:
        self.done += 1
        score = "-" if outcome.final_score is None else f"{outcome.final_score:.4f}"
        self.tell(
            f"{self.done}/{self.total} {name}: {score} after {outcome.rounds:,} versions, "
            f"{outcome.requests:,} requests, {outcome.samples / 1e6:,.1f}M samples, "
            f"{outcome.wall_seconds:,.0f} s ({outcome.samples_per_second:,.0f} samples/s)"
        )

    def went_wrong(self, name: str, reason: str) -> None:
        self.failed.append(f"{name}: {reason}")
        self.tell(f"failed: {name}: {reason}")

    def close(self) -> None:
        if self.failed:
            raise RunError(f"{len(self.failed)} cells failed; the first: {self.failed[0]}")
        if self.done < self.total:
            raise Interrupted(
                f"{self.total - self.done} of {self.total} cells are left; "
                "the same command goes on with them"
            )


@contextmanager
def _stopping(setting: Setting) -> Iterator[threading.Event]:
    """Give a flag that is set by Ctrl-C, SIGTERM, or when the time is over."""
    from metis.simulation.signals import stop_requests

    with stop_requests() as stop:
        timer = None
        if setting.stop_after is not None:
            # By a signal, so that a run under way hears of it too.
            timer = threading.Timer(setting.stop_after, os.kill, (os.getpid(), signal.SIGINT))
            timer.daemon = True
            timer.start()
        try:
            yield stop
        finally:
            if timer is not None:
                timer.cancel()


def _one_by_one(cells: Sequence[Cell], setting: Setting, progress: _Progress, watch: Watch) -> None:
    with _stopping(setting) as stop:

        def pass_on(record: Record) -> None:
            if stop.is_set():  # it came before the run was there to hear it
                stop.clear()
                signal.raise_signal(signal.SIGINT)

        for cell in cells:
            if stop.is_set():
                return
            try:
                with watch(cell) as listeners:
                    directory = cell.directory(setting.out)
                    outcome = run_cell(cell, directory, (pass_on, *listeners))
            except Interrupted:
                return
            except MetisError as error:
                progress.went_wrong(cell.name, str(error))
            else:
                progress.ended(outcome, cell.name)


def _side_by_side(
    cells: Sequence[Cell], setting: Setting, progress: _Progress, watch: Watch
) -> None:
    going: dict[str, subprocess.Popen[bytes]] = {}
    at_once = computing_at_once(progress.tell) if setting.mps else nullcontext()
    with (
        at_once as environment,
        _stopping(setting) as stop,
        ThreadPoolExecutor(setting.jobs) as pool,
    ):
        futures = {
            pool.submit(_in_own_process, cell, setting.out, environment, going, stop, watch): cell
            for cell in cells
        }
        told = set[str]()
        waiting: set[Future[int]] = set(futures)
        while waiting:
            over, waiting = wait(waiting, timeout=0.2)
            for future in over:
                cell, status = futures[future], future.result()
                if status != 0 and cell.name in told:
                    continue  # however it ended, even before it could listen: it is left
                _note(cell, status, setting.out, progress)
            for name, process in list(going.items()) if stop.is_set() else ():
                if name not in told:
                    told.add(name)
                    process.send_signal(signal.SIGINT)  # it leaves a checkpoint


def _in_own_process(
    cell: Cell,
    out: Path,
    environment: Mapping[str, str] | None,
    going: dict[str, subprocess.Popen[bytes]],
    stop: threading.Event,
    watch: Watch,
) -> int:
    """Make a cell in a process of its own; return its exit status.

    Whoever watches is told what that process writes to the journal.
    """
    if stop.is_set():
        return INTERRUPTED
    directory = cell.directory(out)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "metis.experiments", str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,  # Ctrl-C reaches us alone, and we tell it once
        )
        going[cell.name] = process
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:  # its end is told by its status
                process.stdin.write(json.dumps(cell.as_json()).encode())
            with watch(cell) as listeners:
                followers = [Follower(directory / JOURNAL, listener) for listener in listeners]
                running = True
                while running:
                    running = _is_running(process)
                    for follower in followers:
                        follower.look()
        finally:
            del going[cell.name]
    return process.returncode


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a while, and return whether a process is still there."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LOOK_SECONDS)
    return process.returncode is None


def _note(cell: Cell, status: int, out: Path, progress: _Progress) -> None:
    directory = cell.directory(out)
    if status == 0:
        progress.ended(read_outcome(directory / FILE), cell.name)
    elif status != INTERRUPTED:
        lines = (directory / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        last = lines[-1] if lines else "it said nothing"
        progress.went_wrong(cell.name, f"exit status {status}: {last} (see {directory / LOG})")
