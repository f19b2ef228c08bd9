"""A directory belongs to one process at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from metis.core.errors import RunError
from metis.storage.lock import claimed

HOLD = """
import sys, time
from pathlib import Path
from metis.storage.lock import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_claimed_directory_is_made_and_let_go_of_again(tmp_path: Path) -> None:
    with claimed(tmp_path / "deep" / "state"):
        assert (tmp_path / "deep" / "state").is_dir()

    with claimed(tmp_path / "deep" / "state"):
        pass


def test_another_process_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"

    with pytest.raises(RunError, match="in use by another process"), claimed(tmp_path):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()

    until = time.monotonic() + 5
    while True:
        try:
            with claimed(tmp_path):
                break
        except RunError:
            assert time.monotonic() < until


def test_a_directory_that_cannot_be_made_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    with pytest.raises(RunError, match="cannot write to"), claimed(tmp_path / "file" / "state"):
        pass
