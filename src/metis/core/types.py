"""The nouns of a federation. Values are frozen; a vector inside one is never written to again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NewType, TypeAlias

import numpy as np
from numpy.typing import NDArray

_HASHED_AT_ONCE = 1 << 22  # values
_RUNNING_STATISTICS = ("running_mean", "running_var")  # as torch calls them

LearnerId = NewType("LearnerId", str)

#: A whole model, flattened: parameters and float buffers in the order of its `Layout`.
Vector: TypeAlias = NDArray[np.float32]

#: What a tensor is to a codec. `conv` and `dense` are weights; `plain` is every other parameter
#: (biases, batch-norm gamma and beta); `buffer` is learned but not trained (running statistics).
Kind: TypeAlias = Literal["conv", "dense", "plain", "buffer"]

#: Parts of a `Vector`: from, to; ascending.
Spans: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where one named tensor lies inside a `Vector`."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model lies in a vector. Lets a controller without torch tell a filter from a bias."""

    tensors: tuple[TensorSpec, ...]

    @property
    def size(self) -> int:
        last = self.tensors[-1] if self.tensors else None
        return last.offset + last.size if last else 0

    def spans(self, kind: Kind) -> Spans:
        """Return where the tensors of a kind lie; neighbours are one."""
        found: list[tuple[int, int]] = []
        for tensor in self.tensors:
            if tensor.kind == kind and tensor.size:
                touches = bool(found) and found[-1][1] == tensor.offset
                start = found.pop()[0] if touches else tensor.offset
                found.append((start, tensor.offset + tensor.size))
        return tuple(found)

    def running_statistics(self) -> NDArray[np.int64]:
        """Return where batch-norm's running means and variances lie; empty if there are none."""
        places = [
            np.arange(tensor.offset, tensor.offset + tensor.size)
            for tensor in self.tensors
            if tensor.kind == "buffer" and tensor.name.rpartition(".")[2] in _RUNNING_STATISTICS
        ]
        return np.concatenate(places) if places else np.empty(0, np.int64)

    def as_rows(self) -> list[list[Any]]:
        """Return the name, shape and kind of each tensor, as JSON can hold them."""
        return [[tensor.name, list(tensor.shape), tensor.kind] for tensor in self.tensors]

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Layout:
        """Return what `as_rows` told of. ValueError or TypeError if it is something else."""
        tensors: list[TensorSpec] = []
        offset = 0
        for name, shape, kind in rows:
            tensors.append(TensorSpec(name, tuple(shape), kind, offset))
            offset += tensors[-1].size
        return cls(tuple(tensors))

    @property
    def digest(self) -> str:
        """Equal for two models exactly when their vectors can be exchanged."""
        lines = "\n".join(f"{t.name} {t.shape} {t.kind} {t.offset}" for t in self.tensors)
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


@dataclass(slots=True, eq=False)
class Sparse:
    """A model as what tells it from its base: few weights that changed, and parts sent whole."""

    base: Vector
    at: NDArray[np.int64]  # places in the vector, ascending
    by: Vector  # what is added there
    spans: Spans  # what does not depend on the base
    values: Vector  # of all spans, joined
    whole: Vector | None = None  # the model itself, once somebody has asked for it

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape


#: A model as it arrives. Most of what is done with it needs the vector: see `dense`.
Model: TypeAlias = Vector | Sparse


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One published community model."""

    version: int
    weights: Vector


@dataclass(frozen=True, slots=True)
class Profile:
    """What a learner says of itself when it joins."""

    learner: LearnerId
    num_examples: int  # training examples, those held out for validation not counted
    steps_per_epoch: int
    group: str = "default"  # a device class such as "fast"
    num_held_out: int = 0  # examples that it validates on
    steps_per_full_epoch: int | None = None  # with these trained on, too; None: there are none

    def examples(self, all_examples: bool) -> int:
        """Return how many examples it trains on: also those held out, in a task that says so."""
        return self.num_examples + (self.num_held_out if all_examples else 0)

    def epoch_steps(self, all_examples: bool) -> int:
        """Return the mini-batches of an epoch over them."""
        full = self.steps_per_full_epoch
        return full if all_examples and full is not None else self.steps_per_epoch


@dataclass(frozen=True, slots=True)
class Task:
    """An order to train. Delivery is at-least-once; a task number is answered once."""

    number: int
    learner: LearnerId
    start: Snapshot
    committed_steps: int  # S_c of the start model: mini-batches in all folds that led to it
    max_steps: int | None = None  # a budget of mini-batches; None: its trigger decides
    ordinal: int = 1  # how many tasks this learner has been given; chance is keyed by it
    rate_factor: float = 1.0  # what the learner's learning rate is multiplied by
    all_examples: bool = False  # train on those held out for validation, too; nobody judges it


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """A confusion matrix: rows are actual classes, columns predicted ones."""

    matrix: NDArray[np.int64]

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.matrix + other.matrix)


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """What a regression needs to be scored: sums over examples, so that sites can be pooled."""

    num_examples: int
    squared_error: float
    absolute_error: float
    target: float
    target_squared: float

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(
            self.num_examples + other.num_examples,
            self.squared_error + other.squared_error,
            self.absolute_error + other.absolute_error,
            self.target + other.target,
            self.target_squared + other.target_squared,
        )


Counts: TypeAlias = ClassCounts | ErrorSums


@dataclass(frozen=True, slots=True)
class Update:
    """A learner's answer to a task: its model, and what it took to make it."""

    learner: LearnerId
    task: int
    weights: Model
    base_version: int
    num_examples: int
    num_steps: int
    seconds: float = 0.0  # time spent in those steps, by the learner's own clock
    counts: Counts | None = None  # on its own validation set, if it has one


def read_only(weights: NDArray[np.floating]) -> Vector:
    """Return weights as a float32 vector that numpy itself keeps from being written to."""
    vector = np.ascontiguousarray(weights, dtype=np.float32)
    vector.flags.writeable = False
    return vector


def gather(vector: Vector, spans: Spans) -> Vector:
    """Return parts of a vector, joined."""
    parts = [vector[start:stop] for start, stop in spans]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def scatter(vector: Vector, values: Vector, spans: Spans) -> None:
    """Write to parts of a vector what `gather` would return of them."""
    at = 0
    for start, stop in spans:
        vector[start:stop] = values[at : at + stop - start]
        at += stop - start


def as_vector(model: Model) -> Vector:
    """Return a model as a vector. Made once: whoever asks again is given the same one."""
    if not isinstance(model, Sparse):
        return model
    if model.whole is None:
        whole = np.array(model.base, dtype=np.float32)
        with np.errstate(over="ignore"):  # a controller looks whether an update is finite
            whole[model.at] += model.by
        scatter(whole, model.values, model.spans)
        model.whole = read_only(whole)
    return model.whole


def digest(weights: Vector) -> str:
    """Return the identity of a model: SHA-256 over its little-endian float32 bytes.

    Of a model with more than four million values: over the SHA-256 of each four million in turn,
    which two cores find in half the time.
    """
    values = np.ascontiguousarray(weights, dtype="<f4")
    if values.size <= _HASHED_AT_ONCE:
        return hashlib.sha256(values.data).hexdigest()
    starts = range(0, values.size, _HASHED_AT_ONCE)
    parts = [values[start : start + _HASHED_AT_ONCE].data for start in starts]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda part: hashlib.sha256(part).digest(), parts)
        return hashlib.sha256(b"".join(found)).hexdigest()
