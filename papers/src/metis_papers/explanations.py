"""Known explanations of failed orderings: a file next to the results.

Not in the code: an explanation belongs to the cells that it was made from.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metis.core.errors import ConfigError, unknown

FILE = "explanations.toml"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one ordering of one row fails, and the command that shows it."""

    study: str
    cluster: str
    row: str
    ordering: str  # as `check` prints it
    text: str
    command: str


_KEYS = tuple(each.name for each in dataclasses.fields(Explanation))


def read_explanations(path: Path) -> list[Explanation]:
    """Return what a file's `[[explanation]]` tables say, nothing where there is no file.

    Raises ConfigError for what is not such a file, with the table and the key.
    """
    if not path.is_file():
        return []
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for key in values:
        if key != "explanation":
            raise ConfigError(f"{path}: {unknown('key', key, ('explanation',))}")
    tables = values.get("explanation", [])
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise ConfigError(f"{path}: explanation must be a list of tables: [[explanation]]")
    return [_explanation(path, number, one) for number, one in enumerate(tables, 1)]


def _explanation(path: Path, number: int, table: dict[str, Any]) -> Explanation:
    where = f"{path}: explanation {number}"
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{where}: {unknown('key', key, _KEYS)}")
    for key in _KEYS:
        if key not in table:
            raise ConfigError(f"{where} lacks the key {key}; it needs {', '.join(_KEYS)}")
        if not isinstance(table[key], str) or not table[key].strip():
            raise ConfigError(f"{where}: {key} = {table[key]!r} must be text")
    return Explanation(**{key: " ".join(table[key].split()) for key in _KEYS})
