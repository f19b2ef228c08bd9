"""A module as one vector."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metis.core.errors import ModelError
from metis.store.weights import read_safetensors, save_safetensors
from metis.training.flat import flatten, layout_of, load_into, vector_of


class Tied(nn.Module):
    """An embedding whose matrix is also the output layer's, and something of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.conv = nn.Conv1d(3, 3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.conv(self.embedding(tokens).transpose(1, 2)))
        logits: Tensor = self.head(x.mean(dim=2))
        return logits


def test_a_layout_names_every_float_tensor_once_in_the_order_of_the_state_dict() -> None:
    tensors = layout_of(Tied()).tensors

    assert [(t.name, t.kind, t.offset) for t in tensors] == [
        ("embedding.weight", "dense", 0),
        ("conv.weight", "conv", 15),
        ("conv.bias", "plain", 33),
        ("norm.weight", "plain", 36),
        ("norm.bias", "plain", 39),
        ("norm.running_mean", "buffer", 42),
        ("norm.running_var", "buffer", 45),
        ("head.bias", "plain", 48),
    ]
    assert layout_of(Tied()).size == 53


def test_writing_the_vector_writes_the_module_and_the_other_way_round() -> None:
    module = Tied()
    before = vector_of(module)
    flat = flatten(module)

    assert flat.to_vector().tobytes() == before.tobytes()
    flat.load_vector(np.arange(53, dtype=np.float32))
    assert module.head.weight is module.embedding.weight
    assert module.head.weight[0].tolist() == [0.0, 1.0, 2.0]
    assert module.norm.running_var is not None
    assert module.norm.running_var.tolist() == [45.0, 46.0, 47.0]
    with torch.no_grad():
        module.conv.bias.fill_(7.0)  # type: ignore[union-attr]
    assert flat.to_vector()[33:36].tolist() == [7.0, 7.0, 7.0]


def test_a_flat_module_still_trains() -> None:
    module = Tied()
    flat = flatten(module)
    before = flat.to_vector()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.randint(0, 5, (4, 6))).square().sum().backward()
    optimizer.step()

    assert (flat.to_vector() != before).sum() > 40


class Picturing(nn.Module):
    """Filters of every kind, and what else is there in a network for pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.by_channel = nn.Conv2d(4, 4, (3, 2), groups=4)
        self.up = nn.ConvTranspose2d(4, 2, 2, bias=False)
        self.pointwise = nn.Conv2d(2, 3, 1)
        self.flat = nn.Flatten()
        self.head = nn.Linear(3 * 3 * 4, 2)
        self.line = nn.Conv1d(1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.by_channel(torch.relu(self.norm(self.first(x)))))
        x = self.head(self.flat(self.pointwise(x)))
        lines: Tensor = self.line(x.unsqueeze(1))
        return lines.flatten(1)


def test_channels_last_is_for_the_filters_of_two_dimensions_only() -> None:
    flat = flatten(Picturing(), channels_last=True)

    assert [place.name for place in flat.channels_last] == [
        "first.weight",
        "by_channel.weight",
        "up.weight",
        "pointwise.weight",
    ]
    assert flatten(Picturing()).channels_last == ()


def test_the_vector_is_in_the_layouts_order_wherever_the_channels_are() -> None:
    module = Picturing()
    before, layout = vector_of(module), layout_of(module)
    flat = flatten(module, channels_last=True)

    assert flat.layout == layout
    assert flat.to_vector().tobytes() == before.tobytes()
    assert vector_of(module).tobytes() == before.tobytes()
    flat.load_vector(np.arange(layout.size, dtype=np.float32))
    assert flat.to_vector().tolist() == list(range(layout.size))
    places = {place.name: place for place in layout.tensors}
    for name, tensor in module.state_dict().items():
        if name != "norm.num_batches_tracked":
            place = places[name]
            wanted = torch.arange(place.offset, place.offset + place.size).view(place.shape)
            assert torch.equal(tensor, wanted.float()), name


def test_arranging_a_vector_and_taking_it_back_are_inverse() -> None:
    flat = flatten(Picturing(), channels_last=True)
    rng = np.random.default_rng(0)
    vector = rng.normal(size=flat.layout.size).astype(np.float32)
    kept = vector.copy()
    values = flat.arranged(vector)

    assert flat.as_vector(values).tobytes() == vector.tobytes()
    assert torch.equal(flat.arranged(flat.as_vector(flat.values)), flat.values)
    assert values.tolist() != vector.tolist()
    assert sorted(values.tolist()) == sorted(vector.tolist())
    # Neither shares memory with what it was made from.
    values.zero_()
    assert vector.tobytes() == kept.tobytes()
    taken = flat.as_vector(flat.values)
    before = taken.copy()
    flat.values.zero_()
    assert taken.tobytes() == before.tobytes()
    assert not taken.flags.writeable
    with pytest.raises(ModelError, match=r"values, but the vector has shape \(5,\)"):
        flat.arranged(np.zeros(5, np.float32))


def test_filters_with_their_channels_last_are_views_of_the_values() -> None:
    module = Picturing()
    parameters = list(module.parameters())
    flat = flatten(module, channels_last=True)

    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    for part in (module.first, module.by_channel, module.up, module.pointwise):
        assert part.weight.is_contiguous(memory_format=torch.channels_last)
    flat.values.fill_(3.0)
    assert all(bool((tensor == 3.0).all()) for tensor in parameters)
    with torch.no_grad():
        module.first.weight[1, 2, 0, 1] = 7.0
    place = next(place for place in flat.layout.tensors if place.name == "first.weight")
    position = int(np.ravel_multi_index((1, 2, 0, 1), place.shape))
    assert flat.to_vector()[place.offset + position] == 7.0
    assert int((flat.values == 7.0).sum()) == 1
    # Among the values it lies at row 0, column 1, channel 2 of filter 1.
    position = int(np.ravel_multi_index((1, 0, 1, 2), (4, 3, 3, 3)))
    assert flat.values[place.offset + position] == 7.0


def test_values_are_cut_into_parts_without_copying() -> None:
    module = Picturing()
    flat = flatten(module, channels_last=True)
    state = {
        name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()
    }
    parts = flat.parts(flat.values)

    assert list(parts) == [place.name for place in flat.layout.tensors] == list(state)
    for name, part in parts.items():
        assert part.shape == state[name].shape
        assert part.stride() == state[name].stride()
        assert part.data_ptr() == state[name].data_ptr()
    others = flat.arranged(np.arange(flat.layout.size, dtype=np.float32))
    for place in flat.layout.tensors:
        part = flat.parts(others)[place.name]
        assert part.flatten().tolist() == list(range(place.offset, place.offset + place.size))
        part.fill_(-1.0)
    assert bool((others == -1.0).all())


def test_a_flat_module_computes_and_trains_the_same_wherever_the_channels_are() -> None:
    x = torch.randn(6, 3, 6, 6)
    found = []
    for channels_last in (False, True):
        torch.manual_seed(1)
        module = Picturing()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        flat = flatten(module, channels_last)
        given = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(module(given).square().sum())
            optimizer.step()
        found.append(flat.to_vector())

    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-4)


def test_a_result_loads_into_a_module_of_ones_own_in_one_call(tmp_path: Path) -> None:
    trained = Tied()
    path = tmp_path / "model.safetensors"
    save_safetensors(path, vector_of(trained), layout_of(trained))

    from_file, from_vector = Tied(), Tied()
    load_into(from_file, path)
    load_into(from_vector, read_safetensors(path, layout_of(from_vector)))

    assert vector_of(from_file).tobytes() == vector_of(trained).tobytes()
    assert vector_of(from_vector).tobytes() == vector_of(trained).tobytes()
    assert from_file.head.weight is from_file.embedding.weight


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    small = nn.Linear(2, 2)
    save_safetensors(path, vector_of(small), layout_of(small))

    with pytest.raises(ModelError, match=r"size mismatch for weight"):
        load_into(nn.Linear(3, 2), path)
    with pytest.raises(ModelError, match=r"has no tensor '0.weight'"):
        load_into(nn.Sequential(small), path)
    with pytest.raises(ModelError, match=r"has a tensor 'bias', which the model has not"):
        load_into(nn.Linear(2, 2, bias=False), path)
    with pytest.raises(ModelError, match=r"6 values, but the vector has shape \(5,\)"):
        load_into(small, np.zeros(5, np.float32))
    with pytest.raises(ModelError, match="cannot read weights"):
        load_into(small, tmp_path / "nothing.safetensors")


def test_tensors_a_float32_vector_cannot_hold_are_refused() -> None:
    with pytest.raises(ModelError, match=r"weight is float64.*\.float\(\)"):
        layout_of(nn.Linear(2, 2, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch call lazy modules new
        lazy = nn.LazyLinear(2), nn.LazyConv2d(2, 3)
    for module in lazy:
        with pytest.raises(ModelError, match="no shape yet"):
            layout_of(module)
    with pytest.raises(ModelError, match="no parameters"):
        flatten(nn.ReLU())
