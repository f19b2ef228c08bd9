"""Files of keys and certificates: private ones are never readable by others, not for a moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from metis.core.errors import IdentityError, RunError
from metis.store.atomic import sync_directory, write_bytes

#: Nothing we read is longer; a request comes from outside.
MAX_BYTES = 4 << 20


def read(path: Path) -> bytes:
    """Return what a file holds. Raises IdentityError if it cannot be read or is far too long."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise IdentityError(f"{path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise IdentityError(f"{path}: has more than {MAX_BYTES:,} bytes")
    return content


def read_private(path: Path) -> bytes:
    """Return a private key's file. Raises IdentityError if anybody but its owner can read it."""
    content = read(path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise IdentityError(
            f"{path}: other users of this machine can use this private key (mode {mode:04o}); "
            f"if none of them can have taken it: chmod 600 {shlex.quote(str(path))}; else make a "
            "new one"
        )
    return content


def write_public(path: Path, content: bytes) -> None:
    """Write a file that everybody may read: whole or not at all, and durably."""
    write_bytes(path, content, durable=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, under a name that was free.

    It has its permissions before it has content. Never replaces: a lost key cannot be made again.
    """
    written = path.with_name(path.name + ".tmp")  # not `replacing`: it never replaces
    try:
        written.unlink(missing_ok=True)  # of an attempt that was killed
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if path.exists():
            raise RunError(f"cannot write {path}: it is there already")
        os.rename(written, path)
        sync_directory(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            written.unlink(missing_ok=True)


def private_directory(path: Path) -> None:
    """Make a directory that its owner alone can enter; one that exists stays as it is."""
    if path.is_dir():
        return
    try:
        path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RunError(f"cannot make the directory {path}: {error.strerror}") from None


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process is in this directory, and keep others out meanwhile."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise IdentityError(f"{directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Put the file before the message of whatever is found wrong with what it holds."""
    try:
        yield
    except IdentityError as error:
        raise IdentityError(f"{path}: {error}") from None
