"""Every text that a user meets on the command line, in files: a change of wording is a diff.

    make texts    # writes them again; read the diff

`test_texts.py` compares. Each file holds what one command prints on a terminal of 100 columns.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

FOLDER = Path(__file__).with_name("terminal")
WIDTH = "100"

#: Other texts than help, by the name of their file: what is typed.
COMMANDS: dict[str, list[list[str]]] = {
    "config": [["config"]],
    "policies": [["policies"]],
    "data-list": [["data", "list", "--json"]],
    "errors": [
        ["run", "--policy", "sync-dwv"],
        ["run", "missing.toml"],
        ["run", "--resume", "missing"],
        ["run", "--set", "train.epoch=2"],
        ["run", "--set", "train.epochs=0"],
        ["run", "--set", "train.epochs=many"],
        ["run", "--set", "train.last_batch=cut"],
        ["run", "--set", "train.drop_last=true"],
        ["run", "--set", "train"],
        ["run", "--set", "learners=0"],
        ["run", "--set", "learners=3", "--set", "recipe.sample=4"],
        ["run", "--set", "data.name=digit"],
        ["run", "--set", "data.name=breast_cancer"],
        ["run", "--set", "model.name=liner"],
        ["run", "--set", "model.name=missing.py:model"],
        ["run", "--set", "partition.classes=11"],
        ["run", "--set", "partition.sizes=equal"],
        ["run", "--set", "partition.wrong_labels={learner-99=0.5}"],
        ["run", "--set", "train.optimizer=sdg"],
        ["run", "--set", "train.weight_decay_on=['nothing*']", "--set", "train.weight_decay=0.1"],
        ["run", "--set", "validation.fraction=0"],
        ["run", "--set", "upload.codec=zip"],
        ["run", "--set", "incidents=[{at_seconds=1, learner='x'}]"],
        ["run", "--seed", "-1"],
        ["compare", "--policies", "sync-fedavg,sync-dwv"],
        ["compare", "--seeds", "1,two"],
        ["report", "missing"],
        ["replay", "missing"],
        ["reproduce", "table9"],
        ["reproduce", "table1", "--rows", "powerlaw-4"],
        ["codec", "inspect", "missing.packet"],
        ["model", "init", "missing.toml", "--out", "m.safetensors"],
        ["controller", "--config", "missing.toml"],
        ["learner", "--controller", "nowhere"],
        ["status", "nowhere"],
        ["certs", "show", "missing"],
    ],
}


def verbs() -> list[list[str]]:
    """Return every command as it is typed, the program itself first."""
    import typer

    from metis.cli import command_line

    found: list[list[str]] = [[]]

    def walk(command: object, typed: list[str]) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            found.append([*typed, name])
            walk(inner, [*typed, name])

    walk(typer.main.get_command(command_line()), [])
    return found


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name of each file and what should be in it."""
    for verb in verbs():
        yield "-".join(["help", *verb]), said([*verb, "--help"])
    for name, commands in COMMANDS.items():
        yield name, "\n".join(said(command) for command in commands)


def said(arguments: list[str]) -> str:
    """Return a command line, its exit code if that is not 0, and what it prints."""
    from metis import cli
    from metis.cli import common

    out = io.StringIO()
    code = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        screen = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "METIS_DATA": folder}
        stack.enter_context(patch.dict(os.environ, screen))
        stack.enter_context(patch.object(sys, "argv", ["metis", *arguments]))
        # Otherwise click finds out that it is not `metis` that runs.
        stack.enter_context(patch.object(sys.modules["__main__"], "__package__", None))
        for console in (common.console, common.complaints):
            stack.enter_context(patch.object(console, "_width", int(WIDTH)))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(out))
        stack.enter_context(contextlib.chdir(folder))
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = out.getvalue().replace(str(Path(folder).resolve()), "HERE")
    lines = [line.rstrip() for line in printed.replace(folder, "HERE").splitlines()]
    ended = f"  [exit code {code}]" if code else ""
    return f"$ metis {' '.join(arguments)}{ended}\n" + "\n".join(lines).strip("\n") + "\n"


def write() -> None:
    """Write every file, and remove those of commands that are gone."""
    kept = {FOLDER / f"{name}.txt": text for name, text in texts()}
    for path in set(FOLDER.glob("*.txt")) - set(kept):
        path.unlink()
    for path, text in kept.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
