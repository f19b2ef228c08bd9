"""A config from a TOML file, from the command line and from Python; and back to TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metis.config import keys
from metis.config.schema import DEFAULT_LEARNERS, Config
from metis.core.errors import ConfigError


def load(path: str | Path | None = None, overrides: Sequence[str] = (), **values: Any) -> Config:
    """Return a config from a TOML file, then `key=value` overrides, then keyword values."""
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = _parsed(Path(path).read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except UnicodeError as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    in_file = "groups" in raw
    for override in overrides:
        name, sep, text = override.partition("=")
        if not sep or not name.strip():
            raise ConfigError(f"--set {override!r}: expected key=value, such as train.epochs=2")
        keys.insert(raw, name.strip(), keys.scalar(text.strip()))
    if overrides and not in_file:
        _complete_groups(raw)
    for name, value in values.items():
        keys.merge(raw, name, value)
    if "groups" not in raw and raw.get("learners") == 1:
        raw["groups"] = {"fast": {}}
    return keys.read(Config, raw)


def load_text(text: str, where: str) -> Config:
    """Return the config that a text holds; `where` says in errors where it came from."""
    return keys.read(Config, _parsed(text, where))


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None


def _complete_groups(raw: dict[str, Any]) -> None:
    """Let `--set groups.slow.vc_tomb=1` change one default group and leave the other there."""
    given = raw.get("groups")
    if not given or not isinstance(given, dict) or not set(given) <= {"fast", "slow"}:
        return
    stated = [g.get("learners") for g in given.values() if isinstance(g, dict)]
    if sum(n for n in stated if isinstance(n, int)) < raw.get("learners", DEFAULT_LEARNERS):
        raw["groups"] = {name: given.get(name, {}) for name in ("fast", "slow")}


def dump(config: Config, comments: bool = False) -> str:
    """Return a config as TOML that `load` reads back to an equal one."""
    return keys.write(config, comments)
