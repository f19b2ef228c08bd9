"""A torch module as one vector: the only shape in which a model leaves or enters a learner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike, fspath

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from metis.core.errors import ModelError
from metis.core.types import Kind, Layout, Vector, frozen
from metis.core.types import Tensor as Place


def as_module(value: object, where: str) -> nn.Module:
    """Return what a user brought as a module; `where` says what they brought it as."""
    if not isinstance(value, nn.Module):
        raise ModelError(f"{where} must be a torch.nn.Module, not a {type(value).__name__}")
    return value


def layout_of(module: nn.Module) -> Layout:
    """Return where each tensor of a module lies in its vector: the order of its `state_dict`.

    Float tensors only, so batch-norm's step counters stay out; a tied tensor lies there once,
    under its first name. Raises ModelError for tensors that a float32 vector cannot hold.
    """
    places: list[Place] = []
    offset = 0
    for name, tensor, kind in _tensors(module):
        places.append(Place(name, tuple(tensor.shape), kind, offset))
        offset += tensor.numel()
    return Layout(tuple(places))


def vector_of(module: nn.Module) -> Vector:
    """Return a copy of a module's weights, and leave the module as it is."""
    parts = [tensor.detach().reshape(-1).cpu() for _, tensor, _ in _tensors(module)]
    return frozen(torch.cat(parts).numpy())


@dataclass(slots=True)
class Flat:
    """A module whose parameters and float buffers are views into one float32 tensor.

    Reading or writing the whole model is one copy, whatever the number of its tensors. The order
    of the values is the layout's, but for filters that are kept with their channels last, as fast
    convolutions want them. Made by `flatten`; moving the module to another device or type
    afterwards breaks the bond.
    """

    module: nn.Module
    layout: Layout
    values: Tensor  # one-dimensional; write to it in place only
    channels_last: tuple[Place, ...]  # the filters that are kept so
    tensors: tuple[Tensor, ...]  # of the module, in the order of the layout

    def point_to(self, values: Tensor) -> None:
        """Have the module hold other values, without copying any: it trains them where they are."""
        for place, tensor in zip(self.layout.tensors, self.tensors, strict=True):
            tensor.data = _part(values, place, self.channels_last)
        self.values = values

    def arranged(self, weights: NDArray[np.floating]) -> Tensor:
        """Return a vector as new values, on the module's device. Raises ModelError for its size."""
        values = as_tensor(weights, self.layout).to(self.values.device)
        for place in self.channels_last:
            part = values[place.offset : place.offset + place.size]
            part.copy_(part.view(place.shape).movedim(1, -1).reshape(-1))
        return values

    def as_vector(self, values: Tensor) -> Vector:
        """Return values as a vector that shares no memory with them."""
        vector = values.detach().clone()
        for place in self.channels_last:
            part = vector[place.offset : place.offset + place.size]
            part.copy_(_part(values.detach(), place, self.channels_last).reshape(-1))
        return frozen(_on_cpu(vector))

    def write_vector(self, values: Tensor, out: NDArray[np.float32]) -> None:
        """Write values on the CPU to an array, in the layout's order."""
        vector = torch.from_numpy(out).copy_(values)
        for place in self.channels_last:
            part = vector[place.offset : place.offset + place.size]
            part.copy_(_part(values, place, self.channels_last).reshape(-1))

    def to_vector(self) -> Vector:
        """Return a copy of the model as it is now."""
        return self.as_vector(self.values)

    def load_vector(self, weights: NDArray[np.floating]) -> None:
        """Overwrite the whole model. Raises ModelError when the sizes differ."""
        self.values.copy_(self.arranged(weights))

    def parts(self, values: Tensor) -> dict[str, Tensor]:
        """Return values, or rows of them, cut into the module's tensors, by name, not copied."""
        places = self.layout.tensors
        return {place.name: _part(values, place, self.channels_last) for place in places}


def flatten(module: nn.Module, channels_last: bool = False) -> Flat:
    """Move a module's parameters and float buffers into one tensor, in place.

    Parameters keep their identity, so optimizers made before still hold the right ones.
    `channels_last` is about the filters of two-dimensional convolutions.
    """
    layout = layout_of(module)
    tensors = [tensor for _, tensor, _ in _tensors(module)]
    if not tensors:
        raise ModelError(f"{type(module).__name__} has no parameters: there is nothing to exchange")
    moved = tuple(
        place
        for place in layout.tensors
        if channels_last and place.kind == "conv" and len(place.shape) == 4
    )
    values = torch.empty(layout.size, dtype=torch.float32, device=tensors[0].device)
    flat = Flat(module, layout, values, moved, tuple(tensors))
    for place, tensor in zip(layout.tensors, tensors, strict=True):
        _part(values, place, moved).copy_(tensor.detach())
    flat.point_to(values)
    return flat


def _part(values: Tensor, place: Place, channels_last: tuple[Place, ...]) -> Tensor:
    part, rows = values[..., place.offset : place.offset + place.size], values.shape[:-1]
    if place not in channels_last:
        return part.view(*rows, *place.shape)
    moved = (place.shape[0], *place.shape[2:], place.shape[1])
    return part.view(*rows, *moved).movedim(-1, len(rows) + 1)


def load_into(module: nn.Module, source: str | PathLike[str] | NDArray[np.floating]) -> None:
    """Load a result of a federation, a vector or a safetensors file, into a module of one's own.

    A file is matched by tensor names. Raises ModelError, naming the tensor, when it does not fit.
    """
    if not isinstance(source, np.ndarray):
        _load_file_into(module, fspath(source))
        return
    layout = layout_of(module)
    values = as_tensor(source, layout)
    with torch.no_grad():
        for place, (_, tensor, _) in zip(layout.tensors, _tensors(module), strict=True):
            tensor.copy_(values[place.offset : place.offset + place.size].view(place.shape))


def as_tensor(weights: NDArray[np.floating], layout: Layout) -> Tensor:
    """Return a copy of a vector as a tensor on the CPU. Raises ModelError for a wrong size."""
    if weights.shape != (layout.size,):
        raise ModelError(
            f"the model has {layout.size} values, but the vector has shape {weights.shape}"
        )
    return torch.from_numpy(np.array(weights, dtype=np.float32))


def _on_cpu(values: Tensor) -> NDArray[np.float32]:
    if values.is_cuda:
        # Through memory that the GPU can write to directly, which is faster.
        staged = torch.empty(values.shape, pin_memory=True).copy_(values)
        return staged.numpy().copy()
    array: NDArray[np.float32] = values.numpy()
    return array


def _load_file_into(module: nn.Module, path: str) -> None:
    try:
        tensors = load_file(path)
        result = module.load_state_dict(tensors, strict=False)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read weights from {path}: {error}") from error
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit the model: {error}") from error
    # Tied tensors and step counters are not in the file, and need not be.
    needed = {place.name for place in layout_of(module).tensors}
    missing = [name for name in result.missing_keys if name in needed]
    if missing:
        raise ModelError(f"{path} has no tensor {missing[0]!r}, which the model needs")
    extra = [name for name in result.unexpected_keys if tensors[name].is_floating_point()]
    if extra:
        raise ModelError(f"{path} has a tensor {extra[0]!r}, which the model has not")


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    filters = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, _ConvNd)
        for parameter in part.parameters(recurse=False)
        if parameter.ndim >= 3
    }
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor) or id(tensor) in seen:
            continue
        if is_lazy(tensor):
            raise ModelError(f"{name} has no shape yet: feed the module one batch first")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if tensor.dtype != torch.float32:
            raise ModelError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, but models are exchanged "
                "as float32: convert the module with .float() first"
            )
        seen.add(id(tensor))
        yield name, tensor, _kind(tensor, id(tensor) in filters)


def _kind(tensor: Tensor, is_filter: bool) -> Kind:
    if not isinstance(tensor, nn.Parameter):
        return "buffer"
    if is_filter:
        return "conv"
    return "dense" if tensor.ndim >= 2 else "plain"
