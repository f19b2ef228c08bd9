"""The command line. Verbs only: what they do lives where the library has it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer

from metis.cli import certs, codec, data, live, model, papers, runs, settings
from metis.cli.common import complain
from metis.core.errors import Interrupted, MetisError

#: What may be missing because it is not needed by all, and which extra brings it.
EXTRAS = {
    "torch": "learn",
    "sklearn": "learn",
    "cryptography": "live",
    "grpc": "live",
    "google": "live",
    "prometheus_client": "live",
}


def main() -> None:
    """Run the command line. A MetisError is a message and exit code 2, never a traceback."""
    run(command_line())


def run(commands: typer.Typer) -> None:
    """Run a command line; another distribution's ends in the same messages and exit codes."""
    try:
        commands()
    except MetisError as error:
        if isinstance(error, Interrupted):
            complain("[yellow]stopped:[/] ", str(error))
            sys.exit(130)
        complain("[bold red]error:[/] ", str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        needed = f"this needs {error.name}: pip install 'metis-fl[{extra}]'"
        complain("[bold red]error:[/] ", needed)
        sys.exit(2)


def command_line() -> typer.Typer:
    """Return all verbs.

    Built when it is needed, not on import: another distribution's verbs import this package.
    """
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
    app.callback()(version)
    # Verbs of the first level keep the order of their files; each group has a word of its own.
    app.registered_commands += runs.commands.registered_commands
    app.registered_commands += live.commands.registered_commands
    app.registered_commands += papers.verbs(entry_points(group=papers.GROUP)).registered_commands
    app.registered_commands += settings.commands.registered_commands
    app.add_typer(data.commands, name="data")
    app.add_typer(model.commands, name="model")
    app.add_typer(codec.commands, name="codec")
    app.add_typer(certs.commands, name="certs")
    return app


def version(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    from metis import __version__

    if show:
        print(f"metis {__version__}")
        raise typer.Exit
