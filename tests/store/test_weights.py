"""Models on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from metis.core.errors import ModelError, RunError
from metis.core.types import Layout, Tensor
from metis.store.weights import read_safetensors, save_safetensors

LAYOUT = Layout((Tensor("fc.weight", (2, 3), "dense", 0), Tensor("fc.bias", (2,), "plain", 6)))
WEIGHTS = np.arange(8, dtype=np.float32)


def test_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_safetensors(path, WEIGHTS, LAYOUT)

    assert read_safetensors(path, LAYOUT).tobytes() == WEIGHTS.tobytes()
    assert load_file(path)["fc.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_wrong_shape_is_refused_by_name_with_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"fc.weight": np.zeros((3, 2), np.float32), "fc.bias": np.zeros(2, np.float32)}, path)

    with pytest.raises(ModelError, match=r"'fc.weight' has shape \(3, 2\).*needs \(2, 3\)"):
        read_safetensors(path, LAYOUT)


def test_missing_and_foreign_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    weight, bias = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)

    save_file({"fc.weight": weight}, path)
    with pytest.raises(ModelError, match=r"no tensor 'fc.bias'"):
        read_safetensors(path, LAYOUT)

    save_file({"fc.weight": weight, "fc.bias": bias, "head": bias}, path)
    with pytest.raises(ModelError, match="has a tensor 'head'"):
        read_safetensors(path, LAYOUT)


def test_counters_in_a_file_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(
        {
            "fc.weight": np.ones((2, 3), np.float64),
            "fc.bias": np.ones(2, np.float16),
            "num_batches_tracked": np.array([3]),
        },
        path,
    )

    assert read_safetensors(path, LAYOUT).tolist() == [1.0] * 8


def test_damaged_missing_and_unwritable_files_are_told_plainly(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(ModelError, match="cannot read weights"):
        read_safetensors(path, LAYOUT)
    path.write_bytes(b"not safetensors at all")
    with pytest.raises(ModelError, match="cannot read weights"):
        read_safetensors(path, LAYOUT)
    with pytest.raises(RunError, match="cannot write"):
        save_safetensors(tmp_path / "nowhere" / "model.safetensors", WEIGHTS, LAYOUT)
    with pytest.raises(ModelError, match="8 values"):
        save_safetensors(path, WEIGHTS[:5], LAYOUT)
