"""Files that are either the old one or the whole new one."""

from __future__ import annotations

import os
from pathlib import Path

from metis.core.errors import JournalError, RunError


def partial(target: Path) -> Path:
    """Return where to write what will become `target`."""
    return target.with_name(target.name + ".tmp")


def put_in_place(target: Path, written: Path | None = None) -> None:
    """Make the partial file, or the one given, the real one, after it is on disk.

    safetensors makes files that only their owner can read; these get the usual permissions.
    """
    written = written or partial(target)
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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all. Raises RunError if it cannot be written."""
    try:
        partial(path).write_bytes(content)
        put_in_place(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


def read_bytes(path: Path) -> bytes:
    """Return what a file holds. Raises JournalError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None
