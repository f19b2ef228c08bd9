"""What a controller and its sites must have in common, as text and as a digest."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from metis.config import Config, Data, Horizon, Live, Model, Output, dump, load_text


def agreed(config: Config) -> str:
    """Return all that a site and its controller must agree on, as TOML.

    Which data, where it lies, and on what a site computes is its own business; when it ends, and
    what is kept, is the controller's. That the models are of one kind is checked by their layout.
    """
    shared = replace(
        config,
        data=Data(),
        model=Model(),
        device="cpu",
        engine="auto",
        threads=None,
        memory_gib=8.0,
        horizon=Horizon(),
        output=Output(),
        live=Live(),
    )
    return dump(shared)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(ours: str, theirs: str) -> list[str]:
    """Return the keys that two agreements give different values, with both."""
    values: dict[str, dict[str, str]] = {}
    for side, text in (("here", ours), ("at the controller", theirs)):
        prefix = ""
        for line in text.splitlines():
            if line.startswith("["):
                prefix = line.strip("[]") + "."
            elif " = " in line and not line.startswith("#"):
                name, _, value = line.partition(" = ")
                values.setdefault(prefix + name.strip(), {})[side] = value.strip()
    return [
        f"{name} is {found.get('here', 'not set')} here, "
        f"{found.get('at the controller', 'not set')} at the controller"
        for name, found in values.items()
        if found.get("here") != found.get("at the controller")
    ]


def read_agreed(text: str) -> Config:
    """Return an agreement as a config. ConfigError if it is none.

    Whatever else the text may name, a file or a device of ours, is left out.
    """
    where = "the controller's config"
    return load_text(agreed(load_text(text, where)), where)
