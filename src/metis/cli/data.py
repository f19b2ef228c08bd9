"""Verbs about data: which there is, how to get it, who would hold what."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from metis.cli.common import AsJson, ConfigFile, Overrides, chosen_config, console, tell
from metis.core.errors import RunError

commands = typer.Typer(help="Get datasets, and see who would hold what.", no_args_is_help=True)


@commands.command("list", epilog="Example:  metis data list --json")
def data_list(as_json: AsJson = False) -> None:
    """List the data sources and whether they are at hand."""
    from metis.data.sources import SOURCES, cache_directory, is_ready

    directory = cache_directory()
    rows = [
        {
            "name": source.name,
            "ready": is_ready(source, directory),
            "summary": source.summary,
            "cite": source.cite,
        }
        for source in SOURCES.values()
    ]
    if as_json:
        console.print_json(json.dumps(rows))
        return
    table = Table("name", "ready", "what", "cite", caption=f"prepared data lies in {directory}")
    for row in rows:
        ready = "[green]yes[/]" if row["ready"] else "metis data prepare"
        table.add_row(str(row["name"]), ready, str(row["summary"]), str(row["cite"]))
    console.print(table)


@commands.command("prepare", epilog="Example:  metis data prepare cifar10 --from cifar10.npz")
def data_prepare(
    name: str,
    from_: Annotated[
        Path | None, typer.Option("--from", help="A file or folder you already have.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where to keep it; default $METIS_DATA or ~/.cache/metis.")
    ] = None,
) -> None:
    """Download a dataset from its home, or take a local file; check it and keep it."""
    from metis.data.sources import find, prepare

    with _download_progress() as on_progress:
        path = prepare(name, from_, directory, on_progress)
    tell(f"ready: {path}")
    unchecked = [file.name for file in find(name).files if file.checksum is None]
    if unchecked and from_ is None:
        console.print(f"[yellow]no published checksum to verify:[/] {', '.join(unchecked)}")


@commands.command(
    "show", epilog="Example:  metis data show --set partition.classes=3 --plot who.png"
)
def data_show(
    config: ConfigFile = None,
    set_: Overrides = None,
    plot: Annotated[Path | None, typer.Option(help="Also write a picture (PNG).")] = None,
) -> None:
    """Show who would hold what under a config."""
    from metis.data import picture
    from metis.federation.build import learner_groups
    from metis.simulation.build import dataset_of, divide, labelled

    chosen = chosen_config(config, set_)
    dataset = dataset_of(chosen)
    division = divide(chosen, dataset)
    dataset = labelled(chosen, dataset, division)
    counts = picture.holdings(dataset.y_train, division, dataset.num_classes)
    groups = learner_groups(chosen)
    names = [f"{n} {g}" for n, g in zip(chosen.learner_names(), groups, strict=True)]
    note = f"{dataset.name}: {division.note}"
    console.print(picture.table(counts, names, note))
    if division.unplaced:
        console.print(f"{division.unplaced} examples could not be placed and are held by nobody")
    if plot is not None:
        try:
            picture.plot(counts, names, plot, note)
        except (OSError, ValueError) as error:
            raise RunError(f"cannot write {plot}: {error}") from None
        tell(f"picture: {plot}")


@contextlib.contextmanager
def _download_progress() -> Iterator[Any]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, Any] = {}

        def on_progress(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total)
            progress.update(bars[name], completed=done, total=total)

        yield on_progress
