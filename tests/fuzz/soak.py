"""Ten times the fuzzing of `make test`, with a report: `python -m tests.fuzz.soak`."""

from __future__ import annotations

import argparse
import platform
import time
from datetime import date
from pathlib import Path

from tests.fuzz.combinations import COMBINATIONS, REPLAY_EVERY, fuzz

REPORT = Path("docs/results/soak-fuzz.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000, help="for each combination")
    parser.add_argument("--report", type=Path, default=REPORT)
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows, total = [], [0] * 5
    for name in COMBINATIONS:
        start = time.perf_counter()
        tally = fuzz(name, arguments.schedules)
        numbers = [
            tally.schedules,
            tally.events,
            tally.folds,
            tally.versions,
            tally.replayed_events,
        ]
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        rows.append(_row(name, numbers, time.perf_counter() - start))
        print(rows[-1], flush=True)
    rows.append(_row("**all**", total, time.perf_counter() - began))
    arguments.report.write_text(_report(arguments.schedules, rows))


def _row(name: str, numbers: list[int], seconds: float) -> str:
    cells = [name, *(f"{n:,}" for n in numbers), f"{seconds:.0f}"]
    return "| " + " | ".join(cells) + " |"


def _report(num_schedules: int, rows: list[str]) -> str:
    return "\n".join(
        [
            "# Soak of the controller",
            "",
            f"Written {date.today()} by `python -m tests.fuzz.soak --schedules {num_schedules}` in",
            f"one process (Python {platform.python_version()}, {platform.machine()}). What is",
            "checked after every event is listed in [soak.md](../soak.md); every "
            f"{REPLAY_EVERY}th schedule is",
            "also replayed into a fresh controller. No schedule failed: the report is only written",
            "when all have passed. Seconds are wall time. For faults found on the way see soak.md.",
            "",
            "| combination | schedules | events | folds | versions | replayed events | seconds |",
            "|---|--:|--:|--:|--:|--:|--:|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    main()
