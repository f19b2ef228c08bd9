"""Any dataset in one `.npz`: the format users bring, and the one the cache keeps."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Dataset
from metis.data.split import holdout

#: Of what x and y alone give, this much becomes the test set, by this key, always the same.
TEST_FRACTION = 0.2
TEST_KEY = (1990, 80)

_OWNERS = ("owners", "owner", "writer", "user")
_EXPECTED = (
    "expected x_train, y_train, x_test, y_test, or x and y (split 80/20), and optionally "
    "owners, owner, writer or user (or the same with _train)"
)


def read_npz(path: Path) -> Dataset:
    """Read a dataset; integer labels make a classification, float targets a regression.

    uint8 arrays of three dimensions or more are images and end up channels first: N x H x W gets
    a channel, N x H x W x C with C of 1 or 3 is turned. Everything else becomes float32 as it is.
    Pickled arrays are refused: they could run code.
    """
    arrays = _arrays(path)
    whole = "x" in arrays and "x_train" not in arrays
    names = ["x", "y"] if whole else ["x_train", "y_train", "x_test", "y_test"]
    if missing := [name for name in names if name not in arrays]:
        raise DataError(
            f"{path} lacks {', '.join(missing)} (it has {', '.join(sorted(arrays)) or 'nothing'}); "
            + _EXPECTED
        )
    inputs = [_inputs(arrays[name], f"{path}: {name}") for name in names[::2]]
    targets = [_targets(arrays[name], f"{path}: {name}") for name in names[1::2]]
    classes = [np.issubdtype(y.dtype, np.integer) for y in targets]
    if len(set(classes)) > 1 or len({x.shape[1:] for x in inputs}) > 1:
        raise DataError(f"{path}: train and test arrays are not of the same kind and shape")
    num_classes = int(max(y.max(initial=0) for y in targets)) + 1 if classes[0] else 0
    owners = _owners(arrays, len(targets[0]))
    if whole:
        x, y = inputs[0], targets[0]
        if len(x) != len(y):
            raise DataError(f"{path}: {len(x)} inputs in x but {len(y)} targets in y")
        train, test = holdout(y, TEST_FRACTION, TEST_KEY, num_classes=num_classes)
        inputs, targets = [x[train], x[test]], [y[train], y[test]]
        owners = owners[train] if owners is not None else None
    return Dataset(str(path), inputs[0], targets[0], inputs[1], targets[1], num_classes, owners)


def write_npz(path: Path, dataset: Dataset) -> None:
    """Write what `read_npz` reads back as the same arrays; the file appears whole or not at all."""
    arrays: dict[str, Any] = {
        "x_train": dataset.x_train,
        "y_train": dataset.y_train,
        "x_test": dataset.x_test,
        "y_test": dataset.y_test,
    }
    if dataset.owners is not None:
        arrays["owners_train"] = dataset.owners
    partial = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(partial, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        with zipfile.ZipFile(path):
            pass  # np.load takes what is no zip for a pickle, and says so misleadingly
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        pickled = "Object arrays" in str(error)
        what = "holds pickled objects, which could run code, not plain arrays" if pickled else ""
        raise DataError(
            f"{path} {what or f'cannot be read as an .npz ({error})'}; {_EXPECTED}"
        ) from error


def _inputs(x: NDArray[Any], origin: str) -> NDArray[Any]:
    if x.dtype.kind not in "buif" or x.ndim < 2:
        raise DataError(f"{origin} must hold numbers, one row per example: {x.dtype} {x.shape}")
    if x.dtype != np.uint8 or x.ndim < 3:
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError(f"{origin} holds values that are not finite numbers")
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(np.moveaxis(x, 3, 1))
    return x


def _targets(y: NDArray[Any], origin: str) -> NDArray[Any]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "buif" or y.ndim != 1:
        raise DataError(f"{origin} must hold one number per example, but is {y.dtype} {y.shape}")
    if y.dtype.kind != "f":
        return y.astype(np.int64)
    if not np.isfinite(y).all():
        raise DataError(f"{origin} holds targets that are not finite numbers")
    return y.astype(np.float32)


def _owners(arrays: dict[str, NDArray[Any]], num_examples: int) -> NDArray[Any] | None:
    for name in (*(f"{name}_train" for name in _OWNERS), *_OWNERS):
        if name in arrays and arrays[name].shape == (num_examples,):
            return arrays[name]
    return None
