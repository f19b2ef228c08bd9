"""Journals that a test wrote or changed, with hashes that fit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from metis.journal.file import FIRST, Record, link_to


def linked(records: Iterable[Record]) -> list[Record]:
    """Return records, each with the hash of the one before it."""
    found, previous = [], FIRST
    for record in records:
        found.append({**record, "wall_previous": previous})
        previous = link_to(line_of(found[-1]))
    return found


def line_of(record: Record) -> bytes:
    """Return a record as it is written."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def write_linked(path: Path, records: Iterable[Record]) -> None:
    """Write a journal whose hashes fit."""
    path.write_bytes(b"".join(map(line_of, linked(records))))
