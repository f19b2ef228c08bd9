"""The command line. Verbs only: what they do lives where the library has it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from metis import config as configuration
from metis.config import Config
from metis.core.errors import ConfigError, Interrupted, MetisError, RunError
from metis.core.recipes import POLICIES, Settings

app = typer.Typer(
    name="metis",
    help="Federated learning for learners that differ in data and speed.",
    epilog="First steps:  metis run   |   metis compare   |   metis config > fed.toml",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Get datasets, and see who would hold what.", no_args_is_help=True)
app.add_typer(data_app, name="data")

console = Console()
complaints = Console(stderr=True)

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Start from this file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key, such as train.epochs=2."),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]


def main() -> None:
    """Run the command line. A MetisError is a message and exit code 2, never a traceback."""
    try:
        app()
    except MetisError as error:
        if isinstance(error, Interrupted):
            _complain("[yellow]stopped:[/] ", str(error))
            sys.exit(130)
        _complain("[bold red]error:[/] ", str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "sklearn"):
            raise
        _complain("[bold red]error:[/] ", f"this needs {error.name}: pip install 'metis-fl[learn]'")
        sys.exit(2)


def _complain(what: str, message: str) -> None:
    complaints.print(what, end="")
    complaints.print(message, markup=False, highlight=False, soft_wrap=True)


@app.callback()
def version(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    from metis import __version__

    if show:
        print(f"metis {__version__}")
        raise typer.Exit


# ---- run --------------------------------------------------------------------------------------


@app.command(
    epilog="Examples:  metis run   |   metis run fed.toml --out runs/first --set train.epochs=2"
    "   |   metis run --resume runs/first"
)
def run(
    config: ConfigFile = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same bytes.")] = None,
    device: Device = None,
    policy: Annotated[str | None, typer.Option(help="One of `metis policies`.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one federation in virtual time."""
    if resume is not None and (config or set_ or out or seed is not None or policy or device):
        raise ConfigError("--resume takes its settings from the run's own directory, no others")
    if resume is not None:
        if not (resume / "config.toml").is_file():
            raise RunError(f"{resume} holds no run: there is no config.toml in it")
        chosen = configuration.load(resume / "config.toml")
        directory = resume
    else:
        chosen = _load(config, set_, seed=seed, device=device, policy=policy)
        directory = out or _fresh(Path("runs") / chosen.policy)
    from metis.runtime import run as runs

    def work(listeners: tuple[Any, ...]) -> dict[str, Any]:
        if resume is not None:
            return runs.resume(directory, listeners=listeners).summary
        return runs.run(chosen, directory, listeners=listeners).summary

    summary = _watch(chosen, quiet or as_json, chosen.policy, work)
    _report(directory, [directory], show=not as_json)
    if as_json:
        console.print_json(json.dumps(summary))


@app.command(
    epilog="Example:  metis compare --policies sync-fedavg,async-dvw-adaptive --seeds 1,2,3"
)
def compare(
    config: ConfigFile = None,
    policies: Annotated[str, typer.Option(help="Names from `metis policies`, with commas.")] = (
        "sync-fedavg,sync-dvw,async-fedavg,fedasync,async-dvw-adaptive"
    ),
    seeds: Annotated[str | None, typer.Option(help="Several seeds: mean and spread.")] = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the runs.")] = None,
    device: Device = None,
    together: Annotated[
        bool, typer.Option("--together", help="Compute the learners of all runs together.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run several policies on the same data and put them side by side."""
    names = list(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip()))
    if not names:
        raise ConfigError("--policies: name at least one")
    numbers: list[int | None] = [None]
    if seeds is not None:
        try:
            numbers = list(dict.fromkeys(int(text) for text in seeds.split(",")))
        except ValueError:
            raise ConfigError(f"--seeds {seeds!r}: expected numbers with commas") from None
    plans = [
        (name, number, _load(config, set_, policy=name, seed=number, device=device))
        for name in names
        for number in numbers
    ]
    directory = out or _fresh(Path("runs") / "compare")
    targets = [
        (directory / (name if number is None else f"{name}-seed{number}"), chosen)
        for name, number, chosen in plans
    ]
    each = _together if together and len(targets) > 1 else _one_by_one
    summaries = each(targets, quiet or as_json)
    directories = [target for target, _ in targets]
    _report(directory, directories, show=not as_json)
    if as_json:
        console.print_json(json.dumps(summaries))


def _one_by_one(targets: list[tuple[Path, Config]], quiet: bool) -> list[dict[str, Any]]:
    from metis.runtime.run import run_or_resume

    summaries = []
    for position, (target, chosen) in enumerate(targets, 1):
        work = partial(run_or_resume, chosen, target)
        title = f"{position}/{len(targets)} {target.name}"
        summaries.append(_watch(chosen, quiet, title, work))
    return summaries


def _together(targets: list[tuple[Path, Config]], quiet: bool) -> list[dict[str, Any]]:
    from metis.report.many import ManyView
    from metis.runtime.together import Plan, run_together

    if quiet:
        return run_together([Plan(chosen, target, (_note,)) for target, chosen in targets])
    with ManyView(console) as view:
        return run_together(
            [
                Plan(chosen, target, (_note, view.listener(target.name, *chosen.horizon.limits())))
                for target, chosen in targets
            ]
        )


@app.command(epilog="Example:  metis report runs/compare")
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs to show.")],
    out: Annotated[
        Path | None, typer.Option(help="Where report.html goes; default: the first DIR.")
    ] = None,
) -> None:
    """Write report.html with plots for one run, or for several side by side."""
    found = [run for directory in directories for run in _runs_below(directory)]
    _report(out or directories[0], found)


@app.command(epilog="Example:  metis replay runs/kept  (made with --set output.keep_updates=true)")
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR")], as_json: AsJson = False
) -> None:
    """Recompute every community model from the journal and verify its digest."""
    from metis.runtime.replay import replay as replay_run

    with console.status("replaying") as status:
        found = replay_run(directory, lambda version: status.update(f"version {version} verified"))
    if as_json:
        values = {"events": found.num_events, "versions": found.num_versions}
        console.print_json(json.dumps({**values, "digest": found.last_digest}))
    else:
        console.print(
            f"[green]verified[/] {found.num_versions} versions from {found.num_events} events; "
            f"the last is {found.last_digest[:16]}..."
        )


def _load(path: Path | None, overrides: list[str] | None, **values: Any) -> Config:
    given = {name: value for name, value in values.items() if value is not None}
    return configuration.load(path, overrides or (), **given)


def _watch(
    chosen: Config, quiet: bool, title: str, work: Callable[[tuple[Any, ...]], dict[str, Any]]
) -> dict[str, Any]:
    """Do the work before the user's eyes; it is given the live view to tell of its records."""
    from metis.report.live import LiveView

    if quiet:
        return work((_note,))
    with LiveView(*chosen.horizon.limits(), console, title) as view:
        return work((_note, view))


def _note(record: dict[str, Any]) -> None:
    """Say why a federation is not computed as it was asked for."""
    if record["kind"] == "run" and record.get("engine_note"):
        _complain("[yellow]note:[/] ", record["engine_note"])


def _report(directory: Path, runs: list[Path], show: bool = True) -> None:
    from metis.report.page import write_report
    from metis.report.runs import read_run
    from metis.report.table import summary_table

    read = [read_run(run) for run in runs]
    if show:
        console.print(summary_table(read))
    path = write_report(directory, read)
    if show:
        _tell(f"report: {path}")


def _tell(line: str) -> None:
    """Print a line that is never broken, so that a path in it can be copied or piped."""
    console.print(line, highlight=False, soft_wrap=True)


def _runs_below(directory: Path) -> list[Path]:
    """Return the directory itself if it is a run, else the runs inside it."""
    if (directory / "journal.jsonl").exists() or not directory.is_dir():
        return [directory]
    inside = sorted(path.parent for path in directory.glob("*/journal.jsonl"))
    return inside or [directory]


def _fresh(base: Path) -> Path:
    """Return a directory that is not there yet: base, base-2, base-3, ..."""
    candidates = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


# ---- what there is ----------------------------------------------------------------------------


@app.command(epilog="Example:  metis policies --json")
def policies(as_json: AsJson = False) -> None:
    """List the policies."""
    rows = []
    for policy in POLICIES.values():
        recipe = policy.recipe(Settings())
        rows.append(
            {
                "name": policy.name,
                "summary": policy.summary,
                "community": type(recipe.community).__name__,
                "weighting": type(recipe.weighting).__name__,
                "pacing": type(recipe.pacing).__name__,
                "trigger": "validation cycles" if recipe.adaptive else "fixed epochs",
                "holds_out": recipe.holds_out,
            }
        )
    if as_json:
        console.print_json(json.dumps(rows))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 1, 0))
    table.add_column("policy", no_wrap=True, style="bold")
    table.add_column("in words, and what it is made of")
    for row in rows:
        parts = [str(row[part]) for part in ("community", "weighting", "pacing", "trigger")]
        table.add_row(str(row["name"]), f"{row['summary']}\n[dim]{' + '.join(parts)}[/]")
    console.print(table)


@app.command("config", epilog="Example:  metis config --set policy=sync-dvw > fed.toml")
def show_config(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Print a commented config file: the defaults, or a file completed with them."""
    print(configuration.dump(_load(config, set_), comments=True), end="")


@app.command(epilog="Example:  metis tune fed.toml --out tuned.toml")
def tune(
    config: ConfigFile = None,
    set_: Overrides = None,
    device: Device = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each trial.")] = 10.0,
    out: Annotated[
        Path | None, typer.Option(help="Write the config with the fastest engine here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure which engine computes a federation fastest here. Runs never do so themselves."""
    from dataclasses import asdict, replace

    from metis.runtime.tune import Trial
    from metis.runtime.tune import tune as measure

    chosen = _load(config, set_, device=device)

    def show(trial: Trial) -> None:
        if not as_json:
            found = trial.note or f"{trial.samples_per_second:,.0f} samples/s"
            _tell(f"{trial.engine:<10} {trial.threads} threads  {found}")

    trials = measure(chosen, seconds, show)
    best = trials[0]
    if out is not None:
        tuned = replace(chosen, engine=best.engine, threads=best.threads)
        try:
            out.write_text(configuration.dump(tuned, comments=True), encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {out}: {error.strerror}") from None
    if as_json:
        console.print_json(json.dumps([asdict(trial) for trial in trials]))
    else:
        _tell(f"fastest: engine = {best.engine}, threads = {best.threads}")


@data_app.command("list", epilog="Example:  metis data list --json")
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


@data_app.command("prepare", epilog="Example:  metis data prepare cifar10 --from cifar10.npz")
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
    _tell(f"ready: {path}")
    unchecked = [file.name for file in find(name).files if file.checksum is None]
    if unchecked and from_ is None:
        console.print(f"[yellow]no published checksum to verify:[/] {', '.join(unchecked)}")


@data_app.command(
    "show", epilog="Example:  metis data show --set partition.classes=3 --plot who.png"
)
def data_show(
    config: ConfigFile = None,
    set_: Overrides = None,
    plot: Annotated[Path | None, typer.Option(help="Also write a picture (PNG).")] = None,
) -> None:
    """Show who would hold what under a config."""
    from metis.data import picture
    from metis.runtime.assemble import dataset_of, divide, learner_groups

    chosen = _load(config, set_)
    dataset = dataset_of(chosen)
    division = divide(chosen, dataset)
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
        _tell(f"picture: {plot}")


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


if __name__ == "__main__":
    main()
