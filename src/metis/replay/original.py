"""The journal that a replay is held against, record by record."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from metis.core.errors import JournalError
from metis.journal.file import FIRST, Record, link_to, read_lines
from metis.journal.records import ENVELOPE, FIELDS, KINDS, Declared, is_derived, misfits

_AS_JSON = json.JSONEncoder(separators=(",", ":")).encode
_END: tuple[bytes, Record | None] = (b"", None)
_SHOWN = 80  # characters of a value in an error

#: Which field numbers the records of a kind.
_NUMBERED_BY = {
    "task": "task",
    "steps": "task",
    "arrive": "task",
    "fail": "task",
    "refuse": "task",
    "task-expired": "task",
    "evaluate": "evaluation",
    "score": "evaluation",
    "evaluation-expired": "evaluation",
    "version": "version",
    "test": "version",
}


class OutOfRecordsError(Exception):
    """The replay makes a record after the last one of the journal."""

    def __init__(self, made: str) -> None:
        super().__init__(made)
        self.made = made


class Original:
    """Gives the records of a journal in turn, and compares them with those that a replay makes.

    Holds one record at a time. Whatever does not fit is a JournalError that names the line, the
    record and the field.
    """

    def __init__(self, path: Path, read: Callable[[Record], None] = lambda record: None) -> None:
        """`read` is given every record once it is found right."""
        self.path = path
        self.live = False
        self.line = 0  # of the record taken last
        self.counts: Counter[str] = Counter()
        self.present: dict[str, set[str]] = {}  # the fields that a record of a kind had
        self._records: Iterator[tuple[bytes, Record]] = read_lines(path)
        self._line, self._head = next(self._records, _END)
        self._link = FIRST  # what the next record should say of the line before it
        self._read = read
        self._last_at = 0.0

    def peek(self) -> Record | None:
        """Return the next record, which stays the next; None after the last."""
        return self._head

    def compare(self, made: Record) -> Record:
        """Take the next record, which must be this one. What only the clock decides may differ."""
        told = self._head
        if told is None:
            raise OutOfRecordsError(name_of(made))
        if told["kind"] != made["kind"]:
            raise self.ahead(f"where the replay makes {name_of(made)}")
        told = self.take()
        for name, mark in ENVELOPE.items():
            if is_derived(mark, self.live):
                self._equal(told, name, told[name], made[name])
        for one in FIELDS[KINDS[told["kind"]]]:
            if one.is_derived(self.live) or (not self.live and one.mark != "clock"):
                self._compare(one, told, made)
        self._read(told)
        return told

    def take(self) -> Record:
        """Take the next record, which must be one that the declaration allows, in its time."""
        told, line = self._head, self._line
        assert told is not None
        self._line, self._head = next(self._records, _END)
        self.line += 1
        kind, at = told["kind"], told.get("at")
        if told.get("wall_previous") != self._link:
            raise self.fault(
                f"{name_of(told)}: wall_previous is not the hash of the line before, "
                "which was changed, or taken out"
            )
        self._link = link_to(line)
        if kind not in KINDS:
            raise self.fault(f"there is no kind of record {kind!r}")
        for complaint in (
            *(f"it lacks {one}" for one in ENVELOPE if one not in told),
            *misfits(told),
        ):
            raise self.fault(f"{name_of(told)}: {complaint}")
        if not isinstance(at, int | float) or not self._last_at <= at < math.inf:
            raise self.fault(f"{name_of(told)}: at is {at}, the record before has {self._last_at}")
        self._last_at = at
        self.counts[kind] += 1
        self.present.setdefault(kind, set()).update(told)
        return told

    def fault(self, complaint: str) -> JournalError:
        """Return an error at the record taken last."""
        return JournalError(f"{self.path}, line {self.line}, {complaint}")

    def ahead(self, complaint: str) -> JournalError:
        """Return an error at the next record."""
        name = "" if self._head is None else f"{name_of(self._head)}: "
        return JournalError(f"{self.path}, line {self.line + 1}, {name}{complaint}")

    def _compare(self, one: Declared, told: Record, made: Record) -> None:
        if (one.name in told) != (one.name in made):
            has = "has" if one.name in told else "lacks"
            raise self.fault(f"{name_of(told)}: it {has} {one.name}, other than in the replay")
        if one.name not in told:
            return
        if one.rows is None:
            self._equal(told, one.name, told[one.name], made[one.name])
            return
        rows, others = told[one.name], made[one.name]
        if len(rows) != len(others):
            raise self.fault(
                f"{name_of(told)}: {one.name}: there are {len(rows)}, "
                f"the replay gives {len(others)}"
            )
        for row, other in zip(rows, others, strict=True):
            for inner in FIELDS[one.rows]:
                if inner.is_derived(self.live):
                    what = f"{inner.name} of {other['learner']}"
                    self._equal(told, what, row[inner.name], other[inner.name])

    def _equal(self, record: Record, what: str, told: Any, made: Any) -> None:
        if type(told) is type(made) and not isinstance(told, list | dict | float) and told == made:
            return
        one, other = _AS_JSON(told), _AS_JSON(made)
        if one != other:
            raise self.fault(
                f"{name_of(record)}: {what} is {one[:_SHOWN]}, the replay gives {other[:_SHOWN]}"
            )


def name_of(record: Record) -> str:
    """Return what an error calls a record, such as `version 7`."""
    kind = record["kind"]
    by = _NUMBERED_BY.get(kind)
    if by is None or by not in record:
        who = f" of {record['learner']}" if "learner" in record else ""
        return f"{kind}{who}"
    number = f"{by} {record[by]}"
    return number if by == kind or kind == "evaluate" else f"{kind} of {number}"
