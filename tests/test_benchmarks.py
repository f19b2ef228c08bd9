"""The benchmarks run and say what they should; how fast, only a quiet machine can tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def measured(script: str, out: Path) -> dict[str, Any]:
    """Return what a benchmark prints, which must be what it writes."""
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "benchmarks" / script, "--quick", "--out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert json.loads(out.read_text()) == found
    assert found["machine"]["python"]
    return found


def test_the_agenda_is_timed_in_each_pacing(tmp_path: Path) -> None:
    rows = measured("agenda.py", tmp_path / "agenda.json")["rows"]

    assert [row["pacing"].partition(",")[0] for row in rows] == ["async", "sync", "sync", "async"]
    for row in rows:
        assert row["learners"] == 1_000
        assert row["events"] >= 1_000
        assert row["events_per_second"] * row["seconds"] > 0.999 * row["events"]
        assert row["ratio_to_reference"] > 1.0


def test_a_community_update_is_timed_with_and_without_the_cache(tmp_path: Path) -> None:
    rows = measured("community.py", tmp_path / "community.json")["rows"]

    assert {row["learners"] for row in rows} >= {10, 100}
    for row in rows:
        assert row["seconds_cached"] > 0
        assert row["seconds_without_cache"] > 0
        assert row["cached_to_copy"] > 0
