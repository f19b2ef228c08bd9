"""The verb that makes the papers' tables and figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from metis.cli.common import Device, Quiet, console, seeds_in, tell
from metis.cli.runs import note
from metis.core.errors import ConfigError, Interrupted, MetisError, RunError, unknown

if TYPE_CHECKING:
    from metis.experiments.cells import Cell, Setting
    from metis.experiments.study import Choice, Report, Study
    from metis.experiments.work import Watch
    from metis.journal.file import Listener

commands = typer.Typer()

#: As in `experiments.catalogue`, which is not imported before it is needed.
WHAT = (
    "table1|table2|table3|fig2|fig3|fig4|fig5|fig6|fig7|fig8|fig9|cost|sstc|validation-size|"
    "update-frequency|wrong-labels|beliefs|table1-by-class|check|all"
)
SCALES = ("full", "short", "smoke")
_LEGIBLE = 12  # characters that a column needs when its cells are folded


@commands.command(
    epilog="Examples:  metis reproduce all --scale smoke"
    "   |   metis reproduce table1 --rows powerlaw-3 --device cuda --jobs 3 --out results"
    "   |   metis reproduce table1 --report-only --out results"
    "   |   metis reproduce check --out results"
)
def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT.replace("|", ", "))],
    rows: Annotated[
        str | None, typer.Option(help="With commas, such as powerlaw-3,uniform-iid.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="With commas; of sstc: runs, such as dense,stc.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="homogeneous or heterogeneous; default: both.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="With commas: mean and spread.")] = "1990",
    scale: Annotated[
        str, typer.Option(help="full; short: a tenth of it; smoke: generated data, minutes.")
    ] = "full",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Another horizon, where it is in rounds.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Another horizon, where it is in virtual seconds.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="In place of the paper's. table1 and what is made of its federations: "
            "fashion_mnist; table3, sstc: mnist_by_writer; and others."
        ),
    ] = None,
    device: Device = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, tf32 or bf16; default: tf32 on a GPU.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that are made side by side.")] = 1,
    mps: Annotated[
        bool,
        typer.Option(
            "--mps", help="They compute on the GPU at once, by NVIDIA's MPS, not in turns."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where cells and results go.")] = Path("runs/reproduce"),
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="What becomes of interrupted cells.")
    ] = True,
    stop_after: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop then; the same command goes on later."),
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Make no cells, show those that are there.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of the papers: ours beside the published numbers.

    Each cell is a run with a directory of its own; finished ones are left alone, so a table can be
    filled in several sittings. Real data must be prepared: see `metis data prepare`.
    """
    from metis.experiments.catalogue import STUDIES
    from metis.experiments.cells import Setting
    from metis.experiments.study import Choice
    from metis.experiments.work import countdown

    names = list(STUDIES) if what == "all" else [what]
    if names[0] not in STUDIES:
        raise ConfigError(unknown("table or figure", what, (*STUDIES, "all")))
    if scale not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', scale, SCALES)}")
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(f"--device: {unknown('device', device, ('cpu', 'cuda'))}")
    if mps and device != "cuda":
        raise ConfigError("--mps: processes share a GPU by it, so it needs --device cuda")
    if what == "all" and data is not None:
        raise ConfigError("--data goes with one table or figure, not with all of them")
    setting = Setting(
        out=out,
        scale=scale,
        device=device or "cpu",
        precision=precision,
        jobs=jobs,
        mps=mps,
        seeds=seeds_in(seeds),
        rounds=rounds,
        seconds=seconds,
        stop_after=stop_after,
        restart=not resume,
    )
    choice = Choice(_names(cluster), _names(rows), _names(policies), data)
    left = countdown(stop_after)  # one time for all of them
    stopped: list[MetisError] = []
    with _folder(out, must_exist=report_only or what == "check"):
        for name in names:
            setting = replace(setting, stop_after=left())
            try:
                _one(STUDIES[name], setting, choice, report_only, quiet)
            except Interrupted:
                raise
            except MetisError as error:  # the others may still be made
                if len(names) > 1:
                    tell(f"{name}: {error}")
                stopped.append(error)
    if stopped:
        raise stopped[0]


@contextmanager
def _folder(out: Path, must_exist: bool) -> Iterator[None]:
    """Have a folder that can be written to; none is left if nothing was written."""
    if must_exist and not out.is_dir():
        raise ConfigError(f"--out: there is no folder {out}")
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"--out: cannot write to {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise RunError(f"--out: cannot write to {out}: Permission denied")
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                out.rmdir()


def _one(study: Study, setting: Setting, choice: Choice, report_only: bool, quiet: bool) -> None:
    """Make what is not there yet of a study, and show what is there, whatever happens."""
    from metis.experiments.work import make

    stopped: MetisError | None = None
    cells = study.cells(setting, choice)
    if cells and not report_only:
        try:
            with _watching(setting, quiet) as watch:
                make(cells, setting, tell, watch)
        except MetisError as error:
            stopped = error
    report = study.report(setting, choice)
    _show(report)
    for path in report.files:
        tell(f"written: {path}")
    if stopped is not None:
        raise stopped


def _show(report: Report) -> None:
    """Print a page as it is; on a terminal, tables that are too wide for it with folded cells."""
    for is_table, group in groupby(report.text.splitlines(), key=lambda line: line.startswith("|")):
        lines = list(group)
        if not (is_table and console.is_terminal and len(lines[0]) > console.width):
            console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
            continue
        heads, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
        if _LEGIBLE * len(heads) > console.width:
            tell(f"({len(rows)} lines, too wide for this terminal: see {report.files[0]})")
            continue
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for head in heads:
            table.add_column(Text(head), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


@contextmanager
def _watching(setting: Setting, quiet: bool) -> Iterator[Watch]:
    """Give what shows cells while they are made: one at a time, or a line for each."""
    if quiet:
        yield _silent
    elif not setting.side_by_side:
        yield _live
    elif not console.is_terminal:
        yield _silent  # a line when a cell ends is told anyway
    else:
        from metis.report.many import ManyView

        with ManyView(console) as view:

            @contextmanager
            def line_for(cell: Cell) -> Iterator[tuple[Listener, ...]]:
                title = cell.name.removeprefix(f"{cell.study}/")
                line = view.listener(title, *cell.config.horizon.limits())
                try:
                    yield (line,)
                finally:
                    line.remove()

            yield line_for


@contextmanager
def _silent(cell: Cell) -> Iterator[tuple[Listener, ...]]:
    yield ()


@contextmanager
def _live(cell: Cell) -> Iterator[tuple[Listener, ...]]:
    """Show a cell before the user's eyes; say why it is not computed as it was asked for."""
    from metis.report.live import LiveView

    with LiveView(*cell.config.horizon.limits(), console, cell.name) as view:
        yield (note, view)


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError("expected names with commas, such as powerlaw-3,uniform-iid")
    return names
