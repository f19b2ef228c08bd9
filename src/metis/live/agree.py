"""What a controller and its sites must have in common, as text and as a digest."""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import Any

from metis.config import Config, load_text
from metis.config.keys import shared, write_values
from metis.core.errors import ConfigError


def agreed(config: Config) -> str:
    """Return all that a site and its controller must agree on, as TOML: the shared keys.

    Which data, where it lies, and on what a site computes is its own business; when it ends, and
    what is kept, is the controller's; how long things take in virtual time is a simulation's. That
    the models are of one kind is checked by their layout.
    """
    if config.has_own_policy:
        raise ConfigError(
            f"policy = {config.policy!r}: a federation across machines takes a policy of "
            "`metis policies`; a recipe of your own runs in a simulation"
        )
    return write_values(shared(config))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(ours: str, theirs: str) -> list[str]:
    """Return the keys that two agreements give different values, with both."""
    here, there = (_flat(tomllib.loads(text)) for text in (ours, theirs))
    return [
        f"{name} is {here.get(name, 'not set')} here, "
        f"{there.get(name, 'not set')} at the controller"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every key of nested tables by its path, with its value as TOML has it."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = json.dumps(value)
    return found


def read_agreed(text: str) -> Config:
    """Return an agreement as a config. ConfigError if it is none.

    Whatever else the text may name, a file or a device of ours, is left out.
    """
    where = "the controller's config"
    return load_text(agreed(load_text(text, where)), where)
