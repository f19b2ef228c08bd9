"""Models on disk, as safetensors: each tensor by its name and shape. Needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from metis.core.errors import ModelError, RunError
from metis.core.types import Kind, Layout, Tensor, Vector, frozen
from metis.store.atomic import replacing

_FLOATS = ("F64", "F32", "F16", "BF16")  # what a model is made of


def save_safetensors(
    path: str | os.PathLike[str],
    weights: Vector,
    layout: Layout,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a model, and notes about it. The file is there whole or not at all, also after a
    crash half-way."""
    if weights.shape != (layout.size,):
        raise ModelError(
            f"the layout has {layout.size} values, but the vector has shape {weights.shape}"
        )
    tensors = {
        place.name: weights[place.offset : place.offset + place.size].reshape(place.shape)
        for place in layout.tensors
    }
    target = Path(path)
    try:
        with replacing(target) as written:
            save_file(tensors, written, dict(about or {}) or None)
    except SafetensorError as error:
        raise RunError(f"cannot write {target}: {error}") from error


def save_first(
    path: str | os.PathLike[str], weights: Vector, layout: Layout, num_classes: int
) -> None:
    """Write the model that a federation begins with, so that a controller needs nothing else."""
    # One note, not two: safetensors writes several in any order, and files would differ.
    about = {"metis": json.dumps({"tensors": layout.as_rows(), "num_classes": num_classes})}
    save_safetensors(path, weights, layout, about)


def read_first(path: str | os.PathLike[str]) -> tuple[Vector, Layout, int]:
    """Return what `save_first` wrote: the model, its layout, and what is to be told apart."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["metis"])
        layout = Layout.of_rows(about["tensors"])
        num_classes = int(about["num_classes"])
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is not a safetensors file: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"{path} does not say how a federation's model lies in it; "
            "make one with `metis model init`"
        ) from None
    return read_safetensors(path, layout), layout, num_classes


def file_layout(path: str | os.PathLike[str]) -> Layout:
    """Return a layout for the float tensors of a file, in the order in which they lie there.

    Kinds follow from shapes: fewer than two dimensions are plain, two dense, more conv.
    """
    tensors: list[Tensor] = []
    offset = 0
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.offset_keys():
                tensor = file.get_slice(name)
                shape = tuple(tensor.get_shape())
                if tensor.get_dtype() not in _FLOATS:
                    continue  # a counter
                kind: Kind = "plain" if len(shape) < 2 else "dense" if len(shape) == 2 else "conv"
                tensors.append(Tensor(name, shape, kind, offset))
                offset += tensors[-1].size
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is not a safetensors file: {error}") from None
    return Layout(tuple(tensors))


def read_safetensors(path: str | os.PathLike[str], layout: Layout) -> Vector:
    """Return the model in a file as a vector of this layout.

    Integer tensors that the layout does not name (step counters) are passed over. Raises
    ModelError, naming the tensor and both shapes, when file and layout do not fit together.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read weights from {path}: {error}") from error
    weights = np.empty(layout.size, dtype=np.float32)
    for place in layout.tensors:
        tensor = tensors.pop(place.name, None)
        if tensor is None:
            raise ModelError(
                f"{path} has no tensor {place.name!r}; the model needs it, of shape {place.shape}"
            )
        if tensor.shape != place.shape:
            raise ModelError(
                f"{path}: tensor {place.name!r} has shape {tensor.shape}, "
                f"but the model needs {place.shape}"
            )
        weights[place.offset : place.offset + place.size] = tensor.reshape(-1)
    extra = [name for name, tensor in tensors.items() if tensor.dtype.kind == "f"]
    if extra:
        raise ModelError(f"{path} has a tensor {extra[0]!r}, which the model has not")
    return frozen(weights)
