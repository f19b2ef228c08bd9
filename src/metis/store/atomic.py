"""Files that are either the old one or the whole new one."""

from __future__ import annotations

import os
from pathlib import Path


def partial(target: Path) -> Path:
    """Return where to write what will become `target`."""
    return target.with_name(target.name + ".tmp")


def put_in_place(target: Path) -> None:
    """Make the partial file the real one, after it is on disk.

    safetensors makes files that only their owner can read; these get the usual permissions.
    """
    written = partial(target)
    with open(written, "rb") as file:
        os.fsync(file.fileno())
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(written, 0o666 & ~mask)
    os.replace(written, target)
