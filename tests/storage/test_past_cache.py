"""Large files written past the cache: the same bytes, whatever the file system thinks of it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.core.errors import RunError
from metis.storage.direct_io import Growing, room_for
from metis.storage.packets import OnDisk

BLOCK = 4096
LARGE = 8 << 20  # from here on a file is written while it grows


def content_of(length: int) -> memoryview:
    room = room_for(length)
    room[:] = np.random.default_rng(length).bytes(length)
    return room


def grow(path: Path, content: memoryview, step: int) -> list[bool]:
    """Write a file as it grows; return whether each write of it went past the cache."""
    past: list[bool] = []
    write = os.write

    def watched(descriptor: int, data: Any) -> int:
        past.append(bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT))
        return write(descriptor, data)

    with open(path, "wb", buffering=0) as file, pytest.MonkeyPatch.context() as patches:
        patches.setattr(os, "write", watched)
        growing = Growing(file.fileno())
        for end in range(step, len(content), step):
            growing.follow(content[:end])
        growing.finish(content)
    return past


@pytest.mark.parametrize("step", [1 << 20, (1 << 20) + 13, 9 << 20])
@pytest.mark.parametrize(
    "length", [0, 1, BLOCK, LARGE - 1, LARGE, LARGE + 1, 2 * LARGE + BLOCK, 2 * LARGE + 4095]
)
def test_a_file_holds_what_grew(tmp_path: Path, length: int, step: int) -> None:
    content = content_of(length)

    grow(tmp_path / "file", content, step)

    assert (tmp_path / "file").read_bytes() == content


def test_a_large_file_goes_past_the_cache_but_for_its_end(tmp_path: Path) -> None:
    past = grow(tmp_path / "file", content_of(3 * LARGE + 5), 1 << 20)

    if not any(past):
        pytest.skip("this file system will not have it")
    assert past == [True] * (len(past) - 1) + [False]


def test_a_small_file_is_written_at_once(tmp_path: Path) -> None:
    assert grow(tmp_path / "file", content_of(LARGE - 1), 1 << 20) == [False]


def refuse_flag(patches: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def refusing(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return real(descriptor, command, argument)

    patches.setattr(fcntl, "fcntl", refusing)


def refuse_write(patches: pytest.MonkeyPatch) -> None:
    real = os.write

    def refusing(descriptor: int, data: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not aligned as this disk wants it")
        return real(descriptor, data)

    patches.setattr(os, "write", refusing)


def write_half(patches: pytest.MonkeyPatch) -> None:
    real = os.write

    def short(descriptor: int, data: Any) -> int:
        return real(descriptor, data[: max(1, len(data) // 2) if len(data) < 9000 else BLOCK * 99])

    patches.setattr(os, "write", short)


@pytest.mark.parametrize("how", [refuse_flag, refuse_write, write_half])
def test_a_file_system_that_will_not_have_it_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[pytest.MonkeyPatch], None]
) -> None:
    content = content_of(2 * LARGE + 777)
    with monkeypatch.context() as patches:
        how(patches)
        with open(tmp_path / "file", "wb", buffering=0) as file:
            growing = Growing(file.fileno())
            growing.follow(content[:LARGE])
            growing.follow(content[: LARGE + 100])
            growing.finish(content)

    assert (tmp_path / "file").read_bytes() == content


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OnDisk(tmp_path)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield bytes(1 << 20)

    with monkeypatch.context() as patches:
        patches.setattr(os, "write", full)
        with pytest.raises(RunError, match="No space left on device"):
            store.take(chunks(), 1 << 25)

    assert list(tmp_path.iterdir()) == []


def test_room_begins_at_the_edge_of_a_block() -> None:
    for length in (0, 1, 5000, 1 << 20):
        room = room_for(length)
        assert len(room) == length
        assert not length or np.frombuffer(room, np.uint8).ctypes.data % BLOCK == 0
