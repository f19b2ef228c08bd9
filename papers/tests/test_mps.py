"""A daemon lets processes share a GPU: it is ours, and gone when we are."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from metis.core.errors import RunError
from metis_papers import run_cells, table1
from metis_papers.cells import Setting
from metis_papers.mps import PIPES, computing_at_once
from metis_papers.study import Choice

#: What is said to it, and where its pipes are.
STAND_IN = """#!/bin/sh
said="$* $(cat)"
echo "$said {variable}=${variable}" >> "{log}"
case "$said" in {fails}) echo "no device" >&2; exit 3;; esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_in(tmp_path, monkeypatch)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str = "never") -> Path:
    """Put something on the path that is called as the daemon's control; return what it logs.

    It fails where what it is told is as `fails` says.
    """
    log, program = tmp_path / "log", tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(variable=PIPES, log=log, fails=fails))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(PIPES, raising=False)
    return log


def test_a_daemon_is_started_and_ended_and_leaves_nothing(log: Path) -> None:
    with computing_at_once(pytest.fail) as environment:
        folder = environment[PIPES]
        assert Path(folder).is_dir()
        assert log.read_text().split("\n") == [f"-d  {PIPES}={folder}", ""]

    assert log.read_text().split("\n")[1:] == [f" quit {PIPES}={folder}", ""]
    assert not Path(folder).exists()
    assert PIPES not in os.environ


def test_it_is_ended_when_something_goes_wrong(log: Path) -> None:
    with pytest.raises(ZeroDivisionError), computing_at_once(pytest.fail):
        _ = 1 / 0

    assert " quit " in log.read_text()


def test_a_daemon_of_the_users_own_is_taken_and_left_alone(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv(PIPES, str(tmp_path))

    with computing_at_once(pytest.fail) as environment:
        assert environment[PIPES] == str(tmp_path)

    assert not log.exists()


def test_a_daemon_of_the_users_own_must_be_there(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIPES, str(tmp_path))
    with pytest.raises(RunError, match="no daemon listens there"), computing_at_once(pytest.fail):
        pass
    assert not log.exists()

    monkeypatch.setenv(PIPES, "")  # as good as none
    with computing_at_once(pytest.fail):
        assert log.exists()


def test_without_the_daemon_or_if_it_fails_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, fails="-d*")
    failed = "--mps: NVIDIA's daemon failed: .* exit status 3. no device"
    with pytest.raises(RunError, match=failed), computing_at_once(pytest.fail):
        pass

    monkeypatch.setenv("PATH", str(tmp_path))
    missing = "there is no nvidia-cuda-mps-control"
    with pytest.raises(RunError, match=missing), computing_at_once(pytest.fail):
        pass


def test_a_daemon_that_does_not_end_does_not_hide_what_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, fails="*quit")
    told: list[str] = []
    setting = Setting(tmp_path / "out", "smoke", jobs=2, rounds=1, mps=True)
    cells = table1.GRID.cells(setting, Choice(("homogeneous",), None, ("sync-fedavg",)))

    run_cells.make(cells, setting, told.append, lambda cell: nullcontext(()))

    (ended,) = (line for line in told if "no device" in line)
    assert ended.endswith("it may still be there")
    assert any(line.startswith("1/1 ") for line in told)


def test_all_cells_are_made_under_one_daemon(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    really = subprocess.Popen

    def popen(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        if how.get("process_group") == 0:  # a cell
            started.append(how["env"][PIPES])
        return really(*args, **how)

    monkeypatch.setattr(subprocess, "Popen", popen)
    setting = Setting(tmp_path / "out", "smoke", jobs=2, rounds=1, mps=True)
    cells = table1.GRID.cells(setting, Choice(("homogeneous",), None, ("sync-fedavg", "sync-dvw")))

    run_cells.make(cells, setting, lambda text: None, lambda cell: nullcontext(()))

    assert len(started) == 2
    assert len(set(started)) == 1
    assert log.read_text().split("\n")[:2] == [
        f"-d  {PIPES}={started[0]}",
        f" quit {PIPES}={started[0]}",
    ]
