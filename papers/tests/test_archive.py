"""All cells in one file: what is added, replaced and refused, and reports that read it."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from papers.tests.made_up import put, result, row, until

from metis.core.errors import RunError
from metis_papers import check, sstc, table1
from metis_papers.cells import Setting
from metis_papers.results import ARCHIVE, add, as_text, main, read_archive, read_results
from metis_papers.run_cells import finished
from metis_papers.study import Choice, Study

KEPT = Path(__file__).parents[1] / "results"
CELLS = (
    result("async-dvw", 0.5),
    result("fedasync", 0.4, seed=7),
    result("sync-fedavg", 0.9, study="sstc", variant="dense", row="mnist_by_writer"),
)


def test_the_same_cells_make_the_same_bytes_in_any_order_and_at_any_time(tmp_path: Path) -> None:
    for place, cells in (("one", CELLS), ("other", CELLS[::-1])):
        put(tmp_path / place, *cells)
        assert add(tmp_path / place, tmp_path / f"{place}.gz") == (3, 0)

    packed = (tmp_path / "one.gz").read_bytes()
    assert packed == (tmp_path / "other.gz").read_bytes()
    assert packed[4:8] == bytes(4)  # no time
    assert not packed[3]  # and no name
    assert read_archive(tmp_path / "one.gz") == sorted(CELLS, key=lambda one: one.name)


def test_a_cell_replaces_the_one_of_its_name_and_no_other(tmp_path: Path) -> None:
    put(tmp_path / "first", *CELLS)
    better = replace(CELLS[0], final_score=0.6)
    put(tmp_path / "second", better, result("sync-dvw", 0.3))
    add(tmp_path / "first", tmp_path / ARCHIVE)

    assert add(tmp_path / "second", tmp_path / ARCHIVE) == (1, 1)

    kept = {one.name: one for one in read_archive(tmp_path / ARCHIVE)}
    assert len(kept) == 4
    assert kept[better.name] == better
    assert kept[CELLS[1].name] == CELLS[1]


def test_a_report_says_the_same_of_cells_in_one_file_and_in_folders(tmp_path: Path) -> None:
    folders = put(tmp_path / "folders", *CELLS)
    packed = Setting(tmp_path / "packed")
    packed.out.mkdir()
    add(folders.out, packed.out / ARCHIVE)

    for study in (table1.STUDY, check.STUDY, sstc.STUDY):
        said = study.report(packed, Choice()).text
        assert said == study.report(folders, Choice()).text
    assert "0.5000" in table1.STUDY.report(packed, Choice()).text


def test_a_cell_in_a_folder_counts_before_the_kept_one_of_its_name(tmp_path: Path) -> None:
    put(tmp_path / "kept", CELLS[0])
    add(tmp_path / "kept", tmp_path / ARCHIVE)
    later = replace(CELLS[0], final_score=0.8)
    path = tmp_path / later.name / "cell.json"
    path.parent.mkdir(parents=True)
    path.write_text(as_text(later))

    assert read_results(tmp_path, ["table1"]) == [later]


def test_nothing_is_written_when_one_cell_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / ARCHIVE
    put(tmp_path / "good", CELLS[0])
    add(tmp_path / "good", archive)
    before = archive.read_bytes()
    put(tmp_path / "twice", CELLS[1], CELLS[1])
    put(tmp_path / "bad", CELLS[1], CELLS[2])
    next((tmp_path / "bad").rglob("cell.json")).write_text("{}")
    (tmp_path / "empty").mkdir()

    for folder, words in (
        ("twice", "are both of the cell table1/heterogeneous/powerlaw-3/fedasync-seed7"),
        ("bad", "is no cell of a table"),
        ("empty", "there is no cell.json in"),
    ):
        assert main(["add", str(tmp_path / folder), "--to", str(archive)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert words in said
    assert main(["add", str(tmp_path / "good"), "--to", str(tmp_path / "no" / "file.gz")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert archive.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "line", "text"])
def test_a_damaged_file_of_cells_is_refused_with_its_name(damage: str, tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVE
    put(tmp_path / "cells", *CELLS)
    add(tmp_path / "cells", archive)
    whole = archive.read_bytes()
    lines = gzip.decompress(whole).decode()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "line": gzip.compress(lines.replace('"seed":7', '"seeds":7').encode()),
        "text": b"no gzip",
    }
    archive.write_bytes(damaged[damage])

    where = "line 3: " if damage == "line" else ""
    with pytest.raises(RunError, match=f"{ARCHIVE} is no file of cells: {where}"):
        read_results(tmp_path)


def test_a_kept_cell_is_finished_unless_its_arithmetic_is_not_todays(tmp_path: Path) -> None:
    part = Choice(("heterogeneous",), ("powerlaw-3",), ("async-dvw",))
    (wanted,) = table1.cells(Setting(tmp_path, precision="tf32", device="cuda"), part)
    put(tmp_path / "x", CELLS[0])
    add(tmp_path / "x", tmp_path / ARCHIVE)

    assert finished(wanted, tmp_path)
    with pytest.raises(RunError, match=f"powerlaw-3/async-dvw in .*{ARCHIVE} was made at scale"):
        finished(replace(wanted, horizon=until("1,400 s")), tmp_path)
    assert not finished(replace(wanted, row=row("powerlaw-5")), tmp_path)

    put(tmp_path / "y", replace(CELLS[0], numerics="0123456789ab"))
    add(tmp_path / "y", tmp_path / ARCHIVE)
    assert not finished(wanted, tmp_path)


@pytest.mark.parametrize("study", [table1.STUDY, check.STUDY], ids=lambda study: study.name)
def test_the_pages_in_the_repository_are_of_the_cells_in_it(study: Study, tmp_path: Path) -> None:
    shutil.copy(KEPT / ARCHIVE, tmp_path)

    page = study.report(Setting(tmp_path), Choice()).text

    assert page == (KEPT / f"{study.name}.md").read_text(encoding="utf-8")
