"""The benchmarks run and say what they should; how fast, only a quiet machine can tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def measured(script: str, out: Path, *more: str) -> dict[str, Any]:
    """Return what a benchmark prints, which must be what it writes."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            ROOT / "benchmarks" / script,
            "--quick",
            "--out",
            out,
            *more,
        ],
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


def test_a_simulation_is_timed_beside_a_plain_loop(tmp_path: Path) -> None:
    found = measured("simulate.py", tmp_path / "w1.json", "--workload", "w1", "--examples", "100")

    (pair,) = found["pairs"]
    ratio = pair["simulated"]["samples_per_second"] / pair["reference"]["samples_per_second"]
    assert found["ratio"] == {"median": ratio, "low": ratio, "high": ratio}
    assert found["rounds_per_second"]["median"] * 1000 == pytest.approx(
        found["samples_per_second"]["median"]
    )


def test_the_cost_of_a_learner_is_timed_as_they_become_many(tmp_path: Path) -> None:
    found = measured("scaling.py", tmp_path / "s.json", "--plot", str(tmp_path / "s.png"))

    rows = [(row["learners"], row["asked"], row["engine"]) for row in found["rows"]]
    assert rows == [
        (10, "auto", "stack"),
        (10, "loop", "loop"),
        (30, "auto", "stack"),
        (30, "loop", "loop"),
    ]
    assert all(row["peak_memory_mib"] > 50 for row in found["rows"])
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_codecs_are_timed_and_their_packets_are_as_long_as_the_formulas_say(
    tmp_path: Path,
) -> None:
    found = measured("codecs.py", tmp_path / "codecs.json")

    assert len(found["speed"]) == 10
    for row in found["speed"]:
        is_ternary = row["coding"] is not None
        assert row["parameters"] == 1_690_046
        assert row["encode_met"] == (row["encode_mb_per_second"]["median"] >= 300)
        assert row["decode_met"] == (row["decode_mb_per_second"]["median"] >= 1000)
        assert ("decode_sparse_mb_per_second" in row) == is_ternary
    for row in found["sizes"]:
        assert row["ratio"] == 4 * 1_690_046 / row["bytes"]
        if row["coding"] is None:
            assert row["bytes"] == row["formula_bytes"]
        elif (row["update"], row["coding"]) == ("random", "golomb"):
            assert row["bytes"] == pytest.approx(row["formula_bytes"], rel=0.01)
            assert row["entropy_bits"] < row["bits_per_position"] < 1.01 * row["entropy_bits"]
    (averaged,) = found["averaging"]
    assert averaged["largest_difference"] < 1e-6


def test_indices_are_written_by_other_coders_too(tmp_path: Path) -> None:
    found = measured("codecs.py", tmp_path / "compare.json", "--compare")

    sizes = {(row["update"], row["coder"]): row["bytes"] for row in found["compare"]}
    assert set(found["missing"]) <= {"zstandard", "constriction"}
    assert len(sizes) == 26 - 8 * ("zstandard" in found["missing"]) - 4 * (
        "constriction" in found["missing"]
    )
    assert sizes["random", "Metis, golomb"] < sizes["random", "varint gaps, zlib 6"]
    assert sizes["random", "4-byte indices"] == sizes["real", "4-byte indices"] == 4 * 16_894


def test_a_peer_that_is_not_installed_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    peers = ROOT / "benchmarks" / "peers.py"
    more = ["--venv", str(tmp_path), "--framework", "pfl", "--workload", "w1"]
    command = [sys.executable, str(peers), *more]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
