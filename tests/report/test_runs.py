from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metis.core.errors import JournalError
from metis.journal.file import Record
from metis.report.runs import Run, curve, read_run, seconds_to, series_of, target_score

RunOf = Callable[..., Run]


def test_a_run_is_read_with_its_summary(run_of: RunOf) -> None:
    run = run_of("sync-dvw", seed=3)
    assert run.name == "sync-dvw-3"
    assert run.summary["ended"] == "seconds"
    assert run.summary["versions"] > 100
    assert run.groups["learner-02"] == "slow"


def test_an_interrupted_run_is_read_as_far_as_it_came(run_of: RunOf) -> None:
    run = run_of(ended=False)
    path = run.directory / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"steps","at":12')
    again = read_run(run.directory)
    assert again.summary["ended"] is None
    assert again.records == run.records


def test_a_directory_without_a_journal_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"holds no journal\.jsonl"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no records"),
        ('{"kind":"run","at', "holds no records"),
        ("not json\n", r"journal\.jsonl:1: not a journal record"),
        ('{"kind":"join","at":0,"wall_seconds":0}\n', "begins with 'join' instead of 'run'"),
        ('{"kind":"run","at":0,"wall_seconds":0}\n', "lacks dataset, learners, parameters"),
    ],
)
def test_a_damaged_journal_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "journal.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(JournalError, match=message):
        read_run(tmp_path)


def test_a_record_that_lacks_a_field_is_named_by_its_line(run_of: RunOf) -> None:
    run = run_of(seconds=5)
    path = run.directory / "journal.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind":"steps","at":9,"wall_seconds":1}\n')
    with pytest.raises(JournalError, match=rf":{len(run.records) + 1}: 'steps' .*'samples'"):
        read_run(run.directory)


def test_a_learner_that_lacks_a_field_is_a_damaged_journal(run_of: RunOf) -> None:
    run = run_of(seconds=5)
    first = {**run.records[0], "learners": [{"learner": "a"}]}
    path = run.directory / "journal.jsonl"
    path.write_text(json.dumps(first) + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match=":1: 'run' record is damaged"):
        read_run(run.directory)


def test_a_long_journal_is_read_in_seconds(
    journal_of: Callable[..., list[Record]], tmp_path: Path
) -> None:
    records = journal_of("async-dvw", seconds=1600.0, num_learners=8)
    assert len(records) > 100_000
    lines = (json.dumps(record) for record in records)
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    started = time.process_time()
    curve(read_run(tmp_path))
    assert time.process_time() - started < 5.0


def test_runs_that_differ_in_their_seed_are_one_series(run_of: RunOf) -> None:
    runs = [run_of(policy, seed=seed) for policy in ("sync-dvw", "fedasync") for seed in (1, 2)]
    series = series_of(runs)
    assert [(one.label, len(one.runs)) for one in series] == [("sync-dvw", 2), ("fedasync", 2)]


def test_runs_with_the_same_policy_and_seed_stand_for_themselves(run_of: RunOf) -> None:
    runs = [run_of("sync-dvw", name="slow-rate"), run_of("sync-dvw", name="quick-rate")]
    labels = [one.label for one in series_of(runs)]
    assert labels == ["sync-dvw (slow-rate)", "sync-dvw (quick-rate)"]


def test_one_policy_on_two_datasets_makes_two_series(run_of: RunOf) -> None:
    runs = [
        run_of("sync-dvw", dataset=data, seed=seed, name=f"{data}-{seed}")
        for data in ("digits", "iris")
        for seed in (1, 2)
    ]
    labels = [one.label for one in series_of(runs)]
    assert [label.split(",")[0] for label in labels] == ["sync-dvw (digits", "sync-dvw (iris"]


def test_a_curve_knows_what_was_spent_until_each_test(run_of: RunOf) -> None:
    run = run_of("sync-dvw")
    first, *_, last = curve(run)
    assert (first.seconds, first.samples) == (0.0, 0)
    assert last.samples == run.summary["samples_trained"]
    total = run.summary["bytes_up"] + run.summary["bytes_down"]
    assert last.megabytes == pytest.approx(total / 1e6)


def test_a_curve_lasts_until_its_run_ends(run_of: RunOf) -> None:
    run = run_of("sync-dvw")
    late: Record = {"kind": "end", "at": 500.0, "reason": "seconds", "wall_seconds": 9.0}
    longer = Run(run.name, run.directory, [*run.records[:-1], late], run.summary)
    *_, tested, last = curve(longer)
    assert (tested.seconds, last.seconds) == (120.0, 500.0)
    assert last.score == tested.score


def test_the_target_is_near_the_best_final_score_and_timed(run_of: RunOf) -> None:
    run = run_of("sync-dvw")
    target = target_score(series_of([run]))
    assert target is not None
    assert target == pytest.approx(0.95 * run.summary["final_score"])
    reached = seconds_to(run, target)
    assert reached is not None
    assert 0 < reached < 120
    assert seconds_to(run, 2.0) is None


def test_scores_on_different_data_have_no_common_target(run_of: RunOf) -> None:
    runs = [run_of("sync-dvw"), run_of("fedasync", dataset="iris")]
    assert target_score(series_of(runs)) is None
