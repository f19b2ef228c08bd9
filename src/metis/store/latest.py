"""Each learner's latest model in a file of its own, for a federation that memory does not hold.

A file is written once, under a number of its own, and never again: what a checkpoint names is
still there when the federation goes on from it, whatever was folded since.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from metis.core.errors import RunError
from metis.core.types import LearnerId, Vector
from metis.store.atomic import sync_directory

_SUFFIX = ".latest"


@dataclass(slots=True)
class LatestOnDisk:
    """A mapping from learners to models. What it returns is a view of a file, paged in when read.

    RunError if a file cannot be written or read. Between two checkpoints there are two files of a
    learner at most.
    """

    directory: str
    files: dict[LearnerId, int] = field(default_factory=dict)  # learner -> number of its file
    next_file: int = 1
    pinned: set[int] = field(default_factory=set)  # files that the last checkpoint names
    size: int | None = None  # values of a model

    def open(self, directory: Path) -> None:
        """Take up what is named here, in this directory, and drop all else that lies there."""
        self.directory = str(directory)
        self.pinned = set(self.files.values())
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.glob(f"*{_SUFFIX}"):
                if path.name not in {self._path(number).name for number in self.pinned}:
                    path.unlink()
        except OSError as error:
            raise RunError(f"cannot write to {directory}: {error.strerror}") from None

    def sync(self) -> None:
        """Return when all models are safe on disk: a checkpoint may now name them."""
        try:
            for number in set(self.files.values()) - self.pinned:
                with open(self._path(number), "rb") as file:
                    os.fsync(file.fileno())
            sync_directory(Path(self.directory))
        except OSError as error:
            raise RunError(f"cannot write to {self.directory}: {error.strerror}") from None

    def pin(self) -> None:
        """A checkpoint names these files now, and no other: the ones before it can go."""
        before, self.pinned = self.pinned, set(self.files.values())
        for number in before - self.pinned:
            self._drop(number)

    def remove(self) -> None:
        """Drop all files: the federation is over."""
        for number in self.pinned | set(self.files.values()):
            self._path(number).unlink(missing_ok=True)
        Path(self.directory).rmdir()

    def get(self, learner: LearnerId) -> Vector | None:
        return self[learner] if learner in self.files else None

    def __iter__(self) -> Iterator[LearnerId]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, learner: LearnerId) -> Vector:
        path = self._path(self.files[learner])
        try:
            with open(path, "rb") as file:
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise RunError(f"cannot read {path}: {error}") from None
        if self.size is None or len(view) != 4 * self.size:
            raise RunError(f"{path} has {len(view)} bytes; it is no model of {self.size} values")
        return np.frombuffer(view, dtype="<f4")

    def __setitem__(self, learner: LearnerId, weights: Vector) -> None:
        number, path = self.next_file, self._path(self.next_file)
        try:
            with open(path, "wb", buffering=0) as file:
                content = np.ascontiguousarray(weights, dtype="<f4").data.cast("B")
                while content:
                    content = content[file.write(content) :]
        except OSError as error:
            path.unlink(missing_ok=True)
            raise RunError(f"cannot write {path}: {error.strerror}") from None
        if learner in self.files:
            del self[learner]
        self.files[learner], self.size, self.next_file = number, weights.size, number + 1

    def __delitem__(self, learner: LearnerId) -> None:
        self._drop(self.files.pop(learner))

    def _drop(self, number: int) -> None:
        if number not in self.pinned:
            self._path(number).unlink(missing_ok=True)  # whoever still reads it has it

    def _path(self, number: int) -> Path:
        return Path(self.directory) / f"{number}{_SUFFIX}"


STORED: Mapping[str, type] = {"latest-on-disk": LatestOnDisk}
