"""Tensors <-> plain values, so that an optimizer's state can be written to a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_plain(value: Any) -> Any:
    """Return a tree with every tensor copied into a numpy array and its shape.

    The shape is kept apart since not every file format distinguishes a number from an array of
    one, and some optimizers count their steps in a tensor without dimensions.
    """
    if isinstance(value, Tensor):
        values = value.detach().cpu().numpy().reshape(-1).copy()
        return {"shape": tuple(value.shape), "values": values}
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_plain(item) for item in value)
    return value


def from_plain(value: Any, device: torch.device) -> Any:
    """Undo `to_plain`: the same tree, with new tensors on a device."""
    if isinstance(value, dict):
        if value.keys() == {"shape", "values"}:
            return torch.from_numpy(np.array(value["values"])).reshape(value["shape"]).to(device)
        return {name: from_plain(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(from_plain(item, device) for item in value)
    return value
