"""Python state <-> one safe file: values as JSON, arrays as safetensors. No pickle.

Written for checkpoints: any tree of plain values, arrays and the dataclasses named at the call.
Whatever is referred to twice is stored once and shared again when read: a model that ten tasks
started from costs one model, and an update waiting in a queue is the one its judges answer for.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from metis.core.errors import JournalError, RunError
from metis.storage.atomic import partial, put_in_place

_COLLECTIONS = {kind.__name__: kind for kind in (list, tuple, deque, set, frozenset)}


def write_packed(path: Path, value: object) -> None:
    """Write a tree of values to a file that is either the old one or the whole new one."""
    packer = _Packer()
    root = packer.pack(value)
    # Not ascontiguousarray, which makes an array of one value out of one without dimensions.
    arrays = {str(i): np.asarray(array, order="C") for i, array in enumerate(packer.arrays)}
    arrays["root"] = np.zeros(1, dtype=np.uint8)  # safetensors refuses a file without tensors
    metadata = {"nodes": json.dumps(packer.nodes), "root": json.dumps(root)}
    try:
        save_file(arrays, partial(path), metadata=metadata)
        put_in_place(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write checkpoint {path}: {error}") from None


def read_packed(path: Path, classes: Collection[type]) -> Any:
    """Read what `write_packed` wrote. Only the given dataclasses are ever made."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
            nodes, root = json.loads(metadata["nodes"]), json.loads(metadata["root"])
            arrays = [file.get_tensor(str(i)) for i in range(len(file.keys()) - 1)]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: not a readable checkpoint: {error}") from None
    by_name = {cls.__name__: cls for cls in classes}
    assert all(by_name[cls.__name__] is cls for cls in classes), "two classes of one name"
    try:
        return _Unpacker(nodes, arrays, by_name).unpack(root)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise JournalError(f"{path}: not a checkpoint of this version: {error!r}") from None


class _Packer:
    """Turns values into JSON: scalars as they are, all else as [index of its node]."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.arrays: list[NDArray[Any]] = []
        self._index: dict[int, int] = {}  # id of a value -> its node; the root keeps values alive

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
        if dataclasses.is_dataclass(value):
            names = [f.name for f in dataclasses.fields(value)]
            fields = {name: self.pack(getattr(value, name)) for name in names}
            return ["object", type(value).__name__, fields]
        raise TypeError(f"cannot checkpoint a {type(value).__name__}")


class _Unpacker:
    def __init__(
        self, nodes: list[Any], arrays: list[NDArray[Any]], classes: dict[str, type]
    ) -> None:
        self._nodes = nodes
        self._arrays = arrays
        self._classes = classes
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
            made: Any = object.__new__(self._classes[rest[0]])
            for name, value in rest[1].items():
                object.__setattr__(made, name, self.unpack(value))
            return made
        return _COLLECTIONS[tag](map(self.unpack, rest))
