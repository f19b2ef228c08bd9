"""A journal that another process writes, read as it grows."""

from __future__ import annotations

import json
from pathlib import Path

from metis.journal.file import Listener


class Follower:
    """Tells a listener each record of a journal once, soon after it was written.

    The file may not be there yet. A run that is taken up again first cuts its journal back to a
    checkpoint; the records that are written anew are then told once more.
    """

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path = path
        self._listener = listener
        self._read = 0  # bytes

    def look(self) -> None:
        """Tell what has been written since the last look."""
        try:
            file = open(self._path, "rb")  # noqa: SIM115 (closed below)
        except OSError:
            return
        with file:
            self._read = min(self._read, self._path.stat().st_size)
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # the rest is yet to be written
                    return
                self._read += len(line)
                try:
                    record = json.loads(line)
                except ValueError:  # whoever reads the journal in earnest will complain
                    return
                self._listener(record)
