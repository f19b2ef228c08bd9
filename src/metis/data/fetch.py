"""Getting a file from its home: streamed, checked, and put in place in one step."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from metis.core.errors import DataError

#: Called with a file's name, the bytes so far and the bytes in all, where those are known.
OnProgress: TypeAlias = Callable[[str, int, int | None], None]

_BLOCK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a dataset's home. `checksum` is `md5:...` or `sha256:...` as its home gives it."""

    name: str
    url: str
    checksum: str | None  # None: we know of none, and users are told so
    num_bytes: int | None = None


def silent(name: str, num_bytes: int, total: int | None) -> None:
    """Report progress to nobody."""


def has_checksum(path: Path, checksum: str) -> bool:
    """Say whether a file's bytes are the ones its checksum names."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == expected


def verify(path: Path, remote: RemoteFile) -> None:
    """Raise unless the file at `path` is the remote one, as far as that can be known."""
    if remote.checksum is not None and not has_checksum(path, remote.checksum):
        raise DataError(
            f"{path} is not {remote.url}: expected {remote.checksum}. "
            "It is damaged or another file: remove it and fetch it again"
        )


def download(remote: RemoteFile, folder: Path, on_progress: OnProgress = silent) -> Path:
    """Return the file in `folder`, fetching it unless it is there and right.

    What lies under the final name has been checked: bytes go to a `.tmp` beside it first.
    """
    target = folder / remote.name
    if target.is_file():
        verify(target, remote)
        return target
    partial = target.with_name(f"{remote.name}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _stream(remote, partial, on_progress)
        verify(partial, remote)
        os.replace(partial, target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection open
        raise DataError(f"could not fetch {remote.url} to {target}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return target


def _stream(remote: RemoteFile, partial: Path, on_progress: OnProgress) -> None:
    request = urllib.request.Request(remote.url, headers={"User-Agent": "metis"})
    with (
        urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer,
        partial.open("wb") as file,
    ):
        length = answer.headers.get("Content-Length")
        total = int(length) if length else remote.num_bytes
        done = 0
        while block := answer.read(_BLOCK_BYTES):
            file.write(block)
            done += len(block)
            on_progress(remote.name, done, total)
    if length and done != int(length):
        raise OSError(f"the connection ended after {done} of {length} bytes")
