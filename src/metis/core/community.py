"""How updates become a community model: four ways to average, one contract.

A community only adds up. What an update is worth is the weighting's business, when a version is
published the pacing's. All sums are float64; models are kept by reference, never copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from metis.core.errors import ConfigError, ModelError, RunError
from metis.core.kernels import Sum, divide, shift, shift_and_divide, weighted_mean, weighted_sum
from metis.core.types import (
    LearnerId,
    Model,
    Spans,
    Sparse,
    Update,
    Vector,
    dense,
    frozen,
    gather,
    scatter,
)

REPAIR_EVERY = 10_000  # folds, by default
_EPSILON = 2.0**-52  # twice what rounding to float64 can do, as a share of the result
_AT_ONCE = 64  # models that are read side by side; each may be a file
_TOLERANCE = 1e-8  # of the cached sum; rounding its mean to float32 is six times as bad


class Models(Protocol):
    """A mapping from learners to models: a dict, or what keeps them elsewhere."""

    def get(self, learner: LearnerId, /) -> Vector | None: ...

    def __iter__(self) -> Iterator[LearnerId]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, learner: LearnerId, /) -> Vector: ...

    def __setitem__(self, learner: LearnerId, weights: Vector, /) -> None: ...

    def __delitem__(self, learner: LearnerId, /) -> None: ...


@dataclass(frozen=True, slots=True)
class NextModel:
    """What a community makes of the folds since the version before."""

    weights: Vector  # read-only
    drift: float | None = None  # relative, found if these folds brought a repair of a cached sum
    packet: bytes | None = None  # that makes these weights of the version before


class Community(Protocol):
    """Takes updates in, gives community models out. State has one owner: the controller."""

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        """Take an update in, at a cost of O(M) whatever the number of learners.

        `base` is the model this learner started from. A weight is finite and not negative; zero
        takes the learner's earlier contribution out and puts nothing in.
        """
        ...

    def drop(self, learner: LearnerId) -> bool:
        """Take a learner's contribution out; False if there is no record of it to take out.

        Nothing of it is left, not even rounding.
        """
        ...

    def model(self, current: Vector) -> NextModel:
        """Return the next community model; its weights are `current` when there is no mass.

        Called once per version, which is published or else rejected.
        """
        ...

    def reject(self, current: Vector) -> None:
        """Undo the folds of the version just made: it will not be published, `current` stays."""
        ...


@dataclass(slots=True)
class RoundAverage:
    """The weighted mean of one round's models, for synchronous pacing.

    Nothing is added before the round closes, and then in sorted learner order: the order of
    arrival cannot change a bit. A learner that answers twice counts once, with its latest model.

    Models that are all sparse changes of one base are added up as such: that costs what changed,
    not N M.
    """

    models: dict[LearnerId, tuple[Model, float]] = field(default_factory=dict)

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        model = _checked(update, weight, base)
        self.models.pop(update.learner, None)
        if weight > 0:
            self.models[update.learner] = (model, weight)

    def drop(self, learner: LearnerId) -> bool:
        return self.models.pop(learner, None) is not None

    def model(self, current: Vector) -> NextModel:
        terms = [self.models[learner] for learner in sorted(self.models)]
        self.models = {}
        if not terms:
            return NextModel(current)
        mass = math.fsum(weight for _, weight in terms)
        changes = [(model, weight) for model, weight in terms if isinstance(model, Sparse)]
        if len(changes) == len(terms) and all(m.base is changes[0][0].base for m, _ in changes):
            return NextModel(_average_of_changes(changes, mass))
        return NextModel(weighted_mean([(dense(model), weight) for model, weight in terms], mass))

    def reject(self, current: Vector) -> None:
        pass  # the round is over, and nothing of it is kept


def _average_of_changes(terms: Sequence[tuple[Sparse, float]], mass: float) -> Vector:
    """Return the mean of models that have one base: w + sum (p_k / P) delta_k."""
    first = terms[0][0]
    change: Sum = np.zeros(first.base.size)
    for model, weight in terms:
        change[model.at] += weight * model.by.astype(np.float64)
    average = shift_and_divide(change, 1.0 / mass, 1.0, first.base, mass=1.0)
    if first.values.size:
        values = weighted_mean([(model.values, weight) for model, weight in terms], mass)
        average.flags.writeable = True  # it is new, and nobody else's yet
        scatter(average, values, first.spans)
    return frozen(average)


@dataclass(frozen=True, slots=True)
class Change:
    """What a fold does to W: it adds gain * new - loss * old."""

    learner: LearnerId
    gain: float  # negative where `new` is what goes, and nothing comes
    new: Vector
    loss: float = 0.0
    old: Vector | None = None


@dataclass(slots=True)
class CachedAverage:
    """The weighted mean of every learner's latest model (Metis paper, section III), w_c = W / P.

    W = sum p_k w_k and P = sum p_k are kept; an update replaces its learner's share of both, so it
    costs O(M) however many learners there are. A fold only notes the change and `model` makes it:
    with one fold per version W is then read and written once, together with the output.

    W is float64 and P compensated, so that neither drifts; still, every `repair_every` folds, when
    a learner is dropped, and when W may be wrong by more than 1e-8 of S, both are summed anew, at
    O(N M), and the drift is reported. When the last contribution goes, W and P are exactly zero.

    With |x| the largest value of x, u = 2^-53 and S = sum |p_k w_k|, a fold rounds p w, p' w' (what
    it replaces), their difference and W: by u (|p w| + |p' w'| + (|p w| + |p' w'|) + S) at most.
    `error` adds up twice that from repair to repair: for the second order and S's own rounding.

    What a fold replaces is kept until the version it is in has been published: one model more where
    every fold makes a version.
    """

    repair_every: int = REPAIR_EVERY
    latest: Models = field(default_factory=dict[LearnerId, Vector])  # w_k
    weights: dict[LearnerId, float] = field(default_factory=dict)  # p_k
    sizes: dict[LearnerId, float] = field(default_factory=dict)  # |p_k w_k|, once it is in W
    total: Sum | None = None  # W, but for the pending change
    pending: Change | None = None
    mass: float = 0.0  # P, but for the rounding errors gathered in mass_error
    mass_error: float = 0.0
    size: float = 0.0  # S
    error: float = 0.0
    num_folds: int = 0
    repaired: float | None = None
    published: bool = False  # no fold or drop since `model` was called
    #: Model, weight and size that the folds of the latest version replaced, should it be rejected.
    replaced: dict[LearnerId, tuple[Vector, float, float] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.repair_every < 1:
            raise ConfigError(f"repair_every is {self.repair_every} folds; it must be at least 1")

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        weights = _accepted(update, weight, base)
        self._replace(update.learner, weights, weight)
        self.num_folds += 1
        if self.num_folds % self.repair_every == 0 and self.latest:
            self._repair()

    def drop(self, learner: LearnerId) -> bool:
        if learner not in self.weights:
            return False
        self._replace(learner, None, 0.0)
        self.replaced.pop(learner, None)
        if self.latest:
            # O(N M), but rare, and exact: a subtraction leaves the rounding of what it takes out.
            self._repair()
        return True

    def model(self, current: Vector) -> NextModel:
        self.published = True
        weights = current if self.total is None else self._mean(self.total)
        return NextModel(weights, self.repaired)

    def reject(self, current: Vector) -> None:
        for learner, earlier in self.replaced.items():
            self._forget(learner)
            if earlier is not None:
                self.latest[learner], self.weights[learner], self.sizes[learner] = earlier
        self.replaced, self.pending = {}, None
        if self.latest:
            self._start_from(*self.recompute())  # O(N M), but rare, and exact: see `drop`
        else:
            self._clear()

    def _mean(self, total: Sum) -> Vector:
        """Return W / P, with the pending change made and the sum repaired if it may be wrong."""
        mass = self.mass + self.mass_error
        if self.pending is None:
            return divide(total, mass)
        model: Vector = np.empty(total.size, np.float32)
        self._apply_pending(mass, model)
        if self.error > _TOLERANCE * (self.size - self.error):
            return divide(*self._repair())
        return frozen(model)

    def recompute(self) -> tuple[Sum, float]:
        """Return W and P summed anew from the latest models, in sorted learner order: O(N M)."""
        learners = sorted(self.latest)
        if not learners:
            return np.zeros(0 if self.total is None else self.total.size), 0.0
        total: Sum | None = None
        for start in range(0, len(learners), _AT_ONCE):
            some = learners[start : start + _AT_ONCE]
            total = weighted_sum([(self.latest[one], self.weights[one]) for one in some], total)
        assert total is not None
        return total, math.fsum(self.weights.values())

    def _replace(self, learner: LearnerId, weights: Vector | None, weight: float) -> None:
        if self.published:
            self.published, self.repaired, self.replaced = False, None, {}
        self._apply_pending()
        old = self.latest.get(learner)
        old_weight = self.weights.get(learner, 0.0)
        earlier = None if old is None else (old, old_weight, self.sizes[learner])
        self.replaced.setdefault(learner, earlier)
        comes = weights if weight > 0 else None
        if comes is not None:
            self.latest[learner], self.weights[learner] = comes, weight
        elif old is not None:
            del self.latest[learner], self.weights[learner]
        if not self.latest:
            self._clear()
            return
        self._add_mass(weight)
        self._add_mass(-old_weight)
        if comes is not None:
            if self.total is None:
                self.total = np.zeros(comes.size)
            self.pending = Change(learner, weight, comes, old_weight, old)
        elif old is not None:
            self.pending = Change(learner, -old_weight, old)

    def _forget(self, learner: LearnerId) -> None:
        if learner in self.weights:
            del self.latest[learner], self.weights[learner]
        self.sizes.pop(learner, None)

    def _clear(self) -> None:
        self.total, self.pending, self.mass, self.mass_error = None, None, 0.0, 0.0
        self.sizes, self.size, self.error = {}, 0.0, 0.0

    def _add_mass(self, amount: float) -> None:
        # Knuth's two-sum: what the addition rounds away is known exactly, so it can be kept.
        mass = self.mass + amount
        added = mass - self.mass
        self.mass_error += (self.mass - (mass - added)) + (amount - added)
        self.mass = mass

    def _apply_pending(self, mass: float = 1.0, out: Vector | None = None) -> None:
        change, self.pending = self.pending, None
        if self.total is None or change is None:
            return
        largest = shift(
            self.total, 1.0, change.gain, change.new, change.loss, change.old, mass, out
        )
        goes, comes = self.sizes.pop(change.learner, 0.0), 0.0
        if change.gain > 0.0:
            comes = self.sizes[change.learner] = change.gain * largest
        self.size += comes - goes
        self.error += _EPSILON * (2.0 * (comes + goes) + self.size)

    def _repair(self) -> tuple[Sum, float]:
        """Sum W and P up again, note the drift, and return both."""
        self._apply_pending()
        total, mass = self.recompute()
        mass_drift = abs(self.mass + self.mass_error - mass) / mass
        self.repaired = max(_relative_error(self.total, total), mass_drift)
        self._start_from(total, mass)
        return total, mass

    def _start_from(self, total: Sum, mass: float) -> None:
        self.total, self.mass, self.mass_error = total, mass, 0.0
        self.size, self.error = math.fsum(self.sizes.values()), 0.0


@dataclass(slots=True)
class Mixing:
    """FedAsync (Xie et al. 2019): w_c = (1 - alpha_t) w_c + alpha_t w_k, alpha_t the fold's weight.

    The first arrival becomes w_c whatever its weight (the Metis authors' constant). Nothing can be
    taken out again: no record is kept of who is in the mixture.
    """

    mixture: Sum | None = None

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        weights = _accepted(update, weight, base)
        if self.mixture is None:
            self.mixture = weights.astype(np.float64)
        else:
            shift(self.mixture, 1.0 - weight, weight, weights)

    def drop(self, learner: LearnerId) -> bool:
        return False

    def model(self, current: Vector) -> NextModel:
        return NextModel(current if self.mixture is None else divide(self.mixture, 1.0))

    def reject(self, current: Vector) -> None:
        self.mixture = current.astype(np.float64)  # of what was mixed, no other record is kept


@dataclass(slots=True)
class Buffer:
    """FedBuff (Nguyen et al. 2022): w_c + (server_rate / K) * sum of weight_i * (w_i - base_i).

    K counts the folds since the last version, also those of weight zero. Differences are to each
    learner's own base and are added up in order of arrival. A learner may be in a buffer more than
    once; `drop` takes out what of it is still there.

    `buffers` are the parts of the vector that nobody trains, such as batch-norm statistics. They
    become the weighted mean of what the folds say, so they stay in between: differences to bases
    of different age, added up, can leave a variance below zero.
    """

    server_rate: float = 1.0
    buffers: Spans = ()
    folds: list[tuple[LearnerId, float, Vector, Vector]] = field(default_factory=list)

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        weights = _accepted(update, weight, base)
        self.folds.append((update.learner, weight, weights, base))

    def drop(self, learner: LearnerId) -> bool:
        kept = [fold for fold in self.folds if fold[0] != learner]
        found = len(kept) < len(self.folds)
        self.folds = kept
        return found

    def model(self, current: Vector) -> NextModel:
        folds, self.folds = self.folds, []
        if not any(weight for _, weight, _, _ in folds):
            return NextModel(current)
        change: Sum = np.zeros(current.size)
        for _, weight, weights, base in folds:
            shift(change, 1.0, weight, weights, weight, base)
        model = shift_and_divide(change, self.server_rate / len(folds), 1.0, current, mass=1.0)
        if self.buffers:
            said = [(gather(weights, self.buffers), weight) for _, weight, weights, _ in folds]
            model.flags.writeable = True  # it is new, and nobody else's yet
            scatter(model, weighted_mean(said, _mass(said)), self.buffers)
        return NextModel(frozen(model))

    def reject(self, current: Vector) -> None:
        pass  # `model` has emptied the buffer


def _accepted(update: Update, weight: float, base: Vector) -> Vector:
    """Return the update's weights, read-only from now on, if they can be folded at all."""
    return frozen(dense(_checked(update, weight, base)))


def _checked(update: Update, weight: float, base: Vector) -> Model:
    if update.weights.shape != base.shape:
        raise ModelError(
            f"learner {update.learner!r} sent weights of shape {update.weights.shape} for task "
            f"{update.task}; the community model has shape {base.shape}"
        )
    if not 0.0 <= weight < math.inf:
        raise RunError(
            f"learner {update.learner!r} was given weight {weight} for task {update.task}; "
            "a weight must be finite and not negative"
        )
    return update.weights if isinstance(update.weights, Sparse) else frozen(update.weights)


def _mass(terms: Iterable[tuple[Vector, float]]) -> float:
    return math.fsum(weight for _, weight in terms)


def _relative_error(found: Sum | None, right: Sum) -> float:
    """Return the largest error as a share of the largest right value."""
    if found is None:
        return math.inf
    scale = float(np.abs(right).max(initial=0.0))
    error = float(np.abs(found - right).max(initial=0.0))
    return error / scale if scale else error
