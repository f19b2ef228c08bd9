"""The journal: every event survives it, half a line does not, and damage is named by its line."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.core.errors import JournalError, RunError
from metis.core.events import (
    Arrived,
    EvaluationExpired,
    Event,
    Failed,
    Joined,
    Left,
    Scored,
    TaskExpired,
)
from metis.core.types import ClassCounts, Counts, ErrorSums, LearnerId, Profile, Update, read_only
from metis.journal.file import (
    Journal,
    Record,
    counts_record,
    event_record,
    read_journal,
    record_counts,
    record_event,
)
from metis.journal.records import ArriveRecord, as_fields, kind_of

A = LearnerId("learner-01")
WEIGHTS = read_only(np.array([1.0, 2.0]))
MATRIX = ClassCounts(np.array([[3, 0, 1], [0, 5, 0], [0, 0, 0]]))
SUMS = ErrorSums(7, 1.25, 0.1, -3.0, 1e300)

EVENTS: list[Event] = [
    Joined(Profile(A, num_examples=95, steps_per_epoch=6, group="fast")),
    Left(A),
    Left(A, withdraw=True),
    Arrived(Update(A, 3, WEIGHTS, base_version=2, num_examples=95, num_steps=24)),
    Arrived(Update(A, 3, WEIGHTS, 2, 95, 24, seconds=0.1 + 0.2, counts=MATRIX)),
    Arrived(Update(A, 3, WEIGHTS, 2, 95, 24, seconds=1.0, counts=SUMS)),
    Failed(A, 3, 'its loss is "nan" — ünïcode'),
    Scored(9, MATRIX),
    Scored(9, SUMS),
    Scored(9, None),
    TaskExpired(3),
    EvaluationExpired(9),
]


def stored_weights(record: ArriveRecord) -> Any:
    assert record.task == 3
    return WEIGHTS


def same(one: object, other: object) -> bool:
    """Equality that looks into arrays, which numpy's own does not give as one answer."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if type(one) is type(other) and hasattr(one, "__dataclass_fields__"):
        names = [f.name for f in fields(one)]  # type: ignore[arg-type]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return type(one) is type(other) and one == other


def lines(*records: Record) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_every_event_comes_back_from_its_record(event: Event) -> None:
    more = {"bytes_up": 8} if isinstance(event, Arrived) else {}
    told = event_record(event, **more)
    record = json.loads(json.dumps({"kind": kind_of(told), **as_fields(told)}))

    assert same(record_event(record, stored_weights), event)


def test_no_kind_of_event_was_forgotten() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


def test_records_of_other_things_are_no_events() -> None:
    for kind in ("run", "task", "steps", "evaluate", "version", "refuse", "test", "end", "new"):
        assert record_event({"kind": kind}, stored_weights) is None


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=4, max_size=4), min_size=4, max_size=4))
def test_a_confusion_matrix_comes_back_cell_by_cell(rows: list[list[int]]) -> None:
    found = record_counts(json.loads(json.dumps(counts_record(ClassCounts(np.array(rows))))))

    assert isinstance(found, ClassCounts)
    assert found.matrix.tolist() == rows
    assert found.matrix.dtype == np.int64


def test_a_confusion_matrix_lists_only_its_cells_that_count() -> None:
    record = counts_record(ClassCounts(np.zeros((62, 62), dtype=np.int64)))

    assert record == {"classes": 62, "cells": [], "counts": []}
    assert np.array_equal(record_counts(record).matrix, np.zeros((62, 62)))  # type: ignore[union-attr]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_the_sums_of_a_regression_come_back_to_the_last_bit(sums: list[float]) -> None:
    counts: Counts = ErrorSums(3, *sums)

    assert record_counts(json.loads(json.dumps(counts_record(counts)))) == counts


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "join", "learner": "a"},
        {"kind": "arrive"},
        {"kind": "score", "evaluation": 1, "counts": 5},
        {"kind": "score", "evaluation": 1, "counts": {"classes": 2, "cells": [9], "counts": [1]}},
        {"kind": "score", "evaluation": 1, "counts": {"num_examples": 1, "more": 2}},
    ],
    ids=["join", "arrive", "number", "cell outside", "unknown sum"],
)
def test_a_record_that_lacks_what_it_should_tell_is_refused(record: Record) -> None:
    with pytest.raises(JournalError, match=f"'{record['kind']}' record is damaged"):
        record_event(record, stored_weights)


# ---- the file ---------------------------------------------------------------------------------


def test_records_are_one_object_a_line_with_the_real_clock_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.write("test", 1.5, version=3, loss=None, reason="ünïcode\nnew line")
    journal.close()

    (line,) = path.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("wall_seconds") >= 0
    assert record.pop("wall_previous") == ""  # it is the first
    assert record == {
        "kind": "test",
        "at": 1.5,
        "version": 3,
        "loss": None,
        "reason": "ünïcode\nnew line",
    }
    assert [r["at"] for r in read_journal(path)] == [1.5]


def test_listeners_are_told_of_every_record_also_without_a_file() -> None:
    one: list[Record] = []
    other: list[Record] = []
    journal = Journal(None, (one.append, other.append))

    journal.write("end", 2.0, reason="versions")
    journal.rewind(journal.position())
    journal.close()

    assert one == other
    assert [record["kind"] for record in one] == ["end"]


def test_a_float_is_written_so_that_it_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for value in (0.1 + 0.2, 1e-323, math.pi * 1e200):
        journal.write("x", value)
    journal.close()

    assert [r["at"] for r in read_journal(path)] == [0.1 + 0.2, 1e-323, math.pi * 1e200]


def test_half_a_last_line_is_not_a_record(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = lines({"kind": "a"}, {"kind": "b"})
    first = len(lines({"kind": "a"}))

    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert [r["kind"] for r in read_journal(path)] == ["a"]
    path.write_bytes(whole)
    assert [r["kind"] for r in read_journal(path)] == ["a", "b"]
    path.write_bytes(b"")
    assert list(read_journal(path)) == []


@pytest.mark.parametrize(
    "damage", [b'{"kind": "b"', b"\x00\x00\x00", b"\xff\xfe", b"[]", b"3", b'"kind"', b"{}", b""]
)
def test_a_damaged_line_in_the_middle_is_named_by_its_number(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines({"kind": "a"}) + damage + b"\n" + lines({"kind": "c"}))
    found = read_journal(path)

    assert next(found)["kind"] == "a"
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: not a journal record"):
        next(found)


def test_a_journal_that_is_not_there_or_not_a_file_is_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"gone\.jsonl: No such file"):
        list(read_journal(tmp_path / "gone.jsonl"))
    with pytest.raises(JournalError, match="directory"):
        list(read_journal(tmp_path))
    with pytest.raises(RunError, match=r"cannot write .*journal\.jsonl: No such file"):
        Journal(tmp_path / "nowhere" / "journal.jsonl")


def test_a_rewound_journal_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.write("a", 1.0)
    position = journal.position()
    journal.write("lost", 2.0)
    journal.close()

    resumed = Journal(path)
    resumed.rewind(position)
    resumed.write("b", 3.0)
    resumed.close()

    assert [r["kind"] for r in read_journal(path)] == ["a", "b"]


def test_seconds_worked_are_counted_on_after_a_rewind(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.rewind((0, 1000.0))
    journal.write("a", 0.0)
    num_bytes, seconds = journal.position()
    journal.close()

    assert num_bytes == path.stat().st_size
    assert 1000.0 <= seconds < 1100.0
    assert 1000.0 <= next(read_journal(path))["wall_seconds"] < 1100.0


def test_a_position_can_be_read_by_others_at_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(100):
        journal.write("a", float(number))
    num_bytes, _ = journal.position()

    assert path.stat().st_size == num_bytes
    assert len(list(read_journal(path))) == 100
    journal.close()


def test_a_journal_shorter_than_its_checkpoint_remembers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines({"kind": "a"}))
    journal = Journal(path)

    with pytest.raises(JournalError, match="shorter than the 1000 bytes"):
        journal.rewind((1000, 0.0))

    journal.close()
    assert path.read_bytes() == lines({"kind": "a"})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_told_plainly() -> None:
    complaint = "cannot write /dev/full: No space left"
    journal = Journal(Path("/dev/full"))
    with pytest.raises(RunError, match=complaint):
        journal.write("a", 0.0, reason="more than a buffer holds" * 10_000)
    journal.write("a", 0.0)  # waits in the buffer
    with pytest.raises(RunError, match=complaint):
        journal.close()
    journal.close()
