"""`metis reproduce` from end to end on generated data: every table and figure."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import typer
from rich.console import Console
from tests.command import Metis, assert_refused

from metis import cli
from metis_papers import reproduce as papers_verb
from metis_papers.catalogue import STUDIES
from metis_papers.formatting import markdown_table
from metis_papers.reproduce import _show
from metis_papers.results import read_results
from metis_papers.study import Report
from metis_papers.table1 import GRID


@pytest.mark.timeout(900)  # a minute or two of one core, but others may want it too
def test_every_table_and_figure_can_be_made_of_generated_data(metis: Metis, tmp_path: Path) -> None:
    done = metis("reproduce", "all", "--scale", "smoke", "--out", "results", "--quiet")

    assert done.code == 0, done.err
    results = tmp_path / "results"
    pages = {path.stem for path in results.glob("*.md")}
    assert pages == set(STUDIES)
    pictures = {path.stem for path in results.glob("*.png")}
    assert pictures >= {f"fig{n}" for n in range(2, 10)} | {
        "sstc",
        "sstc-fig1",
        "validation-size",
        "update-frequency",
        "wrong-labels",
    }
    made = read_results(results)
    in_table = {(o.cluster, o.policy) for o in made if o.study == "table1"}
    assert in_table == {(c, policy) for c, names in GRID.policies.items() for policy in names}
    assert all(one.scale == "smoke" and "generated" in one.dataset for one in made)
    assert all(one.requests > 0 and one.final_score is not None for one in made)

    again = metis("reproduce", "table1", "--scale", "smoke", "--out", "results", "--quiet")

    assert "11 of 11 cells are there already" in again.out
    assert len(read_results(results)) == len(made)
    shutil.rmtree(results)  # half a gigabyte of models


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel1"], ["unknown table or figure 'tabel1'", "did you mean 'table1'?"]),
        (["table1", "--rows", "powerlaw-4"], ["did you mean 'powerlaw-"]),
        (["table1", "--policies", "sync-fedavq"], ["did you mean 'sync-fedavg'?"]),
        (["table1", "--cluster", "hetero"], ["unknown cluster of table1 'hetero'"]),
        (["table1", "--scale", "tiny"], ["unknown scale 'tiny'", "full, short, smoke"]),
        (["table1", "--device", "tpu"], ["unknown device 'tpu'"]),
        (["table1", "--seeds", "one"], ["--seeds 'one': expected numbers with commas"]),
        (["table3", "--data", "emnist"], ["unknown data of table3 'emnist'", "emnist_byclass"]),
        (["sstc", "--policies", "sct"], ["did you mean 'stc'?"]),
        (["cost", "--cluster", "homogeneous"], ["unknown cluster of cost 'homogeneous'"]),
        (["cost", "--data", "fashion"], ["unknown data of cost 'fashion'", "fashion_mnist"]),
        (["validation-size", "--cluster", "x"], ["unknown cluster of validation-size 'x'"]),
        (["fig9", "--data", "cifar"], ["unknown data of fig9 'cifar'", "cifar10"]),
        (["fig3", "--data", "minst"], ["unknown data of fig3 'minst'", "did you mean 'mnist'?"]),
        (["fig7", "--data", "mnist"], ["--data: fig7 is made of the paper's data alone"]),
        (["beliefs", "--data", "mnist", "--rows", "skewed-5"], ["row of beliefs 'skewed-5'"]),
        (["beliefs", "--cluster", "homogenous"], ["did you mean 'homogeneous'?"]),
        (["table1", "--mps"], ["--mps: ", "needs --device cuda"]),
        (["all", "--data", "mnist"], ["--data goes with one table or figure"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_word_is_told_what_would_be_right(
    arguments: list[str], words: list[str], metis: Metis, tmp_path: Path
) -> None:
    assert_refused(metis("reproduce", *arguments, "--out", "results"), *words)
    assert not (tmp_path / "results").exists()


def test_a_report_alone_makes_no_cells_and_says_what_is_missing(
    metis: Metis, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    done = metis("reproduce", "table1", "--report-only", "--out", "results")

    assert done.code == 0
    assert "99 of 99 cells are missing" in done.out
    assert not (tmp_path / "results" / "table1").exists()


@pytest.mark.parametrize("what", [("check",), ("table1", "--report-only")])
def test_results_that_are_not_there_are_not_reported_on(
    what: tuple[str, ...], metis: Metis, tmp_path: Path
) -> None:
    done = metis("reproduce", *what, "--out", "reslts")

    assert_refused(done, "--out: there is no folder reslts")
    assert not (tmp_path / "reslts").exists()


@pytest.mark.parametrize("what", [("table1", "--jobs", "2"), ("fig2",)])
def test_a_folder_that_cannot_be_written_to_is_refused(
    what: tuple[str, ...], metis: Metis, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    done = metis("reproduce", *what, "--scale", "smoke", "--out", "file/below")

    assert_refused(done, "--out: cannot write to file/below")


def test_figure_2_of_another_scale_or_damaged_is_refused(metis: Metis, tmp_path: Path) -> None:
    assert metis("reproduce", "fig2", "--scale", "smoke", "--out", "out").code == 0

    other = metis("reproduce", "fig2", "--scale", "short", "--out", "out")
    assert_refused(other, "fig2.json was measured at scale smoke, but scale short is asked for")

    (tmp_path / "out" / "fig2.json").write_text("{")
    damaged = metis("reproduce", "fig2", "--scale", "smoke", "--out", "out")
    assert_refused(damaged, "fig2.json is no measurement of Figure 2", "remove it")


def test_a_figure_of_one_row_is_asked_for_no_other(metis: Metis) -> None:
    refused = metis("reproduce", "fig3", "--rows", "powerlaw-3", "--scale", "smoke")
    assert_refused(refused, "unknown row of fig3 'powerlaw-3'", "uniform-iid")


def test_real_data_that_is_not_there_is_named_with_how_to_get_it(
    metis: Metis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("METIS_DATA", str(tmp_path))
    choice = ("--cluster", "homogeneous", "--rows", "uniform-iid", "--policies", "sync-fedavg")

    done = metis("reproduce", "table1", *choice, "--out", "results", "--quiet")

    assert done.code == 2
    assert "cifar10 is not prepared" in done.err
    assert "metis data prepare cifar10" in done.err


def test_the_examples_of_the_page_about_it_run(metis: Metis) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)

    for line in block.splitlines():
        done = metis(*shlex.split(line.removeprefix("$ metis ")))
        assert done.code == 0, done.err


def test_the_page_about_it_names_everything_there_is(metis: Metis) -> None:
    page = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")

    shown = metis("reproduce", "--help").out
    for name in STUDIES:
        assert name in shown
        assert f"`{name}`" in page or name in ("fig6", "fig7")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_tables_too_wide_for_a_terminal_are_folded_there_and_nowhere_else(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = markdown_table(("policy", "score"), [("sync [dvw]", "0.7 (the paper has 0.6, +0.1)")])
    wider = markdown_table(("abc", "def", "ghi"), [("12 345 678",) * 3])
    narrow = markdown_table(("a", "b"), [("1", "2")])
    paper = io.StringIO()
    terminal = Console(file=paper, width=30, force_terminal=is_terminal, color_system=None)
    for module in ("metis_papers.reproduce", "metis.cli.common"):
        monkeypatch.setattr(f"{module}.console", terminal)

    _show(Report(f"## Title\n\n{wide}\nand\n{wider}\nand\n{narrow}", (Path("page.md"),)))

    said = paper.getvalue()
    assert narrow in said
    assert (wide in said) is (wider in said) is not is_terminal
    assert "sync [dvw]" in said
    assert "+0.1" in said
    assert ("(1 lines, too wide for this terminal: see page.md)" in said) is is_terminal


@pytest.mark.parametrize(
    "arguments",
    [("table1", "--report-only", "--out", "."), ("tabel1",), ("table1", "--rows", "powerlaw-4")],
)
def test_where_nothing_is_installed_the_package_is_the_verb(
    arguments: tuple[str, ...], metis: Metis, tmp_path: Path
) -> None:
    # Without site-packages nothing has an entry point; what Metis needs is found by its path.
    paths = [str(Path(module.__file__ or "").parents[1]) for module in (cli, typer, numpy)]
    paths[0] = str(Path(paths[0]).parent)
    paths.append(str(Path(papers_verb.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "metis_papers", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    said = metis("reproduce", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (said.code, said.out, said.err)
