"""What a user brings as `file.py:function` in a config."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from metis.core.errors import ConfigError


def call(spec: str, where: str, *optional: object) -> Any:
    """Return what the named function of the user's own file returns.

    It is given as many of the optional arguments as it takes.
    """
    path, _, name = spec.rpartition(":")
    location = importlib.util.spec_from_file_location(Path(path).stem, path)
    if not path.endswith(".py") or location is None or location.loader is None:
        raise ConfigError(f"{where} = {spec!r}: expected file.py:function")
    if not Path(path).is_file():
        raise ConfigError(f"{where} = {spec!r}: there is no file {path}")
    module = importlib.util.module_from_spec(location)
    sys.modules.setdefault(location.name, module)
    try:
        location.loader.exec_module(module)
        function = getattr(module, name, None)
        if callable(function):
            return function(*optional[: _num_parameters(function)])
    except Exception as error:  # whatever the user's own code raises
        raise ConfigError(f"{where} = {spec!r}: {type(error).__name__}: {error}") from error
    raise ConfigError(f"{where} = {spec!r}: {path} has no function {name!r}")


def _num_parameters(function: Callable[..., Any]) -> int:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in signature(function).parameters.values())


def absolute(name: str) -> str:
    """Return a name with the path in it, if it has one, made absolute."""
    if name.endswith(".npz"):
        return str(Path(name).expanduser().absolute())
    path, sep, function = name.rpartition(":")
    return f"{Path(path).absolute()}{sep}{function}" if path.endswith(".py") else name
