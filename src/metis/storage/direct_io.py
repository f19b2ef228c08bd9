"""Large files written past the system's cache, while they come in.

A cached write costs a copy and, on a machine that has not used that memory yet, far more; and all
that was cached must then be waited for. What goes straight to the disk does so while the rest is
still on its way. Where a file system will not have it, the cache it is.
"""

from __future__ import annotations

import os

import numpy as np

_BLOCK = 4096  # bytes; what goes past the cache begins and ends at the edge of one
_AT_ONCE = 8 << 20  # bytes; each time, other threads get between this one and its next step
_DIRECT = getattr(os, "O_DIRECT", 0)  # 0: not on this system


def room_for(num_bytes: int) -> memoryview:
    """Return memory that begins at the edge of a block. What is never written to is never taken."""
    space = np.empty(num_bytes + _BLOCK, np.uint8)
    edge = -space.ctypes.data % _BLOCK
    return space[edge : edge + num_bytes].data


class Growing:
    """A file that follows what grows in a room. The descriptor is somebody else's to close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_direct = False
        self._may_be_direct = _DIRECT != 0
        self._num_written = 0

    def follow(self, content: memoryview) -> None:
        """Write what has come, whole blocks of it, if it is enough to be worth it."""
        if len(content) - self._num_written < _AT_ONCE:
            return
        if self._may_be_direct and not self._is_direct:
            self._set_direct(True)
        self._write(_whole_blocks(content))

    def finish(self, content: memoryview) -> None:
        """Write the rest, and return when all of it is on disk."""
        if self._is_direct:
            self._write(_whole_blocks(content))
            self._set_direct(False)  # the end is where it is
        self._write(content)
        os.fsync(self._descriptor)

    def _write(self, content: memoryview) -> None:
        while left := content[self._num_written :]:
            try:
                self._num_written += os.write(self._descriptor, left)
            except OSError:
                if not self._is_direct:
                    raise
                self._may_be_direct = False
                self._set_direct(False)  # once more, with the cache: if it was not that, it fails

    def _set_direct(self, wanted: bool) -> None:
        import fcntl  # is there wherever O_DIRECT is

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            changed = flags | _DIRECT if wanted else flags & ~_DIRECT
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, changed)
            self._is_direct = wanted
        except OSError:
            self._may_be_direct = False
            if not wanted:
                raise


def _whole_blocks(content: memoryview) -> memoryview:
    return content[: len(content) - len(content) % _BLOCK]
