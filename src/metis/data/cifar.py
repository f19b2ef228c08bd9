"""CIFAR-10 and CIFAR-100 from their official binary archives. Nothing is unpickled or unpacked."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Dataset

_PIXEL_BYTES = 3 * 32 * 32


def read_cifar10(path: Path) -> Dataset:
    """Read `cifar-10-binary.tar.gz`, or the folder it lies in."""
    train = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    return _read(_archive(path, "cifar-10-binary.tar.gz"), train, "test_batch.bin", 1, 10)


def read_cifar100(path: Path) -> Dataset:
    """Read `cifar-100-binary.tar.gz`, or the folder it lies in; labels are the 100 fine ones."""
    return _read(_archive(path, "cifar-100-binary.tar.gz"), ("train.bin",), "test.bin", 2, 100)


def _archive(path: Path, name: str) -> Path:
    archive = path / name if path.is_dir() else path
    if not archive.is_file():
        raise DataError(f"{archive} does not exist")
    return archive


def _read(
    archive: Path, train: tuple[str, ...], test: str, label_bytes: int, num_classes: int
) -> Dataset:
    wanted = {*train, test}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                file = tar.extractfile(member) if name in wanted else None
                if file is not None:
                    found[name] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read as a .tar.gz archive: {error}") from error
    if missing := sorted(wanted - found.keys()):
        raise DataError(f"{archive} lacks {', '.join(missing)}: is it the binary version?")
    parts = [_records(found[name], label_bytes, f"{archive}: {name}") for name in (*train, test)]
    return Dataset(
        "cifar",
        np.concatenate([x for x, _ in parts[:-1]]),
        np.concatenate([y for _, y in parts[:-1]]),
        *parts[-1],
        num_classes,
    )


def _records(
    content: bytes, label_bytes: int, origin: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels; of several label bytes the last one is the finest."""
    width = label_bytes + _PIXEL_BYTES
    if not content or len(content) % width:
        raise DataError(
            f"{origin} is cut short: {len(content)} bytes, not a multiple of {width} per image"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
    images = np.ascontiguousarray(rows[:, label_bytes:]).reshape(-1, 3, 32, 32)
    return images, rows[:, label_bytes - 1].astype(np.int64)
