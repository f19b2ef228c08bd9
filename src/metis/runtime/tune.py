"""Which engine is fastest for a config on this machine: measured once, then written down.

A run never measures for itself: its bytes would depend on how busy the machine was. So this is
apart, and what it finds becomes part of the config.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from metis.config import Config
from metis.runtime.assemble import assemble, dataset_of
from metis.runtime.journal import Record
from metis.runtime.session import Session
from metis.training.threads import num_threads


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, and what it came to."""

    engine: str
    threads: int
    samples_per_second: float
    note: str | None = None  # why it could not be tried


class _Clock:
    """Listens to a run and times it from its first trained epoch on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples = 0
        self._began = 0.0
        self.rate = 0.0
        self.is_over = False

    def __call__(self, record: Record) -> None:
        if record["kind"] != "steps":
            return
        now = time.perf_counter()
        if not self._began:
            self._began = now  # what comes before is start-up, or was computed ahead
            return
        self._samples += record["samples"]
        self.rate = self._samples / max(now - self._began, 1e-9)
        self.is_over = now - self._began > self._seconds


def tune(
    config: Config, seconds: float, tried: Callable[[Trial], None] | None = None
) -> list[Trial]:
    """Try every engine that can compute this federation, each for so many seconds; best first."""
    dataset = dataset_of(config)
    cores = os.cpu_count() or 1
    settings = [("loop", 1), ("stack", 1)]
    if cores > 1:
        settings += [("loop", cores), ("stack", cores), ("processes", cores)]
    if config.device == "cuda":
        settings = [("loop", 1), ("stack", 1), ("graphs", 1)]
    trials = []
    for engine, threads in settings:
        chosen = replace(config, engine=engine, threads=threads)
        federation = assemble(chosen, loaded=dataset)
        note = federation.header["engine_note"]
        clock = _Clock(seconds)
        session = Session(federation, None, (clock,))
        try:
            with num_threads(threads):
                if note is None:
                    session.open(resumed=False)
                    while not clock.is_over and session.step():
                        pass
        finally:
            session.close()
        trials.append(Trial(engine, threads, clock.rate, note))
        if tried is not None:
            tried(trials[-1])
    return sorted(trials, key=lambda trial: -trial.samples_per_second)
