"""A directory that one process at a time may write to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metis.core.errors import RunError

_LOCK = "lock"


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Make a directory and hold it; the system lets go of it when the process ends, however.

    Raises RunError if another process has it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunError(f"cannot write to {directory}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{directory} is in use by another process") from None
        yield
    finally:
        os.close(descriptor)
