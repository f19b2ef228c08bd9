"""Packets by name, in memory or on disk, behind one contract. tests/store/test_packets.py holds
every store to it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from metis.core.errors import JournalError, ModelError, RunError
from metis.store.atomic import put_in_place, sync_directory

_NAME = re.compile(r"[a-z]+-\d{1,18}")
_CHUNK = 1 << 20  # bytes read at a time


class Packets(Protocol):
    """Keeps packets. A name is a word and a number, such as `task-17`."""

    def put(self, name: str, chunks: Iterable[bytes], max_bytes: int) -> int:
        """Keep what comes in, whole or not at all; return its length.

        When this returns, the packet is as safe as the store can make it. What was there under
        this name is replaced. More than `max_bytes` raises ModelError, and so does whatever ends
        the chunks; nothing is left of either, and no more than a chunk is held in memory.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return a packet. JournalError if there is none."""
        ...

    def chunks(self, name: str) -> Iterator[bytes]:
        """Give a packet piece by piece; JournalError if there is none."""
        ...

    def drop(self, name: str) -> None:
        """Forget a packet, if it is there."""
        ...

    def names(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """Packets that are gone when the process is."""

    packets: dict[str, bytes] = field(default_factory=dict)

    def put(self, name: str, chunks: Iterable[bytes], max_bytes: int) -> int:
        _check(name)
        found = b"".join(_limited(chunks, max_bytes))
        self.packets[name] = found
        return len(found)

    def get(self, name: str) -> bytes:
        if name not in self.packets:
            raise JournalError(f"there is no packet {name}")
        return self.packets[name]

    def chunks(self, name: str) -> Iterator[bytes]:
        packet = memoryview(self.get(name))
        for start in range(0, len(packet), _CHUNK):
            yield bytes(packet[start : start + _CHUNK])

    def drop(self, name: str) -> None:
        self.packets.pop(name, None)

    def names(self) -> set[str]:
        return set(self.packets)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Packets as files of a directory. What `put` has returned for outlives a power cut."""

    directory: Path

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for left in self.directory.glob("*.tmp"):  # of a crash half-way
                left.unlink()
        except OSError as error:
            raise RunError(f"cannot write to {self.directory}: {error.strerror}") from None

    def put(self, name: str, chunks: Iterable[bytes], max_bytes: int) -> int:
        path = self._path(name)
        # A name of its own: somebody whose line was cut may send the same packet once more while
        # the first half of it is still being waited for.
        half = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        length = 0
        try:
            with open(half, "wb") as file:
                for chunk in _limited(chunks, max_bytes):
                    length += file.write(chunk)
            put_in_place(path, half)
            sync_directory(self.directory)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from None
        finally:
            half.unlink(missing_ok=True)
        return length

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except OSError as error:
            raise JournalError(f"{self._path(name)}: {error.strerror}") from None

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with open(self._path(name), "rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except OSError as error:
            raise JournalError(f"{self._path(name)}: {error.strerror}") from None

    def drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def names(self) -> set[str]:
        return {path.stem for path in self.directory.glob("*.packet")}

    def _path(self, name: str) -> Path:
        _check(name)
        return self.directory / f"{name}.packet"


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a packet")


def _limited(chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    length = 0
    for chunk in chunks:
        length += len(chunk)
        if length > max_bytes:
            raise ModelError(f"packet is longer than the {max_bytes} bytes it may have")
        yield chunk
