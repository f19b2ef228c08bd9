"""FEMNIST in the layout that LEAF's scripts write: JSON files of users and their images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Dataset

_SIDE = 28


def read_femnist(path: Path) -> Dataset:
    """Read a folder with `train/*.json` and `test/*.json`; the users become the owners.

    LEAF writes each pixel as byte / 255; the bytes are restored exactly. One file is held in
    memory at a time.
    """
    x_train, y_train, owners = _read(path / "train")
    x_test, y_test, _ = _read(path / "test")
    return Dataset("femnist", x_train, y_train, x_test, y_test, 62, owners)


def _read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.str_]]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder} must hold the .json files that LEAF's preprocess.sh writes")
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    owners: list[NDArray[np.str_]] = []
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            for user, num_samples in zip(content["users"], content["num_samples"], strict=True):
                x = np.array(content["user_data"][user]["x"], dtype=np.float64)
                y = np.array(content["user_data"][user]["y"], dtype=np.int64)
                if len(x) != num_samples or len(y) != num_samples:
                    raise ValueError(
                        f"user {user} has {len(x)} images and {len(y)} labels, "
                        f"but num_samples says {num_samples}"
                    )
                images.append(np.rint(255 * x.reshape(-1, 1, _SIDE, _SIDE)).astype(np.uint8))
                labels.append(y)
                owners.append(np.full(len(y), user))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file} is not in LEAF's layout (users, num_samples, user_data with x of "
                f"{_SIDE * _SIDE} pixels and y): {error!r}"
            ) from error
    return np.concatenate(images), np.concatenate(labels), np.concatenate(owners)
