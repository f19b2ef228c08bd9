"""The benchmarks run and say what they should; how fast, only a quiet machine can tell."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from itertools import product
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


def test_latest_models_on_disk_are_weighed_against_those_in_memory(tmp_path: Path) -> None:
    found = measured("latest.py", tmp_path / "latest.json")

    assert found["memory"]["anonymous_bytes"] > 0.9 * found["memory"]["models_bytes"]
    assert found["disk"]["anonymous_bytes"] < found["memory"]["anonymous_bytes"]
    assert found["disk_to_memory_seconds"] > 0


def test_a_simulation_is_timed_beside_a_plain_loop(tmp_path: Path) -> None:
    found = measured("simulate.py", tmp_path / "w1.json", "--workload", "w1", "--examples", "100")

    (pair,) = found["pairs"]
    ratio = pair["simulated"]["samples_per_second"] / pair["reference"]["samples_per_second"]
    assert found["ratio"] == {"median": ratio, "low": ratio, "high": ratio}
    assert found["rounds_per_second"]["median"] * 1000 == pytest.approx(
        found["samples_per_second"]["median"]
    )


def test_networks_are_timed_with_and_without_kernels_of_their_own(tmp_path: Path) -> None:
    more = ("--workload", "kernels", "--examples", "100")
    found = measured("simulate.py", tmp_path / "kernels.json", *more)

    assert [row["model"] for row in found["rows"]] == ["cifar_cnn", "resnet50_cifar"]
    assert found["has_kernels"] is False  # on a CPU
    for row in found["rows"]:
        without = row["samples_per_second_without"]["median"]
        assert row["ratio"]["median"] == row["samples_per_second"]["median"] / without > 0


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


def tables_of(folder: Path, *names: str) -> dict[str, list[str]]:
    """Return the lines of some tables of docs/performance.md, made of the JSON in this folder."""
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    tables.DOCS = folder
    return {name: tables.TABLES[name]().splitlines() for name in names}


@pytest.fixture(scope="module")
def codecs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `results/codecs.json` is. It takes seconds to make, so it is made once."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "results").mkdir()
    measured("codecs.py", folder / "results" / "codecs.json")
    return folder


def codecs_found(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results" / "codecs.json").read_text())
    return found


def test_codecs_are_timed_with_every_coding_and_averaged(codecs_folder: Path) -> None:
    found = codecs_found(codecs_folder)

    timed = [(row["codec"], row["coding"], row["error_feedback"]) for row in found["speed"]]
    assert [case for case in timed if case[1]] == [
        ("stc", "auto", False),
        ("stc", "golomb", False),
        ("stc", "fixed", False),
        ("sstc", "auto", False),
        ("sstc", "golomb", False),
        ("sstc", "fixed", False),
        ("sstc", "auto", True),
    ]
    for row in found["speed"]:
        is_ternary = row["coding"] is not None
        assert row["parameters"] == 1_690_046
        assert row["encode_met"] == (row["encode_mb_per_second"]["median"] >= 300)
        assert row["decode_met"] == (row["decode_mb_per_second"]["median"] >= 1000)
        assert ("decode_sparse_mb_per_second" in row) == is_ternary
    (averaged,) = found["averaging"]
    assert averaged["largest_difference"] < 1e-6


def test_packets_are_as_long_as_the_formulas_say(codecs_folder: Path) -> None:
    found = codecs_found(codecs_folder)

    for row in found["sizes"]:
        assert row["ratio"] == 4 * 1_690_046 / row["bytes"]
        if row["coding"] is None:
            assert row["bytes"] == row["formula_bytes"]
        elif row["coding"] in ("golomb", "fixed"):
            assert row["to_formula"] == row["bytes"] / row["formula_bytes"]
            assert row["formula_met"] == (row["to_formula"] <= 1.03)
        else:
            assert "formula_bytes" not in row
    golomb = [r for r in found["sizes"] if (r["update"], r["coding"]) == ("random", "golomb")]
    assert [row["codec"] for row in golomb] == ["stc", "sstc"]
    for row in golomb:
        assert row["bytes"] == pytest.approx(row["formula_bytes"], rel=0.01)
        assert row["entropy_bits"] < row["bits_per_position"] < 1.01 * row["entropy_bits"]
    worst = max(row["to_formula"] for row in found["sizes"] if "to_formula" in row)
    assert found["targets"]["to_formula"] == {
        "worst": worst,
        "at_most": 1.03,
        "met": worst <= 1.03,
    }


def test_sizes_of_packets_have_the_papers_figures_and_every_coding(codecs_folder: Path) -> None:
    found = codecs_found(codecs_folder)

    rows = {(r["update"], r["codec"], r["coding"]): r for r in found["sizes"] if r["coding"]}
    codings = ("auto", "golomb", "fixed", "deflate")
    assert set(rows) == set(product(("random", "real"), ("stc", "sstc"), codings))
    for update, codec in product(("random", "real"), ("stc", "sstc")):
        size = {coding: rows[update, codec, coding]["bytes"] for coding in codings}
        golomb = rows[update, codec, "golomb"]
        assert size["auto"] <= min(size["golomb"], size["deflate"])
        for coding in ("auto", "deflate"):
            ratio = rows[update, codec, coding]["to_golomb_formula"]
            assert ratio == size[coding] / golomb["formula_bytes"]
    for coding in codings:
        row = rows["real", "sstc", coding]
        assert row["paper_conv_ratio"] == pytest.approx(103.2, abs=0.05)
        assert row["paper_conv_ratio_11_bits"] == pytest.approx(104.9, abs=0.05)
    assert rows["random", "stc", "auto"]["index_coding"] == "golomb"
    assert rows["real", "stc", "auto"]["index_coding"] == "deflate"


def test_what_is_measured_of_codecs_becomes_tables(codecs_folder: Path) -> None:
    made = tables_of(codecs_folder, "codecs-speed", "codecs-sizes", "codecs-averaging")

    num_lines = {name: len(lines) for name, lines in made.items()}
    assert num_lines == {"codecs-speed": 15, "codecs-sizes": 28, "codecs-averaging": 5}
    for lines in made.values():
        rows = [line for line in lines if line.startswith("|")]
        assert len({row.count("|") for row in rows}) == 1
        assert lines[-1].endswith(".")
    (auto,) = (row for row in made["codecs-sizes"] if row.startswith("| real | stc, auto"))
    assert auto.startswith("| real | stc, auto (deflate) | ")


def test_indices_are_written_by_other_coders_too(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()

    found = measured("codecs.py", tmp_path / "results" / "codecs-compare.json", "--compare")

    sizes = {(row["update"], row["coder"]): row["bytes"] for row in found["compare"]}
    assert set(found["missing"]) <= {"zstandard", "constriction"}
    assert len(sizes) == 22 - 4 * ("zstandard" in found["missing"]) - 2 * (
        "constriction" in found["missing"]
    )
    assert sizes["random", "Metis, auto"] == sizes["random", "Metis, golomb"]
    assert sizes["random", "Metis, golomb"] < sizes["random", "Metis, deflate"]
    assert sizes["real", "Metis, auto"] == sizes["real", "Metis, deflate"]
    assert sizes["real", "Metis, deflate"] < sizes["real", "Metis, golomb"]
    assert sizes["random", "4-byte indices"] == sizes["real", "4-byte indices"] == 4 * 16_894
    (lines,) = tables_of(tmp_path, "codecs-compare").values()
    assert sum(line.startswith(("| random |", "| real |")) for line in lines) == len(sizes)


def test_a_peer_that_is_not_installed_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    peers = ROOT / "benchmarks" / "peers.py"
    more = ["--venv", str(tmp_path), "--framework", "pfl", "--workload", "w1"]
    command = [sys.executable, str(peers), *more]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_cells_side_by_side_are_counted_with_and_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "bin" / "nvidia-cuda-mps-control"
    control.parent.mkdir()
    log = tmp_path / "log"
    control.write_text(f'#!/bin/sh\necho "$* $(cat)" >> {log}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{control.parent}{os.pathsep}{os.environ['PATH']}")
    results = ("--results", str(tmp_path / "cells"))

    found = measured("side_by_side.py", tmp_path / "found.json", *results)

    in_turns, at_once = (found[f"samples_per_second_{way}"] for way in ("in_turns", "with_mps"))
    assert log.read_text().split() == ["-d", "quit"]  # in one of both ways
    assert len(in_turns) == len(at_once) == 4
    expected = sum(at_once) / sum(in_turns)
    assert found["ratio"] == pytest.approx(expected, rel=0.01, abs=0.001)  # it is rounded
