"""A file is the old one or the whole new one, whatever happens while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from metis.core.errors import RunError
from metis.store.atomic import replacing, write_bytes


def test_a_block_that_ends_puts_its_file_in_place_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    with replacing(path, durable=True) as written:
        written.write_bytes(b"new")
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_block_that_raises_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")

    with pytest.raises(KeyError), replacing(path) as written:
        raise KeyError(written.write_bytes(b"half"))

    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot write .*nowhere/file: No such file"):
        write_bytes(tmp_path / "nowhere" / "file", b"")


def _umask() -> int:
    import os

    mask = os.umask(0)
    os.umask(mask)
    return mask
