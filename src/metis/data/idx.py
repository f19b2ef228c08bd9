"""The IDX format of MNIST and its relatives, plain, gzipped, or inside EMNIST's zip."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Dataset

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"


def parse_idx(content: bytes, origin: str) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes; gzipped content is unpacked first."""
    if content[:2] == _GZIP_MAGIC:
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{origin} is a damaged gzip file: {error}") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DataError(
            f"{origin} is not an IDX file of unsigned bytes: it must start with 00 00 08, "
            f"not {content[:3].hex(' ') or 'nothing'}"
        )
    num_dimensions = content[3]
    start = 4 + 4 * num_dimensions
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{origin} is cut short or too long: {len(content)} bytes, expected {expected}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_mnist_like(path: Path) -> Dataset:
    """Read the four files of MNIST or Fashion-MNIST from a folder, each plain or `.gz`."""
    names = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    return _dataset([parse_idx(*_content(path, name)) for name in names], 10)


def read_emnist_byclass(path: Path) -> Dataset:
    """Read EMNIST ByClass from NIST's `gzip.zip`, or from a folder with it or with its files.

    NIST stores each image column by column; here rows come first, as in every other source.
    """
    stems = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    names = [f"emnist-byclass-{stem}-ubyte" for stem in stems]
    archive = path / "gzip.zip" if path.is_dir() else path
    if path.is_dir() and not archive.is_file():
        parts = [parse_idx(*_content(path, name)) for name in names]
    else:
        parts = [parse_idx(_zipped(archive, name), f"{archive}: {name}.gz") for name in names]
    dataset = _dataset(parts, 62)
    return replace(
        dataset,
        x_train=np.ascontiguousarray(np.swapaxes(dataset.x_train, 2, 3)),
        x_test=np.ascontiguousarray(np.swapaxes(dataset.x_test, 2, 3)),
    )


def _content(folder: Path, name: str) -> tuple[bytes, str]:
    for found in (folder / f"{name}.gz", folder / name):
        if found.is_file():
            return found.read_bytes(), str(found)
    raise DataError(f"{folder} must be a folder that holds {name} or {name}.gz, and does not")


def _zipped(archive: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as zipped:
            return zipped.read(f"gzip/{name}.gz")
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise DataError(f"{archive} is not NIST's gzip.zip with gzip/{name}.gz: {error}") from error


def _dataset(parts: list[NDArray[np.uint8]], num_classes: int) -> Dataset:
    for images in (parts[0], parts[2]):
        if images.ndim != 3:
            raise DataError(f"images must be count x rows x columns, but are {images.shape}")
    y_train, y_test = (labels.ravel().astype(np.int64) for labels in (parts[1], parts[3]))
    return Dataset("idx", parts[0][:, None], y_train, parts[2][:, None], y_test, num_classes)
