"""What a site must not forget, in a file that outlives a crash."""

from __future__ import annotations

from pathlib import Path

from metis.core.errors import JournalError
from metis.core.stored import VALUES
from metis.live.line import Delivery
from metis.live.site import Memory
from metis.store.atomic import sync_directory
from metis.store.pack import Names, read_packed, write_packed

_FILE = "memory.safetensors"
_NAMES = Names({**VALUES, "site-memory": Memory, "delivery": Delivery})


class MemoryFile:
    """The memory of one learner in one federation. What another one left is set aside."""

    def __init__(self, directory: Path, federation: str, learner: str) -> None:
        self._path = directory / _FILE
        self._of = {"federation": federation, "learner": learner}

    def read(self) -> Memory:
        if not self._path.exists():
            return Memory()
        found = read_packed(self._path, _NAMES)
        if not isinstance(found, dict) or not isinstance(found.get("memory"), Memory):
            raise JournalError(f"{self._path}: is not the memory of a site")
        if {name: found.get(name) for name in self._of} != self._of:
            self._path.replace(self._path.with_suffix(".old"))
            return Memory()
        memory: Memory = found["memory"]
        return memory

    def keep(self, memory: Memory) -> None:
        write_packed(self._path, {**self._of, "memory": memory}, _NAMES)
        sync_directory(self._path.parent)
