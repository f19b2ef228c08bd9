"""Python state <-> one safe file: values as JSON, arrays as safetensors. No pickle.

Written for checkpoints: any tree of plain values, arrays and dataclasses. A dataclass is stored
under a name that is declared for it (`Names`), never under its Python name, so that classes can
be renamed and moved. Whatever is referred to twice is stored once and shared again when read: a
model that ten tasks started from costs one model, and an update waiting in a queue is the one its
judges answer for.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from metis.core.errors import JournalError, RunError
from metis.store.atomic import replacing

#: Of the file. It changes when a file of the old format cannot be read as one of the new format.
FORMAT = 1

_COLLECTIONS = {kind.__name__: kind for kind in (list, tuple, deque, set, frozenset)}
_HELP = "finish the run with the version of Metis that wrote it, or start it again"


@runtime_checkable
class Durable(Protocol):
    """An object that is no dataclass, and says itself what of it must outlive a crash."""

    def state(self) -> Any:
        """Return plain values, arrays and dataclasses that are declared."""
        ...

    def restore(self, state: Any) -> None:
        """Take up a state, on an object that was made as the stored one was."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """What a file may hold: dataclasses by the name they are stored under, and objects by theirs.

    A dataclass is made again from its fields. An object must be there when the file is read: its
    state is stored, and given back to it.
    """

    classes: Mapping[str, type]
    objects: Mapping[str, Durable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert len(set(self.classes.values())) == len(self.classes), "a class with two names"

    def __or__(self, more: Names) -> Names:
        both = (self.classes.keys() & more.classes.keys()) | (
            self.objects.keys() & more.objects.keys()
        )
        assert not both, f"declared twice: {sorted(both)}"
        return Names({**self.classes, **more.classes}, {**self.objects, **more.objects})


def write_packed(path: Path, value: object, names: Names) -> None:
    """Write a tree of values to a file that is either the old one or the whole new one.

    TypeError if it holds a value of another type; nothing is written then.
    """
    packer = _Packer(names)
    root = packer.pack(value)
    # Not ascontiguousarray, which makes an array of one value out of one without dimensions.
    arrays = {str(i): np.asarray(array, order="C") for i, array in enumerate(packer.arrays)}
    arrays["root"] = np.zeros(1, dtype=np.uint8)  # safetensors refuses a file without tensors
    document = {"format": FORMAT, "nodes": packer.nodes, "root": root}
    # One note, not three: safetensors writes several in any order, and files would differ.
    metadata = {"checkpoint": json.dumps(document)}
    try:
        with replacing(path) as written:
            save_file(arrays, written, metadata=metadata)
    except SafetensorError as error:
        raise RunError(f"cannot write {path}: {error}") from None


def read_packed(path: Path, names: Names) -> Any:
    """Read what `write_packed` wrote. Only what is named is ever made.

    A field that was added since the file was written gets its default. JournalError for a file of
    another format, for a name that is not declared, and for a field that is unknown or missing.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "checkpoint" not in metadata and "nodes" in metadata:
                raise JournalError(f"{path}: is a checkpoint without a format number; {_HELP}")
            document = json.loads(metadata["checkpoint"])
            found, nodes, root = document["format"], document["nodes"], document["root"]
            arrays = [file.get_tensor(str(i)) for i in range(len(file.keys()) - 1)]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: not a readable checkpoint: {error}") from None
    if found != FORMAT:
        raise JournalError(f"{path}: is a checkpoint of format {found}, not {FORMAT}; {_HELP}")
    try:
        return _Unpacker(nodes, arrays, names).unpack(root)
    except _MisfitError as error:
        raise JournalError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise JournalError(f"{path}: is a damaged checkpoint: {error!r}") from None


def check_packable(value: object, names: Names) -> None:
    """Raise TypeError unless a value can be written, with the path to what cannot be."""
    _Packer(names).pack(value)


class _MisfitError(Exception):
    """The file is whole, but holds something that this version does not declare."""


class _Packer:
    """Turns values into JSON: scalars as they are, all else as [index of its node]."""

    def __init__(self, names: Names) -> None:
        self.nodes: list[Any] = []
        self._names = {cls: name for name, cls in names.classes.items()}
        self._objects = {id(value): name for name, value in names.objects.items()}
        self.arrays: list[NDArray[Any]] = []
        self._index: dict[int, int] = {}  # id of a value -> its node; the root keeps values alive
        self._states: list[Any] = []  # and this list those that objects made for us

    def pack(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | str | int):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": repr(value)}
        if id(value) not in self._index:
            node = self._node(value)
            self._index[id(value)] = len(self.nodes)
            self.nodes.append(node)
        return [self._index[id(value)]]

    def _node(self, value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            self.arrays.append(value)
            return ["array", len(self.arrays) - 1, bool(value.flags.writeable)]
        if isinstance(value, bytes | memoryview):
            self.arrays.append(np.frombuffer(value, dtype=np.uint8))
            return ["bytes", len(self.arrays) - 1]
        if isinstance(value, dict):
            return ["dict", *([self.pack(k), self.pack(v)] for k, v in value.items())]
        if isinstance(value, set | frozenset):
            return [type(value).__name__, *map(self.pack, sorted(value))]
        if type(value).__name__ in _COLLECTIONS:
            return [type(value).__name__, *map(self.pack, value)]
        if type(value) in self._names:
            fields = {f.name: self.pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
            return ["object", self._names[type(value)], fields]
        if id(value) in self._objects:
            self._states.append(value.state())
            return ["durable", self._objects[id(value)], self.pack(self._states[-1])]
        raise TypeError(
            f"cannot checkpoint a {type(value).__name__}: it has no name to store it by"
        )


class _Unpacker:
    def __init__(self, nodes: list[Any], arrays: list[NDArray[Any]], names: Names) -> None:
        self._nodes = nodes
        self._arrays = arrays
        self._names = names
        self._made: dict[int, Any] = {}

    def unpack(self, value: Any) -> Any:
        if isinstance(value, dict):
            return float(value["float"])
        if not isinstance(value, list):
            return value
        (index,) = value
        if index not in self._made:
            self._made[index] = self._make(*self._nodes[index])
        return self._made[index]

    def _make(self, tag: str, *rest: Any) -> Any:
        if tag == "array":
            array = self._arrays[rest[0]]
            array.flags.writeable = rest[1]
            return array
        if tag == "bytes":
            return self._arrays[rest[0]].tobytes()
        if tag == "dict":
            return {self.unpack(k): self.unpack(v) for k, v in rest}
        if tag == "object":
            return self._object(*rest)
        if tag == "durable":
            return self._durable(*rest)
        return _COLLECTIONS[tag](map(self.unpack, rest))

    def _object(self, name: str, stored: dict[str, Any]) -> Any:
        """Make an object from its fields, without its constructor."""
        cls = self._names.classes.get(name)
        if cls is None:
            raise _MisfitError(f"holds a {name!r}, which this version does not know; {_HELP}")
        made: Any = object.__new__(cls)
        unknown = set(stored)
        for one in dataclasses.fields(cls):
            if one.name in stored:
                value = self.unpack(stored[one.name])
            elif one.default is not dataclasses.MISSING:
                value = one.default
            elif one.default_factory is not dataclasses.MISSING:
                value = one.default_factory()
            else:
                raise _MisfitError(f"its {name!r} lacks the field {one.name!r}; {_HELP}")
            object.__setattr__(made, one.name, value)
            unknown.discard(one.name)
        if unknown:
            raise _MisfitError(f"its {name!r} has the unknown field {min(unknown)!r}; {_HELP}")
        return made

    def _durable(self, name: str, state: Any) -> Any:
        known = self._names.objects.get(name)
        if known is None:
            raise _MisfitError(
                f"holds the state of {name!r}, which is not there; "
                "resume with the policy that the run was begun with"
            )
        known.restore(self.unpack(state))
        return known
