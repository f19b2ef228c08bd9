"""Verbs about what can be set: the policies, the config, and the engine that is fastest here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from metis import config as configuration
from metis.cli.common import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    chosen_config,
    console,
    tell,
)
from metis.core.errors import RunError
from metis.core.policies import POLICIES
from metis.core.settings import Choices

commands = typer.Typer()


@commands.command(epilog="Example:  metis policies --json")
def policies(as_json: AsJson = False) -> None:
    """List the policies."""
    rows = []
    for policy in POLICIES.values():
        recipe = policy.recipe(Choices())
        rows.append(
            {
                "name": policy.name,
                "summary": policy.summary,
                "community": type(recipe.community).__name__,
                "weighting": type(recipe.weighting).__name__,
                "pacing": getattr(recipe.pacing, "name", type(recipe.pacing).__name__),
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


@commands.command("config", epilog="Example:  metis config --set policy=sync-dvw > fed.toml")
def show_config(config: ConfigFile = None, set_: Overrides = None) -> None:
    """Print a commented config file: the defaults, or a file completed with them."""
    print(configuration.dump(chosen_config(config, set_), comments=True), end="")


@commands.command(epilog="Example:  metis tune fed.toml --out tuned.toml")
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

    chosen = chosen_config(config, set_, device=device)

    def show(trial: Trial) -> None:
        if not as_json:
            found = trial.note or f"{trial.samples_per_second:,.0f} samples/s"
            tell(f"{trial.engine:<10} {trial.threads} threads  {found}")

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
        tell(f"fastest: engine = {best.engine}, threads = {best.threads}")
