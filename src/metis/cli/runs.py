"""Verbs about runs: make one, compare several, show them, verify one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metis import config as configuration
from metis.cli.common import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    Quiet,
    chosen_config,
    complain,
    console,
    seeds_in,
    tell,
)
from metis.config import Config
from metis.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from metis.runtime.replay import Replayed

commands = typer.Typer()


@commands.command(
    epilog="Examples:  metis run   |   metis run fed.toml --out runs/first --set train.epochs=2"
    "   |   metis run --resume runs/first"
)
def run(
    config: ConfigFile = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same bytes.")] = None,
    device: Device = None,
    policy: Annotated[
        str | None, typer.Option(help="One of `metis policies`, or file.py:function.")
    ] = None,
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
        chosen = chosen_config(config, set_, seed=seed, device=device, policy=policy)
        directory = out or fresh(Path("runs") / chosen.policy_label)
    from metis.report.runs import short_policy
    from metis.runtime import run as runs

    def work(listeners: tuple[Any, ...]) -> dict[str, Any]:
        if resume is not None:
            return runs.resume(directory, listeners=listeners).summary
        return runs.run(chosen, directory, listeners=listeners).summary

    summary = _watch(chosen, quiet or as_json, short_policy(chosen.policy), work)
    _report(directory, [directory], show=not as_json)
    if as_json:
        console.print_json(json.dumps(summary))


@commands.command(
    epilog="Example:  metis compare --policies sync-fedavg,async-dvw-adaptive --seeds 1,2,3"
)
def compare(
    config: ConfigFile = None,
    policies: Annotated[
        str, typer.Option(help="Names from `metis policies`, or file.py:function, with commas.")
    ] = ("sync-fedavg,sync-dvw,async-fedavg,fedasync,async-dvw-adaptive"),
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
    numbers: tuple[int | None, ...] = (None,) if seeds is None else seeds_in(seeds)
    plans = [
        (name, number, chosen_config(config, set_, policy=name, seed=number, device=device))
        for name in names
        for number in numbers
    ]
    directory = out or fresh(Path("runs") / "compare")
    targets = [
        (directory / (chosen.policy_label + ("" if number is None else f"-seed{number}")), chosen)
        for _, number, chosen in plans
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
    from metis.runtime.together import JointRun, run_together

    if quiet:
        return run_together([JointRun(chosen, target, (note,)) for target, chosen in targets])
    with ManyView(console) as view:
        return run_together(
            [
                JointRun(
                    chosen, target, (note, view.listener(target.name, *chosen.horizon.limits()))
                )
                for target, chosen in targets
            ]
        )


@commands.command(epilog="Example:  metis report runs/compare")
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs to show.")],
    out: Annotated[
        Path | None, typer.Option(help="Where report.html goes; default: the first DIR.")
    ] = None,
) -> None:
    """Write report.html with plots for one run, or for several side by side."""
    found = [run for directory in directories for run in _runs_below(directory)]
    _report(out or directories[0], found)


@commands.command(
    epilog="Example:  metis replay runs/kept  (made with --set output.keep_updates=true)"
)
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR")], as_json: AsJson = False
) -> None:
    """Recompute all that follows in a run's journal, its models included, and compare it."""
    from metis.runtime.replay import replay as replay_run

    with console.status("replaying") as status:
        found = replay_run(directory, lambda version: status.update(f"version {version} verified"))
    if as_json:
        console.print_json(json.dumps(_as_values(found)))
    else:
        for line in _in_words(found):
            console.print(line)


def _as_values(found: Replayed) -> dict[str, Any]:
    return {
        "events": found.num_events,
        "versions": found.num_versions,
        "digest": found.last_digest,
        "records": dict(found.records),
        "files": list(found.files),
        "taken_as_reported": dict(found.reported),
        "unwritten": found.unwritten,
    }


def _in_words(found: Replayed) -> list[str]:
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.records.items())
    reported = [f"{kind}: {', '.join(names)}" for kind, names in found.reported.items()]
    lines = [
        f"[green]verified[/] {found.num_versions} versions from {found.num_events} events; "
        f"the last is {found.last_digest[:16]}...",
        f"all that follows in {sum(found.records.values()):,} records: {kinds}",
        f"taken as reported: {'; '.join(reported)}",
    ]
    if found.files:
        lines.insert(2, f"and {', '.join(found.files)}")
    if found.unwritten:
        lines.append(f"the journal ends before {found.unwritten}: this run is not at its end")
    return lines


def _watch(
    chosen: Config, quiet: bool, title: str, work: Callable[[tuple[Any, ...]], dict[str, Any]]
) -> dict[str, Any]:
    """Do the work before the user's eyes; it is given the live view to tell of its records."""
    from metis.report.live import LiveView

    if quiet:
        return work((note,))
    with LiveView(*chosen.horizon.limits(), console, title) as view:
        return work((note, view))


def note(record: dict[str, Any]) -> None:
    """Say why a federation is not computed as it was asked for, or may not learn as it could."""
    for what in ("engine_note", "batch_note") if record["kind"] == "run" else ():
        if record.get(what):
            complain("[yellow]note:[/] ", record[what])


def _report(directory: Path, runs: list[Path], show: bool = True) -> None:
    from metis.report.page import write_report
    from metis.report.runs import read_run
    from metis.report.table import summary_table

    read = [read_run(run) for run in runs]
    if show:
        console.print(summary_table(read))
    path = write_report(directory, read)
    if show:
        tell(f"report: {path}")


def _runs_below(directory: Path) -> list[Path]:
    """Return the directory itself if it is a run, else the runs inside it."""
    if (directory / "journal.jsonl").exists() or not directory.is_dir():
        return [directory]
    inside = sorted(path.parent for path in directory.glob("*/journal.jsonl"))
    return inside or [directory]


def fresh(base: Path) -> Path:
    """Return a directory that is not there yet: base, base-2, base-3, ..."""
    candidates = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
