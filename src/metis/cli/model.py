"""Verbs about models as files: the one that a federation begins with, and how good one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from metis.cli.common import AsJson, ConfigFile, Device, Overrides, chosen_config, console, tell

commands = typer.Typer(help="The first model of a federation; how good a model is.")

App = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:FUNCTION", help="A site's own function, see `metis learner`."),
]


@commands.command(epilog="Example:  metis model init fed.toml --out initial.safetensors")
def init(
    config: ConfigFile = None,
    out: Annotated[Path, typer.Option(metavar="FILE")] = Path("initial.safetensors"),
    app: App = None,
    set_: Overrides = None,
) -> None:
    """Write the model that a federation begins with; a controller then needs no torch."""
    from metis.service.initial_model import first_model
    from metis.storage.weights import save_first

    weights, layout, num_classes = first_model(chosen_config(config, set_), app)
    save_first(out, weights, layout, num_classes)
    what = f"{num_classes} classes" if num_classes else "a regression"
    tell(f"{out}: {layout.size:,} parameters, {what}, layout {layout.digest}")


@commands.command("test", epilog="Example:  metis model test state/model.safetensors fed.toml")
def score(
    model: Annotated[Path, typer.Argument(metavar="MODEL.safetensors")],
    config: ConfigFile = None,
    app: App = None,
    set_: Overrides = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on the test examples of a config, or of a site."""
    from metis.service.evaluate_model import test_score

    found = test_score(model, chosen_config(config, set_, device=device), app)
    if as_json:
        console.print_json(json.dumps(found))
        return
    tell(f"{found['metric']} {found['score']:.4f}, loss {found['loss']:.4f} on {found['examples']}")
