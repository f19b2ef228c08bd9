from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from rich.console import Console

from metis.journal.file import Record
from metis.report.live import LiveView

JournalOf = Callable[..., list[Record]]
SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"


@dataclass
class Clock:
    """A clock that the test turns, by a fixed amount at every look if it likes."""

    now: float = 0.0
    tick: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def terminal(height: int = 40, width: int = 100) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=width, height=height, _environ={"TERM": "xterm"}
    )
    return console, file


def plain() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=False, width=60), file


def last_frame(file: io.StringIO) -> str:
    """Return what a terminal shows at last, without its colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue().rsplit("\x1b[2K", 1)[-1])


def shown(records: list[Record], height: int = 40, width: int = 100) -> str:
    """Return what remains on a terminal of a run that breaks off after these records."""
    console, file = terminal(height, width)
    with LiveView(120.0, None, console, clock=Clock()) as view:
        for record in records:
            view(record)
    return last_frame(file)


# --- plain lines


def test_plain_lines_tell_the_start_the_way_and_the_end(journal_of: JournalOf) -> None:
    console, file = plain()
    clock = Clock()
    view = LiveView(120.0, None, console, clock=clock)
    with view:
        for record in journal_of("sync-dvw"):
            clock.now = record["at"] / 100
            view(record)
    lines = file.getvalue().splitlines()
    assert lines[0] == "[   0.0 s] sync-dvw on digits, 6 learners"
    assert len(lines) == 11  # start, nine tenths, end
    assert lines[-1].startswith("[   6.0 s] t=120.0 s version 249 accuracy 0.9")
    assert lines[-1].endswith("samples/s")
    assert "\x1b" not in file.getvalue()


def test_a_slow_run_says_something_every_five_seconds(journal_of: JournalOf) -> None:
    console, file = plain()
    clock = Clock()
    view = LiveView(None, None, console, clock=clock)
    with view:
        for record in journal_of("sync-dvw"):
            clock.now = record["at"]
            view(record)
    assert 20 <= len(file.getvalue().splitlines()) <= 26


def test_a_run_that_stops_early_is_called_interrupted(journal_of: JournalOf) -> None:
    console, file = plain()
    view = LiveView(120.0, None, console, title="2/5 sync-dvw", clock=Clock())

    def interrupted() -> None:
        with view:
            for record in journal_of("sync-dvw")[:200]:
                view(record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    first, *_, last = file.getvalue().splitlines()
    assert first == "[   0.0 s] 2/5 sync-dvw on digits, 6 learners"
    assert "] 2/5 sync-dvw: t=" in last
    assert last.endswith(", interrupted")


def test_a_run_that_got_stuck_says_why_it_ended() -> None:
    console, file = plain()
    view = LiveView(120.0, None, console, clock=Clock())
    with view:
        view({"kind": "end", "at": 3.0, "reason": "stuck", "wall_seconds": 1.0})
    assert file.getvalue().endswith("samples/s, ended: stuck\n")


# --- the terminal


def test_every_learner_has_a_line_with_its_state(journal_of: JournalOf) -> None:
    text = shown(journal_of("async-dvw-adaptive", num_learners=6, ended=False))
    assert "async-dvw-adaptive on digits" in text
    assert "of 120 s" in text
    lines = [line for line in text.splitlines() if line.startswith("learner-")]
    assert len(lines) == 6
    assert all("training" in line for line in lines)


def test_the_view_fits_80_columns(journal_of: JournalOf) -> None:
    text = shown(journal_of("async-dvw-adaptive", num_learners=10, ended=False), width=80)
    assert "…" not in text
    line = next(line for line in text.splitlines() if line.startswith("learner-10"))
    assert len(line.split()) == 10


@pytest.mark.parametrize(("num_learners", "height"), [(200, 40), (16, 24)])
def test_more_learners_than_fit_are_shown_by_group(
    journal_of: JournalOf, num_learners: int, height: int
) -> None:
    text = shown(journal_of("async-fedavg", num_learners=num_learners, seconds=8), height=height)
    starts = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert {"fast", "slow"} <= set(starts)
    assert sum(start.startswith("learner-") for start in starts) == 5
    assert len(text.splitlines()) <= height


def test_departures_crashes_and_refusals_change_a_learners_state(journal_of: JournalOf) -> None:
    records = journal_of("async-fedavg", num_learners=6, seconds=2.0, ended=False)
    task_of = {r["learner"]: r["task"] for r in records if r["kind"] == "task"}
    at: Record = {"at": 2.0, "wall_seconds": 1.0}
    late = {"learner": "learner-05", "task": task_of["learner-05"] - 1, "reason": "no such task"}
    records += [
        {"kind": "leave", "learner": "learner-01", "withdraw": False, **at},
        {"kind": "incident", "learner": "learner-02", "incident": "crash", "factor": None, **at},
        {"kind": "task-expired", "task": task_of["learner-03"], **at},
        {
            "kind": "refuse",
            "learner": "learner-04",
            "task": task_of["learner-04"],
            "reason": "nan",
            **at,
        },
        {"kind": "refuse", **late, **at},
        {"kind": "arrive", "learner": "learner-06", "task": task_of["learner-06"], **at}
        | {"base_version": 0, "num_examples": 1, "num_steps": 1, "seconds": 1.0}
        | {"counts": None, "bytes_up": 1},
    ]
    lines = [line.split() for line in shown(records).splitlines() if line.startswith("learner-")]
    states = [words[2] for words in lines]
    assert states == ["left", "lost", "lost", "idle", "training", "waiting"]


def test_an_idle_learner_that_is_asked_is_judging(journal_of: JournalOf) -> None:
    records = journal_of("async-dvw", num_learners=2, seconds=0.1, ended=False)[:3]
    at: Record = {"at": 0.0, "wall_seconds": 0.0}
    records = [r for r in records if r["kind"] != "task"]
    records.append({"kind": "join", "learner": "learner-01", "num_examples": 9, **at})
    records[-1] |= {"steps_per_epoch": 1, "group": "fast"}
    asked = {"kind": "evaluate", "evaluation": 1, "judge": "learner-01", "learner": "learner-02"}
    records.append({**asked, "task": 9, "bytes_down": 1, **at})
    assert "judging" in shown(records)
    records.append({"kind": "score", "evaluation": 1, "counts": None, **at})
    assert "judging" not in shown(records)


def test_a_resumed_journal_needs_no_beginning(journal_of: JournalOf) -> None:
    records = journal_of("async-dvw", num_learners=6)
    text = shown(records[len(records) // 2 :])
    assert sum(line.startswith("learner-") for line in text.splitlines()) == 6


def test_the_time_left_follows_the_pace_so_far(journal_of: JournalOf) -> None:
    console, file = terminal()
    with LiveView(120.0, None, console, clock=Clock(tick=1.0)) as view:
        for record in journal_of("sync-fedavg", seconds=30.0, ended=False)[-20:]:
            view({**record, "wall_seconds": record["at"] * 10})
        frame = last_frame(file)
    left = re.search(r"(\d+) min \d\d s left", frame)
    assert left is not None
    assert int(left[1]) in (14, 15)  # 300 s for a quarter of the way


def test_nothing_is_drawn_more_often_than_four_times_a_second(journal_of: JournalOf) -> None:
    console, file = terminal()
    clock = Clock()
    view = LiveView(120.0, None, console, clock=clock)
    sizes = []
    with view:
        for record in journal_of("sync-dvw"):
            clock.now = record["at"] / 60  # two seconds in all
            view(record)
            sizes.append(file.tell())
    drawings = sum(b > a for a, b in pairwise(sizes))
    assert 6 <= drawings <= 8


def test_a_slow_terminal_is_drawn_to_less_often(journal_of: JournalOf) -> None:
    console, file = terminal()
    view = LiveView(120.0, None, console, clock=Clock(tick=0.05))  # so long a drawing takes
    sizes = []
    with view:
        for record in journal_of("sync-dvw"):
            view(record)
            sizes.append(file.tell())
    drawings = sum(b > a for a, b in pairwise(sizes))
    every_quarter_second = 0.05 * len(sizes) / 0.25
    assert 0 < drawings < every_quarter_second / 2


def test_a_run_in_a_row_leaves_one_line(journal_of: JournalOf) -> None:
    console, file = terminal()
    with LiveView(120.0, None, console, title="2/5 sync-dvw", clock=Clock()) as view:
        for record in journal_of("sync-dvw"):
            view(record)
    assert last_frame(file).startswith("2/5 sync-dvw: accuracy 0.9")
    assert "learner-01" not in last_frame(file)


def test_an_interruption_gives_the_cursor_back(journal_of: JournalOf) -> None:
    console, file = terminal()

    def interrupted() -> None:
        with LiveView(120.0, None, console, clock=Clock()) as view:
            for record in journal_of("sync-dvw")[:100]:
                view(record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = file.getvalue()
    assert HIDE in text
    assert text.rindex(SHOW) > text.rindex(HIDE)
    assert "interrupted" in text


def test_an_error_in_the_view_is_heard_and_gives_the_cursor_back() -> None:
    console, file = terminal()

    def broken() -> None:
        with LiveView(120.0, None, console, clock=Clock()) as view:
            view({"kind": "steps", "at": 1.0, "wall_seconds": 0.0})

    with pytest.raises(KeyError, match="samples"):
        broken()
    assert file.getvalue().rindex(SHOW) > file.getvalue().rindex(HIDE)


def test_a_name_with_brackets_is_not_read_as_markup(journal_of: JournalOf) -> None:
    assert "[red]x on digits" in shown(journal_of("[red]x", seconds=5))
