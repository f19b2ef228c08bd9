"""Models on disk, as safetensors: each tensor by its name and shape. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from metis.core.errors import ModelError, RunError
from metis.core.types import Layout, Vector, frozen
from metis.store.atomic import partial, put_in_place


def save_safetensors(path: str | os.PathLike[str], weights: Vector, layout: Layout) -> None:
    """Write a model. The file is there whole or not at all, also after a crash half-way."""
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
        save_file(tensors, partial(target))
        put_in_place(target)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write weights to {target}: {error}") from error


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
