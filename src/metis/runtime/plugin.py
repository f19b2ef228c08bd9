"""Code and values of the user's own: `file.py:function` in a config, a recipe passed in Python."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from metis.config import is_file
from metis.core.errors import ConfigError
from metis.store.pack import Durable, Names

#: Modules of users' files by path and content: a class is the same whenever its file is asked for.
_LOADED: dict[tuple[str, str], ModuleType] = {}


def call(spec: str, where: str, *optional: object) -> Any:
    """Return what the named function of the user's own file returns.

    It is given as many of the optional arguments as it takes.
    """
    function = _function(spec, where)
    with_arguments = optional[: _num_parameters(function)]
    try:
        return function(*with_arguments)
    except Exception as error:  # whatever the user's own code raises
        raise ConfigError(f"{where} = {spec!r}: {type(error).__name__}: {error}") from error


def takes_arguments(spec: str, where: str) -> bool:
    """Whether the named function takes any argument."""
    return _num_parameters(_function(spec, where)) > 0


def source_digest(spec: str, where: str) -> str:
    """Return the SHA-256 digest of the file that a spec names."""
    return hashlib.sha256(_content(spec, where)).hexdigest()


def absolute(name: str) -> str:
    """Return a name with the path in it, if it has one, made absolute."""
    if name.endswith(".npz"):
        return str(Path(name).expanduser().absolute())
    path, sep, function = name.rpartition(":")
    return f"{Path(path).absolute()}{sep}{function}" if is_file(name) else name


def _function(spec: str, where: str) -> Callable[..., Any]:
    path, _, name = spec.rpartition(":")
    content = _content(spec, where)
    try:
        function = getattr(_module(path, content), name, None)
    except Exception as error:
        raise ConfigError(f"{where} = {spec!r}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{where} = {spec!r}: {path} has no function {name!r}")
    made: Callable[..., Any] = function
    return made


def _content(spec: str, where: str) -> bytes:
    path, _, _ = spec.rpartition(":")
    if not is_file(spec):
        raise ConfigError(f"{where} = {spec!r}: expected file.py:function")
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{where} = {spec!r}: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{where} = {spec!r}: cannot read {path}: {error.strerror}") from None


def _module(path: str, content: bytes) -> ModuleType:
    digest = hashlib.sha256(content).hexdigest()
    known = (str(Path(path).absolute()), digest)
    if known not in _LOADED:
        # A name that no other module has: a user's site.py is not the standard library's.
        name = f"metis_own_{Path(path).stem}_{len(_LOADED)}"
        location = importlib.util.spec_from_file_location(name, path)
        assert location is not None
        assert location.loader is not None
        module = importlib.util.module_from_spec(location)
        sys.modules[name] = module  # dataclasses look their module up
        try:
            location.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _LOADED[known] = module
    return _LOADED[known]


def _num_parameters(function: Callable[..., Any]) -> int:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in signature(function).parameters.values())


# ---- what a checkpoint may hold of them ---------------------------------------------------------


def names_of(parts: Mapping[str, object], known: Names) -> Names:
    """Return the names under which the user's own classes in these values are stored.

    A dataclass is called by its file (or module) and its name, and so are all other dataclasses of
    its file, which it may make later. An object that is no dataclass and has `state` and `restore`
    is called by its place. What is neither has no name, and no checkpoint can hold it.
    """
    taken = set(known.classes.values())
    classes: dict[str, type] = {}
    objects: dict[str, Durable] = {}
    for place, value in _walk(parts, ""):
        if dataclasses.is_dataclass(value):
            for cls in (type(value), *_neighbours(type(value))):
                if cls not in taken:
                    _register(classes, cls)
        elif isinstance(value, Durable):
            objects[place] = value
    return Names(classes, objects)


def _register(classes: dict[str, type], cls: type) -> None:
    name = f"{_origin(cls)}:{cls.__qualname__}"
    if classes.setdefault(name, cls) is not cls:
        raise ConfigError(f"policy: two classes are called {name}; rename one of them")


def _neighbours(cls: type) -> Iterator[type]:
    """Yield the dataclasses that are defined in the same file."""
    for value in list(vars(sys.modules.get(cls.__module__, ModuleType(""))).values()):
        is_class = isinstance(value, type) and dataclasses.is_dataclass(value)
        if is_class and value.__module__ == cls.__module__:
            yield value


def _origin(cls: type) -> str:
    """Return where a class comes from, the same in every process: its file's name, or module."""
    if cls.__module__.startswith("metis_own_"):
        return Path(str(sys.modules[cls.__module__].__file__)).name
    return cls.__module__


def _walk(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Yield a value and all that is in it, each with its place."""
    if isinstance(value, Mapping):
        inner = {str(name): item for name, item in value.items()}
    elif isinstance(value, list | tuple | set | frozenset):
        inner = {str(number): item for number, item in enumerate(value)}
    elif dataclasses.is_dataclass(value):
        yield place, value
        inner = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    else:
        yield place, value
        return
    for name, item in inner.items():
        yield from _walk(item, f"{place}.{name}" if place else name)
