"""Frozen dataclasses as TOML tables: checked on the way in, documented on the way out."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from metis.core.errors import ConfigError, unknown
from metis.core.keys import check_value

Table = TypeVar("Table")


def table(kind: Any, doc: str) -> Any:
    """Declare a table inside a table. Which of its keys are shared each of them says."""
    return field(default_factory=kind, metadata={"doc": doc})


def read(kind: type[Table], raw: Mapping[str, Any]) -> Table:
    """Check a nested mapping and return it as a dataclass; what is wrong is named by its path."""
    value: Table = _table(raw, kind, "")
    return value


def insert(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted key."""
    *tables, last = name.split(".")
    for part in tables:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ConfigError(f"--set {name}: {part!r} is not a table")
    raw[last] = value


def merge(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set a key to a value or to dataclasses; a mapping's keys are merged into those there."""
    if isinstance(value, Mapping) and isinstance(raw.get(name), dict):
        for inner, item in value.items():
            merge(raw[name], inner, item)
    else:
        raw[name] = _plain(value)


def scalar(text: str) -> Any:
    """Return what a command-line value means: TOML if it is that, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text  # --set data.name=digits: quotes would only be in the way


def _table(raw: Any, kind: type, where: str) -> Any:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where or 'config'}: expected a table, got {_show(raw)}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in raw.items():
        path = f"{where}.{name}" if where else str(name)
        gone: Mapping[str, str] = getattr(kind, "GONE", {})
        if name in gone:
            raise ConfigError(f"{path}: this key is gone; {gone[name]}")
        if name not in fields:
            raise ConfigError(f"{path}: {unknown('key', name, fields)}")
        if value is None and fields[name].default is None:
            continue  # left to be filled in
        values[name] = _value(value, hints[name], path)
        check_value(values[name], fields[name].metadata, path)
    return kind(**values)


def _value(value: Any, hint: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        for option in arguments:
            if option is not type(None) and _fits(value, option):
                return _value(value, option, path)
        raise ConfigError(f"{path}: expected {_name(hint)}, got {_show(value)}")
    if dataclasses.is_dataclass(hint):
        return _table(value, typing.cast(type, hint), path)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a table, got {_show(value)}")
        return {str(k): _value(v, arguments[1], f"{path}.{k}") for k, v in value.items()}
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{path}: expected a list, got {_show(value)}")
        return tuple(_value(v, arguments[0], f"{path}[{i}]") for i, v in enumerate(value))
    if not _fits(value, hint):
        raise ConfigError(f"{path}: expected {_name(hint)}, got {_show(value)}")
    if hint is float:
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{path}: the number is too large") from None
    return value


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is tuple:
        return isinstance(value, Sequence) and not isinstance(value, str)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _name(hint: Any) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
    }
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_name(a) for a in typing.get_args(hint) if a is not type(None))
    return "a list" if typing.get_origin(hint) is tuple else names.get(hint, str(hint))


def _show(value: Any) -> str:
    kinds: dict[type, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
        list: "a list",
    }
    kind = "a table" if isinstance(value, Mapping) else kinds.get(type(value), "something else")
    return f"{value!r} ({kind})"


# ---- writing ----------------------------------------------------------------------------------


def as_dict(config: Any) -> dict[str, Any]:
    """Return a config or one of its tables as plain nested values, keys left open left out."""
    return {
        f.name: _plain(getattr(config, f.name))
        for f in dataclasses.fields(config)
        if getattr(config, f.name) is not None
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def write(value: Any, comments: bool = False) -> str:
    """Return a dataclass as TOML that `read` takes back to an equal one."""
    return "\n".join(_lines(value, "", comments)).strip() + "\n"


def shared(value: Any) -> dict[str, Any]:
    """Return the shared keys of a dataclass, keys left open left out, as nested values."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(value):
        item = getattr(value, one.name)
        if dataclasses.is_dataclass(item):
            inside: Any = shared(item)
        elif isinstance(item, Mapping) and any(map(dataclasses.is_dataclass, item.values())):
            inside = {name: shared(inner) for name, inner in item.items()}
        else:
            inside = _plain(item) if one.metadata.get("shared") else None
        if inside is not None and (inside != {} or one.metadata.get("shared")):
            found[one.name] = inside
    return found


def write_values(values: Mapping[str, Any], where: str = "") -> str:
    """Return nested values as TOML."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{_toml_key(name)} = {_toml(value)}" for name, value in plain.items()]
    text = "".join(f"{line}\n" for line in lines)
    for name, value in values.items():
        if isinstance(value, Mapping):
            path = f"{where}{_toml_key(name)}"
            text += f"\n[{path}]\n" + write_values(value, f"{path}.")
    return text


def _lines(value: Any, where: str, comments: bool) -> list[str]:
    """Write plain keys first, since TOML gives all that follows a table's head to that table."""
    lines: list[str] = []
    later: list[str] = []
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        path = f"{where}.{f.name}" if where else f.name
        remark = ["", f"# {_doc(f)}"] if comments else [""]
        if dataclasses.is_dataclass(item):
            later += [*remark, f"[{path}]", *_lines(item, path, comments)]
        elif isinstance(item, Mapping) and any(map(dataclasses.is_dataclass, item.values())):
            for name, inner in item.items():
                inner_path = f"{path}.{_toml_key(name)}"
                later += [*remark, f"[{inner_path}]", *_lines(inner, inner_path, comments)]
                remark = [""]
        elif isinstance(item, tuple) and dataclasses.is_dataclass(f.metadata.get("example")):
            example = f.metadata["example"]
            for inner in item:
                later += [*remark, f"[[{path}]]", *_lines(inner, path, comments)]
                remark = [""]
            if comments and not item:
                shown = [f"[[{path}]]", *_lines(example, path, comments)]
                later += [*remark, *(f"# {line}" for line in shown)]
        elif item is not None:
            lines.append(f"{f.name} = {_toml(item)}" + (f"  # {_doc(f)}" if comments else ""))
        elif comments:
            lines.append(f"# {f.name} =  # {_doc(f)}")
    return lines + later


def _doc(f: Any) -> str:
    choices = f.metadata.get("choices")
    doc: str = f.metadata["doc"]
    return f"{doc} ({' | '.join(choices)})" if choices else doc


def _toml_key(name: str) -> str:
    plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return name if plain else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML forbids one character in plain sight that JSON allows.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
