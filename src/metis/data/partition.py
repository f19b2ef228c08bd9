"""Who holds what: labels in, index lists out. Sizes and classes of spec section 5, numpy only."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError, unknown
from metis.data.iid import with_all_classes

Ints = NDArray[np.int64]

SIZES = ("uniform", "skewed", "powerlaw", "geometric")
CLASS_RULES = ("fullest", "in-turn")
CLASSES = ("iid", "dirichlet", "shards", "natural")

_SKEW = 1.2
_TAG = 5  # keeps this stream apart from every other one drawn from the federation's seed

#: (classes, learners, x): how many classes each learner holds under power-law sizes in the paper.
_PAPER_HEADS = {
    (10, 10, 5): "8,7,6,5x7",
    (10, 10, 3): "8,4,3x8",
    (100, 10, 50): "84,76,68,64,55,50x5",
}
_COUNT = r"\d+(?:x\d+)?"
_COUNT_LIST = re.compile(rf"{_COUNT}(?:,{_COUNT})*")


@dataclass(frozen=True, slots=True)
class Partition:
    """Which training examples each learner holds. No example is in two places."""

    indices: tuple[Ints, ...]  # per learner, in learner order; each sorted
    unplaced: int  # examples nobody holds
    note: str  # which reading of the distribution was used

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(held) for held in self.indices)


def deal(num_per_group: Sequence[int]) -> list[int]:
    """Return which size rank (0 is the largest) each learner receives, learners group by group.

    Ranks go round the groups in turn (fast, slow, fast, slow, ...); a full group is passed over.
    """
    first = [sum(num_per_group[:g]) for g in range(len(num_per_group))]
    turns = sorted((turn, g) for g, size in enumerate(num_per_group) for turn in range(size))
    ranks = [0] * len(turns)
    for rank, (turn, group) in enumerate(turns):
        ranks[first[group] + turn] = rank
    return ranks


def partition(
    labels: NDArray[Any],
    num_learners: int,
    *,
    sizes: str,
    classes: str | int,
    seed: int,
    num_classes: int,
    alpha: float = 0.5,
    shards: int = 2,
    exponent: float = 1.5,
    class_rule: str = "fullest",
    owners: NDArray[Any] | None = None,
    ranks: Sequence[int] | None = None,
) -> Partition:
    """Divide the examples among the learners; the same arguments give the same division.

    `sizes` shapes the number of examples of the k-th largest learner: `uniform`, `skewed`
    (1.2^-k), `powerlaw` (k^-exponent) or `geometric` (exponent^-k). `classes` says what they hold:

    - `iid`: a random sample, but for examples that are exchanged so that no learner with at least
      as many examples as there are classes misses one, see `iid`.
    - a number x, or a list such as `8,4,3x8` (largest learner first): exactly so many classes
      each, chosen by `class_rule`, see `_by_count` and `_in_turn`. With power-law sizes a number
      stands for the paper's list where the paper gives one.
    - `dirichlet`: each learner draws its class mix from Dirichlet(alpha), see `_by_dirichlet`.
    - `shards`: examples sorted by label and cut; each learner gets `shards` pieces, in random
      order, that add up to its size (McMahan et al. 2017 has uniform sizes).
    - `natural`: whole owners, never split. Sizes are then the owners' own and `sizes` is unused.

    `ranks`, as `deal` makes them, says which size rank each learner receives; None: learner
    order is size order. With uniform sizes there is nothing to deal and it is not looked at.
    """
    labels = np.asarray(labels)
    _check(labels, num_learners, sizes, num_classes, alpha, shards, exponent, ranks)
    if class_rule not in CLASS_RULES:
        raise DataError(unknown("class rule", class_rule, CLASS_RULES))
    kind = _parse(classes)
    if num_classes == 0 and kind not in ("iid", "natural"):
        raise DataError(
            f"classes = {classes!r} needs class labels, but this is a regression task; "
            "use 'iid' or 'natural'"
        )
    rng = np.random.default_rng((seed, _TAG))
    if kind == "natural":
        pieces, note = _by_owner(owners, len(labels), num_learners)
    else:
        targets = _targets(len(labels), num_learners, sizes, exponent)
        if isinstance(kind, str) and targets.min() == 0:
            raise DataError(
                f"sizes = {sizes!r} leave {int((targets == 0).sum())} of {num_learners} "
                f"learners without an example ({len(labels)} in all); use fewer learners, "
                "a flatter distribution or sizes = 'uniform'"
            )
        if kind == "iid":
            pieces, note = _cut(rng.permutation(len(labels)), targets), "IID"
            if num_classes:
                pieces, lacking = with_all_classes(pieces, labels, num_classes)
                note += lacking
        elif kind == "shards":
            pieces = _by_shards(labels, targets, shards, rng)
            note = f"{shards} label-sorted shards each"
        else:
            supply = np.bincount(labels, minlength=num_classes).astype(np.int64)
            if isinstance(kind, str):
                amounts = _by_dirichlet(targets, supply, alpha, rng)
                note = f"class mix ~ Dirichlet({alpha:g})"
            else:
                counts, note = _counts(kind, num_learners, num_classes, sizes)
                if class_rule == "in-turn":
                    amounts, note = _in_turn(targets, counts, supply), f"{note}, dealt in turn"
                else:
                    amounts = _by_count(targets, counts, supply, rng)
            pieces = _draw(labels, amounts, rng)
        note = f"{_describe_sizes(sizes, exponent)}; {note}"
    if sizes != "uniform" or kind == "natural":
        pieces = sorted(pieces, key=len, reverse=True)
        if ranks is not None:
            pieces = [pieces[rank] for rank in ranks]
    unplaced = len(labels) - sum(len(piece) for piece in pieces)
    return Partition(tuple(np.sort(piece) for piece in pieces), unplaced, note)


def _check(
    labels: NDArray[Any],
    num_learners: int,
    sizes: str,
    num_classes: int,
    alpha: float,
    shards: int,
    exponent: float,
    ranks: Sequence[int] | None,
) -> None:
    if sizes not in SIZES:
        raise DataError(unknown("size distribution", sizes, SIZES))
    if num_learners < 1:
        raise DataError(f"{num_learners} learners: there must be at least one")
    if num_learners > len(labels):
        raise DataError(f"{num_learners} learners cannot share {len(labels)} examples")
    if num_classes and (labels.min() < 0 or labels.max() >= num_classes):
        raise DataError(
            f"labels span {labels.min()}..{labels.max()}, but num_classes is {num_classes}"
        )
    for what, value in (("alpha", alpha), ("shards", shards), ("exponent", exponent)):
        if not value > 0:
            raise DataError(f"{what} = {value} must be positive")
    if ranks is not None and sorted(ranks) != list(range(num_learners)):
        raise DataError(
            f"ranks must hold each of 0..{num_learners - 1} once, but are {list(ranks)}"
        )


def _parse(classes: str | int) -> str | int | tuple[int, ...]:
    """Return a known name, a number of classes, or one number per learner."""
    text = str(classes).replace(" ", "")
    if text.isdecimal():
        return int(text)
    if _COUNT_LIST.fullmatch(text):
        return _expand(text)
    if text in CLASSES:
        return text
    raise DataError(
        unknown("class distribution", classes, CLASSES)
        + ", or a number of classes such as 3, or one per learner such as 8,4,3x8"
    )


def _expand(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as 8,4,3x8."""
    parts = [part.partition("x") for part in text.split(",")]
    if sum(int(times or 1) for _, _, times in parts) > 1_000_000:
        raise DataError(f"classes = {text!r} names more than a million learners")
    return tuple(int(n) for n, _, times in parts for _ in range(int(times or 1)))


def _targets(num_examples: int, num_learners: int, sizes: str, exponent: float) -> Ints:
    """Return the sizes asked for, largest first; they add up to all examples."""
    k = np.arange(1, num_learners + 1, dtype=np.float64)
    shapes: dict[str, NDArray[np.float64]] = {
        "uniform": np.ones(num_learners),
        "skewed": _SKEW**-k,
        "powerlaw": k**-exponent,
        "geometric": exponent**-k,
    }
    exact = num_examples * shapes[sizes] / shapes[sizes].sum()
    whole: Ints = np.floor(exact).astype(np.int64)
    most_cut = np.argsort(whole - exact, kind="stable")[: num_examples - int(whole.sum())]
    whole[most_cut] += 1
    return whole


def _describe_sizes(sizes: str, exponent: float) -> str:
    formula = {
        "uniform": "",
        "skewed": f" size_k ~ {_SKEW:g}^-k",
        "powerlaw": f" size_k ~ k^-{exponent:g}",
        "geometric": f" size_k ~ {exponent:g}^-k",
    }
    return sizes + formula[sizes]


def _counts(
    asked: int | tuple[int, ...], num_learners: int, num_classes: int, sizes: str
) -> tuple[Ints, str]:
    """Return how many classes each learner holds, largest learner first, and how to say so."""
    if isinstance(asked, tuple):
        counts = asked
        said = f"classes {_list(counts)} (as listed)"
    else:
        head = _PAPER_HEADS.get((num_classes, num_learners, asked))
        if head is not None and sizes in ("powerlaw", "geometric"):
            counts, said = _expand(head), f"classes {head} (the paper's head)"
        else:
            counts, said = (asked,) * num_learners, f"exactly {asked} classes each"
    if len(counts) != num_learners:
        raise DataError(
            f"the class list {_list(counts)} names {len(counts)} learners, "
            f"but there are {num_learners}"
        )
    if not all(1 <= count <= num_classes for count in counts):
        raise DataError(
            f"a learner cannot hold {next(c for c in counts if not 1 <= c <= num_classes)} "
            f"classes: the data has {num_classes}"
        )
    return np.array(counts, dtype=np.int64), said


def _list(counts: Sequence[int]) -> str:
    return ",".join(str(count) for count in counts)


def _cut(order: Ints, lengths: Ints) -> list[Ints]:
    return np.split(order, np.cumsum(lengths)[:-1])


def _draw(labels: NDArray[Any], amounts: Ints, rng: np.random.Generator) -> list[Ints]:
    """Return index lists that hold `amounts[learner, class]` examples, drawn at random."""
    held: list[list[Ints]] = [[] for _ in amounts]
    for label in range(amounts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == label))
        pieces = np.split(pool, np.cumsum(amounts[:, label]))  # the last piece is left over
        for learner, piece in zip(held, pieces, strict=False):
            learner.append(piece)
    return [np.concatenate(pieces) for pieces in held]


def _by_count(targets: Ints, counts: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Return examples per learner and class: Non-IID(x), exactly `counts` classes each.

    Learners in order of size; each takes from the classes with most examples left (a seeded
    order breaks ties), split as evenly as those allow. Sizes yield before the class count does:
    enough is kept back for every later learner to find its classes (`_take`). What was kept back
    in vain goes to learners that hold the class and fell short of their size; nobody is given
    more than its size, so the shape stays and what is left over is the caller's to report.
    """
    if not _can_serve(supply, counts):
        raise DataError(
            f"{len(counts)} learners cannot hold {int(counts.min())}..{int(counts.max())} classes "
            "each with at least one example of every class they hold: the classes have "
            f"{int(supply.min())}..{int(supply.max())} examples"
        )
    amounts = np.zeros((len(targets), len(supply)), dtype=np.int64)
    left = supply.copy()
    order = rng.permutation(len(supply))
    for k, count in enumerate(counts):
        chosen = order[np.argsort(-left[order], kind="stable")[:count]]
        amounts[k, chosen] = _take(int(targets[k]), left, chosen, targets[k + 1 :], counts[k + 1 :])
        left -= amounts[k]
    for k, target in enumerate(targets):
        short = max(0, int(target - amounts[k].sum()))
        back = _evenly(short, np.where(amounts[k] > 0, left, 0))
        amounts[k] += back
        left -= back
    return amounts


def _in_turn(targets: Ints, counts: Ints, supply: Ints) -> Ints:
    """Return examples per learner and class: the k-th largest learner holds classes k, k + 1, ...

    Each class is divided among those who hold it in proportion to their sizes, so that sizes yield
    where a class has few or small holders. With uniform sizes they are as asked. A class that
    nobody's turn reaches is left over.
    """
    amounts = np.zeros((len(targets), len(supply)), dtype=np.int64)
    holds = np.zeros(amounts.shape, dtype=bool)
    for k, count in enumerate(counts):
        holds[k, (k + np.arange(count)) % len(supply)] = True
    for label, whole in enumerate(supply):
        holders = np.flatnonzero(holds[:, label])
        if len(holders):
            ends = np.cumsum(targets[holders]) * int(whole) // targets[holders].sum()
            amounts[holders, label] = np.diff(ends, prepend=0)
    if (holds & (amounts == 0)).any():
        raise DataError(
            f"classes of {int(supply.min())}..{int(supply.max())} examples cannot be dealt in turn "
            f"to {len(counts)} learners so that each has at least one of every class it holds"
        )
    return amounts


def _take(target: int, left: Ints, chosen: Ints, later_targets: Ints, later_counts: Ints) -> Ints:
    """Return how much one learner takes of each chosen class so that later ones are served.

    Tries to leave every later learner its classes with an even share of the smallest, then half
    of that, and so on. A share of one example is always possible, since the learner chose the
    fullest classes; only for that one is its own size cut.
    """
    wanted = max(target, len(chosen))
    have = left[chosen]
    take = np.ones_like(have)
    for share, kept in _reserves(later_targets, later_counts):
        caps = have - np.minimum(share * kept, have - 1)
        take = 1 + _evenly(wanted - len(chosen), caps - 1)
        if share > 1 and take.sum() < wanted:
            continue
        after = left.copy()
        after[chosen] -= take
        if _can_serve(after // share, later_counts):
            break
    return take


def _reserves(later_targets: Ints, later_counts: Ints) -> Iterator[tuple[int, int]]:
    """Yield (examples in a share, shares to keep of each class), the most generous first."""
    num_later = len(later_counts)
    share = max(1, int((later_targets // later_counts).min())) if num_later else 1
    powers = (2**i for i in range(num_later.bit_length()))
    kept = sorted({0, num_later, *(p for p in powers if p < num_later)})
    while share:
        yield from ((share, shares) for shares in kept)
        share //= 2


def _can_serve(shares: Ints, counts: Ints) -> bool:
    """Can each learner get one share of `counts` different classes? (Gale and Ryser 1957)"""
    most = len(counts)
    demand = np.cumsum(np.sort(counts)[::-1])
    num_with = np.bincount(np.minimum(shares, most), minlength=most + 1)
    at_least = np.cumsum(num_with[::-1])[::-1]
    return bool((demand <= np.cumsum(at_least[1:])).all())


def _evenly(total: int, caps: Ints) -> Ints:
    """Split a total over classes as evenly as caps allow; odd ones go where most room is left."""
    given = np.zeros_like(caps)
    total = min(total, int(caps.sum()))
    while total:
        room = np.flatnonzero(given < caps)
        each = total // len(room)
        if each == 0:
            given[room[np.argsort((given - caps)[room], kind="stable")[:total]]] += 1
            break
        step = np.minimum(each, (caps - given)[room])
        given[room] += step
        total -= int(step.sum())
    return given


def _by_dirichlet(targets: Ints, supply: Ints, alpha: float, rng: np.random.Generator) -> Ints:
    """Return examples per learner and class: sizes as asked, class mixes from a Dirichlet.

    The concentration is alpha per class where classes are equally frequent and follows their
    frequency otherwise, so that a large alpha tends to IID. When a class runs out, the rest of
    the learner's mix fills its place: the smallest learners, who come last, take what there is.
    """
    present = np.flatnonzero(supply)
    concentration = alpha * len(present) * supply[present] / supply.sum()
    amounts = np.zeros((len(targets), len(supply)), dtype=np.int64)
    left = supply.copy()
    for k, target in enumerate(targets):
        mix = np.zeros(len(supply))
        mix[present] = rng.dirichlet(concentration)
        missing = int(target)
        while missing:
            weights = mix * (left > 0)
            if not weights.sum() > 0:
                weights = left.astype(np.float64)
            taken = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
            amounts[k] += taken
            left -= taken
            missing -= int(taken.sum())
    return amounts


def _by_shards(
    labels: NDArray[Any], targets: Ints, num_shards: int, rng: np.random.Generator
) -> list[Ints]:
    by_label = rng.permutation(len(labels))
    by_label = by_label[np.argsort(labels[by_label], kind="stable")]
    lengths = np.array([len(s) for t in targets for s in np.array_split(np.empty(t), num_shards)])
    order = rng.permutation(len(lengths))
    shards = _cut(by_label, lengths[order])
    held: list[list[Ints]] = [[] for _ in targets]
    for position, shard in zip(order, shards, strict=True):
        held[position // num_shards].append(shard)
    return [np.concatenate(pieces) for pieces in held]


def _by_owner(
    owners: NDArray[Any] | None, num_examples: int, num_learners: int
) -> tuple[list[Ints], str]:
    """Give whole owners to learners: the largest first, each to the learner with least so far."""
    if owners is None:
        raise DataError(
            "classes = 'natural' needs to know whose each example is, but this data has no owners"
        )
    if len(owners) != num_examples:
        raise DataError(f"{len(owners)} owners for {num_examples} examples")
    names, owner_of = np.unique(owners, return_inverse=True)
    if len(names) < num_learners:
        raise DataError(
            f"{num_learners} learners, but the data has only {len(names)} owners, "
            "and an owner is never split; use fewer learners"
        )
    by_owner = _cut(
        np.argsort(owner_of, kind="stable"), np.bincount(owner_of, minlength=len(names))
    )
    held: list[list[Ints]] = [[] for _ in range(num_learners)]
    lightest = [(0, learner) for learner in range(num_learners)]
    for piece in sorted(by_owner, key=len, reverse=True):
        load, learner = heapq.heappop(lightest)
        held[learner].append(piece)
        heapq.heappush(lightest, (load + len(piece), learner))
    if len(names) == num_learners:
        note = f"natural: one learner per owner ({len(names)})"
    else:
        note = f"natural: {len(names)} whole owners to {num_learners} learners, balanced by size"
    return [np.concatenate(pieces) for pieces in held], note
