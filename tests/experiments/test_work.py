"""Cells are made once, by one process, and told by the horizon that they had."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metis.core.errors import RunError
from metis.experiments import sstc, table1
from metis.experiments.cells import Cell, Horizon, Setting
from metis.experiments.outcome import FILE, as_text, read_outcome
from metis.experiments.study import Choice
from metis.experiments.work import countdown, make, run_cell
from metis.journal.file import Listener, Record, read_journal
from metis.storage.lock import claimed
from tests.experiments.made_up import outcome, put


def cell(out: Path, rounds: int) -> Cell:
    setting = Setting(out, "smoke", rounds=rounds)
    (found,) = table1.GRID.cells(setting, Choice(("homogeneous",), None, ("sync-fedavg",)))
    return found


def test_a_finished_run_is_not_told_as_one_of_another_horizon(tmp_path: Path) -> None:
    short, long = cell(tmp_path, 1), cell(tmp_path, 2)
    directory = short.directory(tmp_path)
    assert run_cell(short, directory).rounds == 1
    (directory / FILE).unlink()

    with pytest.raises(RunError, match="a run of another config"):
        run_cell(long, directory)
    assert not (directory / FILE).exists()
    assert run_cell(short, directory).horizon == "1 rounds"


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are told by their parent's number")
def test_a_cell_whose_command_is_killed_stops_and_leaves_what_can_be_taken_up(
    tmp_path: Path,
) -> None:
    cut = cell(tmp_path, 100_000)
    directory = cut.directory(tmp_path)
    directory.mkdir(parents=True)
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "command = [sys.executable, '-m', 'metis.experiments', sys.argv[1]]\n"
            "made = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)\n"
            "made.communicate(sys.argv[2].encode())",
            str(directory),
            json.dumps(cut.as_json()),
        ]
    )
    try:
        journal = directory / "journal.jsonl"
        assert _within(120, lambda: journal.exists() and journal.stat().st_size > 10_000)
        with pytest.raises(RunError, match="in use by another process"), claimed(directory):
            pass
    finally:
        starter.kill()
        starter.wait()

    def is_free() -> bool:
        try:
            with claimed(directory):
                return True
        except RunError:
            return False

    assert _within(60, is_free)
    assert (directory / "checkpoint.safetensors").exists()
    assert not (directory / FILE).exists()


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def test_cells_in_processes_of_their_own_are_watched_by_what_they_write(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "smoke", jobs=2, rounds=1)
    part = Choice(("homogeneous",), None, ("sync-fedavg", "sync-uniform"))
    cells = table1.GRID.cells(setting, part)
    records: dict[str, list[Record]] = {}
    lines: list[str] = []

    @contextmanager
    def watch(cell: Cell) -> Iterator[tuple[Listener, ...]]:
        records[cell.policy] = []
        yield (records[cell.policy].append,)
        records[cell.policy].append({"kind": "over"})

    make(cells, setting, lines.append, watch)

    assert set(records) == {"sync-fedavg", "sync-uniform"}
    for one in cells:
        journal = one.directory(tmp_path) / "journal.jsonl"
        assert records[one.policy] == [*read_journal(journal), {"kind": "over"}]
    assert [line.split()[0] for line in lines] == ["1/2", "2/2"]


def test_a_damaged_cell_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / FILE
    whole = json.loads(as_text(outcome("fedasync", 0.5)))
    damage: list[dict[str, Any]] = [
        {"curve": None},
        {"about": None},
        {"traffic": [[1, 2, 3]]},
        {"traffic": [[1]] * 3},
        {"traffic": [[1, 2, "3"]] * 3},
    ]
    for text in ("", "{}", *(json.dumps({**whole, **values}) for values in damage)):
        path.write_text(text)
        with pytest.raises(RunError, match="remove it to have the cell made again"):
            read_outcome(path)


def test_a_cell_that_was_never_tested_is_drawn_without_its_curve(tmp_path: Path) -> None:
    untested = replace(outcome("fedasync", 0.0), final_score=None, curve=[], traffic=[])
    setting = put(tmp_path, outcome("async-dvw", 0.5), untested)

    assert "0.5000" in table1.STUDY.report(setting, Choice()).text


def test_runs_of_different_data_are_not_put_into_one_table_of_codecs(tmp_path: Path) -> None:
    mine = outcome("sync-fedavg", 0.9, study="sstc", variant="dense", row="mnist_by_writer")
    other = replace(mine, row="femnist", dataset="femnist", variant="stc")
    setting = put(tmp_path, mine, other)

    assert "| stc " not in sstc.report(setting, Choice()).text
    assert "| stc " in sstc.report(setting, Choice(data="femnist")).text


def test_moments_are_told_as_exactly_as_they_were_asked_for() -> None:
    assert Horizon(seconds=14_000.0).in_words() == "14,000 s"
    assert Horizon(seconds=150.4).in_words() == "150.4 s"


def test_a_countdown_goes_down_to_nothing_and_no_further() -> None:
    left = countdown(0.02)
    first = left()
    assert first is not None
    assert 0 < first <= 0.02
    time.sleep(0.03)
    assert left() == 0.0
    assert countdown(None)() is None
