"""Reference journals: today's code writes them to the byte."""

from __future__ import annotations

import json

import pytest

from tests.golden import journals


@pytest.fixture(scope="module")
def kept() -> dict[str, list[str]]:
    return journals.kept()


@pytest.mark.parametrize("name", journals.names())
def test_a_reference_journal_is_written_to_the_byte(name: str, kept: dict[str, list[str]]) -> None:
    """If behaviour changes on purpose: `python -m tests.golden.journals`, and say why."""
    made = journals.journal_of(journals.config_of(name))

    for number, (line, reference) in enumerate(zip(made, kept[name], strict=False), 1):
        assert line == reference, f"record {number}"
    assert len(made) == len(kept[name])


def test_no_reference_journal_is_left_out_or_left_over(kept: dict[str, list[str]]) -> None:
    assert list(kept) == journals.names()


def test_the_reference_journals_have_every_kind_of_record_of_a_simulation(
    kept: dict[str, list[str]],
) -> None:
    records = (json.loads(line) for lines in kept.values() for line in lines if line[0] == "{")
    kinds = {record["kind"] for record in records}

    assert kinds >= {"join", "leave", "task", "steps", "arrive", "evaluate", "score", "version"}
    assert kinds >= {"evaluation-expired", "task-expired", "incident", "refuse", "test", "end"}


def test_the_base_config_has_every_key_written_out() -> None:
    """A key that is left out would take its default, which may change."""
    config = journals.config_of("async-dvw dense")
    text = (journals.FOLDER / "base.toml").read_text(encoding="utf-8")

    assert journals.missing_keys(text, config) == set()
