"""An operator reads lines: few, aligned, and safe whatever a site wrote into them."""

from __future__ import annotations

import io
import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from metis.config import load
from metis.core.errors import ConfigError
from metis.journal.file import Record
from metis.journal.membership import Attendance
from metis.service.logs import Level, Log, Style
from metis.simulation.run import run

FAULTS = Path(__file__).parents[2] / "examples" / "faults.toml"
NOON = 1_800_014_400.25  # 2027-01-15 12:00:00.25 UTC
NASTY = "\x1b[2J\x1b]0;owned\x07 \r\n\x7f\x9b31m \u202etxt.exe\u2028 \ud800"


@pytest.fixture(autouse=True)
def _at_greenwich(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def lines(*records: Record, style: Style = "text", level: Level = "info") -> list[str]:
    stream = io.StringIO()
    log = Log(stream, style, level, clock=lambda: NOON)
    for record in records:
        log(record)
    assert stream.getvalue() == "" or stream.getvalue().endswith("\n")
    return stream.getvalue().split("\n")[:-1]


def of(kind: str, **fields: Any) -> Record:
    return {"kind": kind, "at": 3.5, **fields}


def join(learner: str) -> Record:
    return of("join", learner=learner, num_examples=120, steps_per_epoch=4, group="fast")


def task(number: int, learner: str) -> Record:
    return of("task", task=number, learner=learner, version=2, bytes_down=10)


def version(number: int, **scores: float | None) -> Record:
    folds: list[Record] = [
        {"learner": name, "score": value, "missing": []} for name, value in scores.items()
    ]
    return of("version", version=number, committed_steps=40, folds=folds)


FAIL = of("fail", learner="site-b", task=7, reason="CUDA out of memory")
REFUSE = of("refuse", learner="site-b", task=7, reason="CUDA out of memory")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """A run in which a learner crashes, comes back, and another withdraws."""
    return run(load(FAULTS, horizon={"seconds": 270})).records


# ---- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (of("run", policy="dvw"), "info     a new federation begins, policy dvw"),
        (of("start", recovered_events=0), "info     controller started"),
        (
            of("start", recovered_events=120, wall_recovery_seconds=0.314),
            "info     controller started, took up 120 events in 0.31 s",
        ),
        (join("site-a"), "info     site-a joined: 120 examples, group fast"),
        (of("leave", learner="site-a", withdraw=False), "info     site-a left"),
        (
            of("leave", learner="site-a", withdraw=True),
            "info     site-a left and withdrew its model",
        ),
        (version(3, a=0.5, b=0.75), "info     version 3: a, b, scores 0.5000 to 0.7500"),
        (version(3, a=0.5), "info     version 3: a, score 0.5000"),
        (version(3, a=None, b=None), "info     version 3: a, b"),
        (version(3), "info     version 3: nobody's update"),
        (
            of("refuse", learner="a", task=7, reason="late"),
            "warning  a, task 7 refused: late",
        ),
        (
            of("audit", what="handshake refused", who="site-x", reason="wrong layout"),
            "warning  audit: handshake refused: site-x: wrong layout",
        ),
        (of("test", version=3, score=0.81234, loss=0.5), "info     version 3 tested: 0.8123"),
        (of("end", reason="versions"), "info     the federation ended: versions"),
    ],
)
def test_a_record_becomes_a_short_line(record: Record, expected: str) -> None:
    assert lines(record) == [f"2027-01-15 12:00:00  {expected}"]


def test_many_folds_are_named_in_part() -> None:
    [line] = lines(version(3, **{f"site-{number}": None for number in range(10)}))

    assert line.endswith(
        "site-0, site-1, site-2, site-3, site-4, site-5, site-6, site-7 and 2 more"
    )


def test_text_has_the_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-5")
    time.tzset()

    [line] = lines(of("end", reason="versions"))

    assert line.startswith("2027-01-15 17:00:00  ")


def test_a_timeout_names_the_learner_whose_number_it_was() -> None:
    asked = of("evaluate", evaluation=4, judge="site-b", learner="site-a", task=9)

    told = lines(
        join("site-a"),
        task(7, "site-a"),
        asked,
        of("task-expired", task=7),
        of("evaluation-expired", evaluation=4),
        level="warning",
    )

    assert [line[21:] for line in told] == [
        "warning  site-a was silent too long: the lease of task 7 ran out",
        "warning  site-b did not score task 9 in time",
    ]


def test_a_timeout_of_what_was_answered_is_not_told() -> None:
    arrive = of("arrive", learner="site-a", task=7, num_steps=4, bytes_up=9)

    assert lines(task(7, "site-a"), arrive, of("task-expired", task=7)) == []


def test_a_learner_that_comes_back_joins_again() -> None:
    assert lines(join("site-a"), join("site-a"))[1].endswith(
        "site-a joined again: 120 examples, group fast"
    )


def test_a_failure_is_told_once() -> None:
    told = lines(task(7, "site-b"), FAIL, REFUSE)

    assert [line[21:] for line in told] == ["error    site-b failed task 7: CUDA out of memory"]


def test_a_failure_after_the_lease_is_told_as_the_refusal() -> None:
    told = lines(of("refuse", learner="c", task=1, reason="late"), FAIL, REFUSE)

    assert [line[21:30] for line in told] == ["warning  ", "warning  "]


def test_a_traceback_stands_below_with_the_name_of_its_learner() -> None:
    shared = {**FAIL, "traceback": 'Traceback:\n  File "app.py", line 3\n\traise Boom\nBoom'}

    told = lines(task(7, "site-b"), shared, REFUSE)

    assert told[0].endswith("error    site-b failed task 7: CUDA out of memory")
    assert told[1:] == [
        " " * 30 + "site-b | Traceback:",
        " " * 30 + 'site-b |   File "app.py", line 3',
        " " * 30 + "site-b |     raise Boom",
        " " * 30 + "site-b | Boom",
    ]


def test_a_traceback_is_shown_even_if_it_comes_too_late_to_count() -> None:
    told = lines({**FAIL, "traceback": "Boom"})

    assert told[1:] == [" " * 30 + "site-b | Boom"]


def test_what_the_level_is_below_is_left_out() -> None:
    told = (join("a"), task(7, "site-b"), FAIL, of("refuse", learner="a", task=1, reason="late"))

    found = {level: len(lines(*told, level=level)) for level in ("debug", "info", "warning")}

    assert found == {"debug": 4, "info": 3, "warning": 2}
    assert len(lines(*told, level="error")) == 1


def test_a_whole_run_can_be_read(records: list[Record]) -> None:
    told = [line[21:] for line in lines(*records)]

    assert told[0] == "info     a new federation begins, policy sync-dvw"
    assert "warning  learner-02 was silent too long: the lease of task 12 ran out" in told
    assert "info     learner-02 joined again: 142 examples, group fast" in told
    assert "info     learner-01 left and withdrew its model" in told
    assert told[-1] == "info     the federation ended: seconds"
    assert len(told) < len(records) / 10


# ---- JSON ---------------------------------------------------------------------------------------


def test_every_record_of_a_run_that_is_told_is_one_json_object(records: list[Record]) -> None:
    told = [json.loads(line) for line in lines(*records, style="json", level="debug")]

    assert len(told) > len(records) / 2
    for line in told:
        assert list(line)[:4] == ["ts", "level", "event", "at"]
        assert line["ts"] == "2027-01-15T12:00:00.250Z"
    versions = [line for line in told if line["event"] == "version"]
    assert versions[2]["folded"] == ["learner-03", "learner-05", "learner-01", "learner-04"]
    assert versions[2]["missing_judges"] == ["learner-02"]
    [expired] = [line for line in told if line["event"] == "task-expired"]
    assert expired["learner"] == "learner-02"
    assert expired["level"] == "warning"


def test_a_traceback_is_a_field_of_its_json_line() -> None:
    [line] = lines(task(7, "site-b"), {**FAIL, "traceback": "one\ntwo"}, REFUSE, style="json")

    assert json.loads(line)["traceback"] == "one\ntwo"


def test_json_has_null_for_what_is_not_a_number() -> None:
    [line] = lines(of("test", version=3, score=float("nan"), loss=float("inf")), style="json")

    assert json.loads(line, parse_constant=pytest.fail)["score"] is None


# ---- what came from far away --------------------------------------------------------------------


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "record",
    [
        of("refuse", learner=NASTY, task=7, reason=NASTY),
        of("audit", what="refused", who=NASTY, reason=NASTY),
        {**FAIL, "learner": NASTY, "reason": NASTY, "traceback": NASTY},
        {**join(NASTY), "group": NASTY},
        version(3, **{NASTY: 0.5}),
        of("end", reason=NASTY),
    ],
    ids=lambda record: record["kind"],
)
def test_no_control_character_reaches_the_terminal(record: Record, style: Style) -> None:
    text = lines(record, style=style)

    assert text
    for line in text:
        bad = {c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert bad == set()


def test_what_was_escaped_can_still_be_told_apart() -> None:
    [line] = lines(of("refuse", learner="Zürich", task=7, reason="\x1b[2J\u202e"))

    assert line.endswith(r"Zürich, task 7 refused: \x1b[2J\u202e")


def test_a_long_story_is_cut() -> None:
    shared = {**FAIL, "reason": "r" * 9000, "traceback": "\n".join(["t" * 9000] * 5000 + ["Boom"])}

    told = lines(shared)

    assert len(told) == 62
    assert max(map(len, told)) < 700
    assert told[1].endswith("site-b | ... (4941 lines before)")
    assert told[-1].endswith("site-b | Boom")


# ---- the stream ---------------------------------------------------------------------------------


def test_a_stream_that_knows_no_umlaut_gets_the_line_all_the_same() -> None:
    raw = io.BytesIO()
    log = Log(io.TextIOWrapper(raw, encoding="ascii"), clock=lambda: NOON)

    log(of("leave", learner="Zürich", withdraw=False))

    assert raw.getvalue().endswith(b"Z\\xfcrich left\n")


def test_a_log_that_cannot_be_written_does_not_stop_the_federation() -> None:
    stream = io.StringIO()
    log = Log(stream)
    stream.close()

    log(join("a"))

    assert log.num_lost == 1


def test_a_full_disk_does_not_stop_the_federation() -> None:
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115 (closing it fails too)
    log = Log(full)

    log(join("a"))

    assert log.num_lost == 1
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_an_unknown_style_or_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown log style 'jsno'; did you mean 'json'"):
        Log(io.StringIO(), "jsno")
    with pytest.raises(ConfigError, match=r"unknown log level 'loud' \(known: debug, error, info"):
        Log(io.StringIO(), level="loud")


# ---- after a crash ------------------------------------------------------------------------------


def test_a_new_process_knows_whose_lease_runs_out() -> None:
    stream = io.StringIO()
    log = Log(stream, clock=lambda: NOON)

    log(of("start", recovered_events=0, members=["site-a"], tasks=[[7, "site-a"]]))
    stream.truncate(0)
    stream.seek(0)
    log(of("task-expired", task=7))

    assert stream.getvalue()[21:] == (
        "warning  site-a was silent too long: the lease of task 7 ran out\n"
    )


def test_attendance_agrees_with_the_run_it_heard(records: list[Record]) -> None:
    attendance = Attendance()

    for record in records:
        attendance.note(record)

    assert attendance.members == {f"learner-0{number}" for number in range(2, 7)}
    assert attendance.known == attendance.members | {"learner-01"}
    assert len(attendance.tasks) <= 5
    assert len(attendance.evaluations) <= 20
