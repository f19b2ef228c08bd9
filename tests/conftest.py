"""Settings of all tests, and the command line as a fixture."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from metis import cli
from tests.command import Metis, Outcome

# Repeatable, and without time limits: on a busy machine a first call takes as long as it takes.
settings.register_profile("metis", deadline=None, derandomize=True)
settings.load_profile("metis")

# Where there is no GPU kernels are read by Triton's interpreter. It must be told before anything
# imports it, as torch does here and there.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def metis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Metis:
    """Run the command line in this process, in a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["metis", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        caught = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), caught.out, caught.err)

    return call
