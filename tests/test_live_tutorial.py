"""The live tutorial works as it says: its commands typed into three shells, its output compared.
And what stands beside it: the site of the example, the services of `deploy/`.

A shell is a `bash` that reads from a pipe; it goes on with the next line when a command has ended,
as a terminal does. Of the output that the tutorial shows, each line must come, in that order, with
any numbers in place of its numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import typer.main

from metis.cli import app
from metis.service.initial_model import own_learner

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "live-tutorial.md"
PORT = "7400"
PATIENCE_SECONDS = 60.0

#: `**Terminal 2**`, perhaps with a key to press, then commands or output or both.
STEP = re.compile(
    r"^\*\*Terminal (?P<terminal>\d)\*\*(?P<key>: press Ctrl-C)?\n\n"
    r"(?:```sh\n(?P<commands>.*?)^```\n)?\n?"
    r"(?:```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)

#: What a learner is doing at some moment is a matter of luck.
DOING = r"(?:training|waiting|being judged)"


@dataclass(frozen=True, slots=True)
class Step:
    """Something to type into a terminal, to press there, or to see there."""

    terminal: int
    presses_ctrl_c: bool
    commands: str
    output: list[str]


@dataclass(slots=True)
class Shell:
    """A terminal: what was typed is done in turn, what it printed is kept."""

    process: subprocess.Popen[str]
    printed: str = ""
    seen: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.printed += line
                self._changed.notify_all()

    def type(self, commands: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(commands)
        self.process.stdin.flush()

    def press_ctrl_c(self) -> None:
        """Interrupt what runs in the foreground."""
        for child in _children(self.process.pid):
            os.kill(child, signal.SIGINT)

    def expect(self, line: str) -> None:
        """Wait until a line comes that is like this one."""
        pattern = re.compile(_like(line), re.MULTILINE)
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while (found := pattern.search(self.printed, self.seen)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    since = self.printed[self.seen :]
                    pytest.fail(f"did not see: {line}\nsince the line before it came:\n{since}")
            self.seen = found.end()


def test_the_three_terminals_of_the_tutorial_do_what_it_says(tmp_path: Path) -> None:
    steps = _steps(TUTORIAL.read_text(encoding="utf-8"), _free_port())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    with ExitStack() as stack:
        shells = {n: stack.enter_context(_shell(tmp_path)) for n in (1, 2, 3)}
        for step in steps:
            shell = shells[step.terminal]
            if step.presses_ctrl_c:
                shell.press_ctrl_c()
            shell.type(step.commands)
            for line in step.output:
                shell.expect(line)

    assert len(steps) > 20
    journals = [tmp_path / "try-out" / name / "journal.jsonl" for name in ("state", "consortium")]
    assert all('"kind":"version"' in journal.read_text() for journal in journals)


def test_a_site_reads_patients_from_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patients = np.random.default_rng(3).normal(size=(20, 31))
    patients[:, -1] = np.arange(20) % 2
    heading = ",".join(f"m{number}" for number in range(31))
    np.savetxt(tmp_path / "own.csv", patients, delimiter=",", header=heading, comments="")
    monkeypatch.setenv("METIS_SITE_CSV", str(tmp_path / "own.csv"))

    learner = own_learner(f"{ROOT / 'examples' / 'site.py'}:make_learner", "anywhere")

    assert learner.data.x_train.shape == (16, 30)
    assert learner.data.y_test.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "path", ["metis-controller.service", "metis-learner@.service", "compose.yaml"]
)
def test_services_are_started_with_options_that_there_are(path: str) -> None:
    text = (ROOT / "deploy" / path).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    started = re.findall(r"(?:metis|- ) ?(controller|learner)\b((?:[\s\\-]+--[^\n]*)+)", lines)

    assert started
    for verb, rest in started:
        known = {option for parameter in verbs[verb].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known


def _steps(text: str, port: int) -> list[Step]:
    """Return the steps of a tutorial, with a port that nobody else has."""
    found = [
        Step(
            int(match["terminal"]),
            match["key"] is not None,
            match["commands"] or "",
            [line for line in (match["output"] or "").splitlines() if line.strip("─ .")],
        )
        for match in STEP.finditer(text.replace(f":{PORT}", f":{port}"))
    ]
    assert all(step.commands or step.output for step in found)
    assert len(found) == len(re.findall(r"^\*\*Terminal", text, re.MULTILINE))
    return found


def _like(line: str) -> str:
    """Return a pattern for lines that differ from this one in numbers, digests and spaces alone."""
    line = re.sub(r", scores? .*", " ...", line)  # one number if all scores are equal, else two
    words = []
    for word in re.sub(DOING, "DOING", line).split():
        if word == "DOING":
            words.append(DOING)
        elif word == "...":
            words.append(".*")
        elif re.fullmatch(r"-|[\d.,]+|[0-9a-f]{4}|[0-9a-f]{16}(\.\.\.)?", word):
            words.append(r"(?:-|[0-9a-f.,]+)")
        else:
            parts = re.split(r"\d+(?:[.,]\d+)*", word)
            words.append(r"\d+(?:[.,]\d+)*".join(re.escape(part) for part in parts))
    return r"^\s*" + r"\s+".join(words).replace(r"\s+.*", ".*")


@contextmanager
def _shell(folder: Path) -> Iterator[Shell]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-s"],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    shell = Shell(process)
    reader = threading.Thread(target=shell.read)
    reader.start()
    try:
        yield shell
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: all that was started in it
        process.wait()
        reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
