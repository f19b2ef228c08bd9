"""Files that are either the old one or the whole new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metis.core.errors import JournalError, RunError


@contextmanager
def replacing(target: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield the path to write to; what the block wrote there becomes `target` when it ends.

    If the block raises, the old file stays and nothing of the new one is left. The content is on
    disk before the name changes; `durable`: the name is, too. RunError if anything cannot be
    written. safetensors makes files that only their owner can read; these get the usual
    permissions.
    """
    written = target.with_name(target.name + ".tmp")
    try:
        try:
            yield written
            _put_in_place(written, target)
        except BaseException:
            if written.is_file():
                written.unlink()
            raise
        if durable:
            sync_directory(target.parent)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from None


def _put_in_place(written: Path, target: Path) -> None:
    with open(written, "rb") as file:
        os.fsync(file.fileno())
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(written, 0o666 & ~mask)
    os.replace(written, target)


def sync_directory(directory: Path) -> None:
    """Make sure that files put in place there are found again after a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file that is there whole or not at all; see `replacing`."""
    with replacing(path, durable=durable) as written:
        written.write_bytes(content)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises JournalError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None
