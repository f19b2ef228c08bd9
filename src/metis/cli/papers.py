"""The verb `reproduce`, which the distribution metis-papers brings.

Metis finds it by its entry point and never imports it by name. Where it is missing, or is of
another version, the verb says so and all others work.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint

import typer

from metis.core.errors import ConfigError

GROUP, VERB = "metis.commands", "reproduce"
MISSING = "metis reproduce needs metis-papers: pip install metis-papers (papers/ in the repository)"
MISFIT = "this metis-papers is not of this version of metis"


def verbs(found: Iterable[EntryPoint]) -> typer.Typer:
    """Return what the entry point brings, else a verb that says what is missing."""
    for point in found:
        if point.name == VERB:
            return _loaded(point)
    return _absent(MISSING)


def _loaded(point: EntryPoint) -> typer.Typer:
    try:
        brought = point.load()
    except (ImportError, AttributeError) as error:
        return _absent(f"{MISFIT}: {error}")
    return brought if isinstance(brought, typer.Typer) else _absent(f"{MISFIT}: {point.value}")


def _absent(reason: str) -> typer.Typer:
    commands = typer.Typer()

    @commands.command(
        VERB,
        help="Make a table or figure of the papers. Needs metis-papers, which is not here.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse() -> None:
        raise ConfigError(reason)

    return commands
