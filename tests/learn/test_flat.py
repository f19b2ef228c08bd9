"""A module as one vector."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metis.core.errors import ModelError
from metis.learn.flat import flatten, layout_of, load_into, vector_of
from metis.store.weights import read_safetensors, save_safetensors


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
