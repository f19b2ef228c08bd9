from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from metis.core.errors import RunError
from metis.report.page import Run, read_run, summary_table, write_report

pytest.importorskip("matplotlib")
RunOf = Callable[..., Run]

HOSTILE = "<script>alert('x')</script> & \"co\""


class Tags(HTMLParser):
    """Collects the tags of a page, and every address it mentions."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def text_of(directory: Path, *runs: Run) -> str:
    return write_report(directory, runs).read_text(encoding="utf-8")


def printed(runs: list[Run], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(summary_table(runs))
    return capture.get()


def test_a_report_is_one_file_that_asks_for_nothing_else(run_of: RunOf, tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report", [run_of()])
    page = Tags(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert page.addresses
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    pngs = sorted(file.name for file in path.parent.glob("*.png"))
    assert len(pngs) == len(page.addresses)
    assert {"score-over-time.png", "holdings.png", "validation-cycles.png"} <= set(pngs)


def test_text_of_users_is_escaped_and_makes_harmless_files(run_of: RunOf, tmp_path: Path) -> None:
    hostile = run_of(f"../{HOSTILE}", name="one", refusal=HOSTILE, partition=HOSTILE, seconds=30)
    (hostile.directory / "config.toml").write_text(f"# {HOSTILE}\n", encoding="utf-8")
    text = text_of(tmp_path / "report", hostile, run_of("async-fedavg", seconds=5))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5
    assert "Updates that were refused" in text
    assert "Configuration" in text
    assert all(file.parent == tmp_path / "report" for file in tmp_path.rglob("*.png"))


def test_several_seeds_are_summed_up_with_their_spread(run_of: RunOf, tmp_path: Path) -> None:
    text = text_of(tmp_path / "report", *(run_of("sync-fedavg", seed=seed) for seed in (1, 2)))
    assert re.search(r"<td>0\.\d{4} ±0\.\d{4}</td>", text)
    assert "sync-fedavg-2" in text


def test_an_interrupted_run_without_versions_says_so(run_of: RunOf, tmp_path: Path) -> None:
    text = text_of(
        tmp_path / "report", run_of("sync-fedavg", name="cut short", ended=False, seconds=0.5)
    )
    assert "<strong>Interrupted:</strong> cut short" in text


def test_a_regression_speaks_of_r2(run_of: RunOf, tmp_path: Path) -> None:
    text = text_of(tmp_path / "report", run_of("sync-fedavg", num_classes=0, seconds=20))
    assert "final R²" in text
    assert "accuracy" not in text.lower()


def test_weights_that_never_change_are_not_drawn(run_of: RunOf, tmp_path: Path) -> None:
    write_report(tmp_path / "report", [run_of("sync-fedavg", seconds=20)])
    assert not (tmp_path / "report" / "weights.png").exists()


def test_thousands_of_learners_do_not_fill_the_page(run_of: RunOf, tmp_path: Path) -> None:
    text = text_of(tmp_path / "report", run_of("fedasync", num_learners=1000, seconds=0.01))
    assert "and 800 more." in text


def test_an_unwritable_directory_is_an_error_with_its_name(run_of: RunOf, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("", encoding="utf-8")
    with pytest.raises(RunError, match=r"cannot write the report to .*file"):
        write_report(in_the_way, [run_of(seconds=5)])


# --- the table for the terminal


def test_the_table_fits_80_columns_and_keeps_its_numbers(run_of: RunOf) -> None:
    runs = [
        run_of(policy, seed=seed)
        for policy in ("sync-fedavg", "async-dvw-adaptive")
        for seed in (1, 2)
    ]
    text = printed(runs)
    assert "…" not in text
    assert "async-dvw-adaptive" in text
    assert "±0.0" in text
    assert "of 2 seeds" in text


def test_the_best_final_score_is_highlighted(run_of: RunOf) -> None:
    runs = [run_of("sync-fedavg", seconds=10), run_of("sync-dvw", seconds=120)]
    table = summary_table(runs)
    styles = [str(getattr(cell, "style", "")) for cell in table.columns[1].cells]
    assert styles == ["", "bold green"]


def test_scores_that_do_not_compare_are_not_ranked(run_of: RunOf) -> None:
    runs = [run_of("sync-fedavg"), run_of("sync-dvw", dataset="iris")]
    table = summary_table(runs)
    assert all("green" not in str(getattr(c, "style", "")) for c in table.columns[1].cells)
    assert not any("s to" in str(column.header) for column in table.columns)


def test_a_name_with_brackets_is_not_read_as_markup(run_of: RunOf) -> None:
    assert "[red]x[/red]" in printed([run_of("[red]x[/red]", name="odd", seconds=10)])


def test_a_run_that_never_reached_the_target_has_no_time(run_of: RunOf) -> None:
    runs = [run_of("sync-fedavg", seconds=2), run_of("sync-dvw", seconds=120)]
    line = next(line for line in printed(runs).splitlines() if line.startswith("sync-fedavg"))
    assert line.split()[3] == "-"


def test_page_offers_what_reads_a_run(run_of: RunOf) -> None:
    run = run_of(seconds=5)
    assert read_run(run.directory) == run
