"""What verbs share: the options that several of them take, and how they print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from metis import config as configuration
from metis.config import Config
from metis.core.errors import ConfigError

console = Console(emoji=False)
complaints = Console(stderr=True, emoji=False)

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


def chosen_config(path: Path | None, overrides: list[str] | None, **values: Any) -> Config:
    """Return the config that a command line asks for; values that are None are not set."""
    given = {name: value for name, value in values.items() if value is not None}
    return configuration.load(path, overrides or (), **given)


def seeds_in(text: str) -> tuple[int, ...]:
    """Return the numbers of `--seeds`. Raises ConfigError."""
    try:
        return tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        raise ConfigError(f"--seeds {text!r}: expected numbers with commas") from None


def tell(line: str) -> None:
    """Print a line as it stands and never broken, so that a path in it can be copied or piped."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def complain(what: str, message: str) -> None:
    """Print a line to standard error: what it is, in colours, and a message as it stands."""
    complaints.print(what, end="")
    complaints.print(message, markup=False, highlight=False, soft_wrap=True)
