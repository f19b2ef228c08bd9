"""Packets by name, in memory or on disk, behind one contract. tests/storage/test_packets.py holds
every store to it."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from metis.core.errors import JournalError, LineError, ModelError, RunError
from metis.storage.atomic import sync_directory
from metis.storage.direct_io import Growing, room_for

#: Part of a packet: a view of somebody's memory where that can be, so that nothing is copied.
Piece: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Held:
    """A packet that was received and has no name yet."""

    content: memoryview
    file: Path | None = None


_NAME = re.compile(r"[a-z]+-\d{1,18}")
_CHUNK = 1 << 20  # bytes read at a time


class Packets(Protocol):
    """Keeps packets. A name is a word and a number, such as `task-17`."""

    @property
    def durable(self) -> bool:
        """Whether packets outlive the process."""
        ...

    def take(self, chunks: Iterable[Piece], max_bytes: int) -> Held:
        """Receive a packet, whole or not at all, as safe as the store can make it.

        It has no name yet, so nothing else changes. More than `max_bytes` raises ModelError, and
        so does whatever ends the chunks; nothing is left of either. LineError: not now.
        """
        ...

    def keep(self, name: str, held: Held) -> None:
        """Give a packet its name; what was there under that name is replaced."""
        ...

    def discard(self, held: Held) -> None:
        """Forget a packet that was not kept."""
        ...

    def get(self, name: str) -> Piece:
        """Return a packet. JournalError if there is none."""
        ...

    def chunks(self, name: str) -> Iterator[Piece]:
        """Give a packet piece by piece; JournalError if there is none."""
        ...

    def drop(self, name: str) -> None:
        """Forget a packet, if it is there."""
        ...

    def names(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """Packets that are gone when the process is."""

    packets: dict[str, memoryview] = field(default_factory=dict)
    durable: bool = False

    def take(self, chunks: Iterable[Piece], max_bytes: int) -> Held:
        gathered = Gathered(max_bytes)
        for _ in gathered.passing(chunks):
            pass
        return Held(gathered.content)

    def keep(self, name: str, held: Held) -> None:
        _check(name)
        self.packets[name] = held.content

    def discard(self, held: Held) -> None:
        pass

    def get(self, name: str) -> memoryview:
        if name not in self.packets:
            raise JournalError(f"there is no packet {name}")
        return self.packets[name]

    def chunks(self, name: str) -> Iterator[memoryview]:
        packet = self.get(name)
        for start in range(0, len(packet), _CHUNK):
            yield packet[start : start + _CHUNK]

    def drop(self, name: str) -> None:
        self.packets.pop(name, None)

    def names(self) -> set[str]:
        return set(self.packets)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Packets as files of a directory. What `keep` has returned for outlives a power cut."""

    directory: Path
    durable: bool = True

    def __post_init__(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for left in self.directory.glob("*.tmp"):  # of a crash half-way
                left.unlink()
        except OSError as error:
            raise RunError(f"cannot write to {self.directory}: {error.strerror}") from None

    def take(self, chunks: Iterable[Piece], max_bytes: int) -> Held:
        # A name of its own: somebody whose line was cut may send the same packet once more while
        # the first half of it is still being waited for.
        half = self.directory / f"{secrets.token_hex(8)}.tmp"
        gathered, whole = Gathered(max_bytes), False
        try:
            with open(half, "wb", buffering=0) as file:
                growing = Growing(file.fileno())
                for _ in gathered.passing(chunks):
                    growing.follow(gathered.content)
                growing.finish(gathered.content)
            whole = True
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # for now; the disk is as good as ever
                raise LineError("there are too many connections to take a packet now") from None
            raise RunError(f"cannot write {half}: {error.strerror}") from None
        finally:
            if not whole:
                half.unlink(missing_ok=True)
        return Held(gathered.content, half)

    def keep(self, name: str, held: Held) -> None:
        assert held.file is not None
        path = self._path(name)
        try:
            os.replace(held.file, path)
            sync_directory(self.directory)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from None

    def discard(self, held: Held) -> None:
        if held.file is not None:
            held.file.unlink(missing_ok=True)

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


class Gathered:
    """A packet that is put together while its chunks pass by.

    Room is asked for once, for the longest that may come; what is never written to is never taken
    from the machine.
    """

    def __init__(self, max_bytes: int) -> None:
        self._room = room_for(max_bytes)
        self._length = 0

    @property
    def content(self) -> memoryview:
        return self._room[: self._length].toreadonly()

    def passing(self, chunks: Iterable[Piece]) -> Iterator[Piece]:
        for chunk in chunks:
            end = self._length + len(chunk)
            if end > len(self._room):
                raise ModelError(f"packet is longer than the {len(self._room)} bytes it may have")
            self._room[self._length : end] = chunk
            self._length = end
            yield chunk
