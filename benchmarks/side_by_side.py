"""What NVIDIA's MPS brings when cells of Table I are made side by side on one GPU.

    python benchmarks/side_by_side.py --results DIR [--row powerlaw-5] [--jobs 5] [--seconds 80]
        [--out FILE.json] [--quick]

Makes the asynchronous cells of a heterogeneous row as `metis reproduce table1` would, first with
processes that take turns on the GPU, then with MPS (`--mps`). Nothing is made in vain: the cells in
DIR are left to be taken up again. Samples are those in the cells' journals, by eighths of the time;
the first three of each way go into starting up and are left out, and so is the last.

--quick shows that it works, on a CPU and generated data, for which MPS does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from machine import machine
from metis.core.errors import Interrupted
from metis.experiments import table1
from metis.experiments.cells import Cell, Setting
from metis.experiments.study import Choice
from metis.experiments.work import Watch, make
from metis.journal.file import Listener, Record
from metis.journal.follow import Follower
from metis.journal.paths import JOURNAL

STRETCHES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="where cells are")
    parser.add_argument("--row", default="powerlaw-5")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=80.0, help="of each way")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        asked.jobs, asked.seconds = 2, 16.0

    load = os.getloadavg()[0]
    rates = {mps: measured(asked, mps) for mps in (False, True)}
    in_turns, at_once = (fmean(rates[mps]) for mps in (False, True))
    if in_turns == 0:
        sys.exit("nothing was computed while it was measured: more --seconds are needed")
    found: dict[str, Any] = {
        "benchmark": "side_by_side",
        "row": asked.row,
        "jobs": asked.jobs,
        "samples_per_second_in_turns": [round(rate) for rate in rates[False]],
        "samples_per_second_with_mps": [round(rate) for rate in rates[True]],
        "ratio": round(at_once / in_turns, 3),
        "machine": machine(load),
    }
    text = json.dumps(found, indent=2)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n", encoding="utf-8")


def measured(asked: argparse.Namespace, mps: bool) -> list[float]:
    """Make cells for a while; return samples a second, by stretches."""
    setting = Setting(
        asked.results,
        scale="smoke" if asked.quick else "full",
        seconds=1e9 if asked.quick else None,  # they must not end
        device="cpu" if asked.quick else "cuda",
        jobs=asked.jobs,
        mps=mps,
        stop_after=asked.seconds,
    )
    policies = tuple(p for p in table1.GRID.policies["heterogeneous"] if not p.startswith("sync"))
    cells = table1.cells(setting, Choice(("heterogeneous",), (asked.row,), policies))
    count = Count()
    with counting(count, asked.seconds / STRETCHES) as rates:
        try:
            make(cells, setting, lambda text: print(text, file=sys.stderr), count.watch(setting))
        except Interrupted:
            return rates[3 : STRETCHES - 1]
    sys.exit("the cells were finished before the time was over: choose another --row or --results")


@dataclass(slots=True)
class Count:
    """Counts the samples that cells tell of in their journals from now on."""

    samples: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, setting: Setting) -> Watch:
        @contextmanager
        def watched(cell: Cell) -> Iterator[tuple[Listener, ...]]:
            # What an earlier way left is read first, so that it is not counted.
            journal = cell.directory(setting.out) / JOURNAL
            before: list[Record] = []
            Follower(journal, before.append).look()
            left = len(before)

            def listen(record: Record) -> None:
                nonlocal left
                left -= 1
                if left < 0 and record["kind"] == "steps":
                    with self._lock:
                        self.samples += record["samples"]

            yield (listen,)

        return watched


@contextmanager
def counting(count: Count, seconds: float) -> Iterator[list[float]]:
    """Give a list that grows by the samples a second of each stretch of so many seconds."""
    rates: list[float] = []
    over = threading.Event()

    def look() -> None:
        samples, at = count.samples, time.monotonic()
        while not over.wait(seconds):
            now, then = time.monotonic(), count.samples
            rates.append((then - samples) / (now - at))
            samples, at = then, now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield rates
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
