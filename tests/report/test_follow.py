"""A journal of another process is told record by record, whatever moment it is looked at."""

from __future__ import annotations

import json
from pathlib import Path

from metis.journal.file import Record
from metis.journal.follow import Follower


def line(number: int) -> str:
    return json.dumps({"kind": "version", "version": number}) + "\n"


def test_each_record_is_told_once_and_half_a_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    told: list[Record] = []
    follower = Follower(path, told.append)

    follower.look()
    assert told == []  # it is not there yet

    path.write_text(line(1) + line(2) + line(3)[:9])
    follower.look()
    follower.look()
    assert [record["version"] for record in told] == [1, 2]

    path.write_text(line(1) + line(2) + line(3))
    follower.look()
    assert [record["version"] for record in told] == [1, 2, 3]


def test_a_journal_that_is_cut_back_is_followed_from_there(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    told: list[Record] = []
    follower = Follower(path, told.append)
    path.write_text(line(1) + line(2) + line(3))
    follower.look()

    path.write_text(line(1))  # as a run does that is taken up again
    follower.look()
    path.write_text(line(1) + line(4))
    follower.look()

    assert [record["version"] for record in told] == [1, 2, 3, 4]


def test_what_is_no_record_ends_it_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    told: list[Record] = []
    path.write_text(line(1) + "what is this?\n" + line(2))

    Follower(path, told.append).look()

    assert [record["version"] for record in told] == [1]
