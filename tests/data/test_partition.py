"""Partitions: hand-checked shapes of the paper, and what must hold for any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.partition import CLASSES, SIZES, Partition, deal, partition
from metis.data.picture import holdings

CIFAR10 = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def cifar10(sizes: str, classes: str | int, **options: Any) -> Partition:
    return partition(
        CIFAR10, 10, sizes=sizes, classes=classes, seed=1990, num_classes=10, **options
    )


def classes_held(labels: NDArray[Any], parts: Partition, num_classes: int) -> list[int]:
    return [int(n) for n in (holdings(labels, parts, num_classes) > 0).sum(axis=1)]


def assert_each_example_at_most_once(parts: Partition, num_examples: int) -> None:
    everything = np.concatenate(parts.indices)
    assert len(np.unique(everything)) == len(everything)
    assert len(everything) + parts.unplaced == num_examples
    assert all((np.diff(held) > 0).all() for held in parts.indices)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("classes", ["iid", "dirichlet", "shards", 5, 3])
def test_no_example_is_held_twice_and_none_is_lost(sizes: str, classes: str | int) -> None:
    parts = cifar10(sizes, classes)

    assert_each_example_at_most_once(parts, 50_000)
    assert min(parts.sizes) > 0
    assert parts.unplaced <= (500 if isinstance(classes, int) else 0)


# ---- IID -----------------------------------------------------------------------------------------

CIFAR100 = np.tile(np.arange(100), 500)


def drawn(num_examples: int, sizes: Sequence[int], seed: int) -> list[list[int]]:
    """The random sample that an IID division begins with, largest learner first."""
    order = np.random.default_rng((seed, 5)).permutation(num_examples)
    return [sorted(one.tolist()) for one in np.split(order, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("seed", range(20))
def test_iid_learners_hold_all_classes_by_as_few_exchanges_as_it_takes(seed: int) -> None:
    """The smallest of CIFAR-100's power law has 793 examples and misses a class by some seeds."""
    parts = partition(CIFAR100, 10, sizes="powerlaw", classes="iid", seed=seed, num_classes=100)
    before = drawn(50_000, parts.sizes, seed)

    assert_each_example_at_most_once(parts, 50_000)
    assert classes_held(CIFAR100, parts, 100) == [100] * 10
    assert parts.note == "powerlaw size_k ~ k^-1.5; IID"
    lacking = sum(100 - len(set(CIFAR100[held])) for held in before)
    moved = sum(
        len(set(new.tolist()) - set(old)) for new, old in zip(parts.indices, before, strict=True)
    )
    assert (
        moved == 2 * lacking
    )  # one for one; byte for byte as drawn where no learner lacks a class


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_iid_keeps_its_promise_on_any_labels(data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(1, 8))
    labels = np.array(
        data.draw(st.lists(st.integers(0, num_classes - 1), min_size=10, max_size=120))
    )
    num_learners = data.draw(st.integers(1, 9))
    sizes = data.draw(st.sampled_from(["uniform", "skewed", "powerlaw"]))
    try:
        parts = partition(
            labels, num_learners, sizes=sizes, classes="iid", seed=3, num_classes=num_classes
        )
    except DataError:
        return  # a learner without an example

    assert_each_example_at_most_once(parts, len(labels))
    supply = np.bincount(labels, minlength=num_classes)
    held = holdings(labels, parts, num_classes)
    present = np.flatnonzero(supply)
    whole = [k for k in range(num_learners) if parts.sizes[k] >= len(present)]
    for label in present:
        assert (held[whole, label] > 0).all() or supply[label] < len(whole)
    for k in set(range(num_learners)) - set(whole):
        if (held[k] > 1).any():  # only where all others of every class it misses are single ones
            assert "some hold a class more than once" in parts.note
            assert held[:, (held[k] == 0) & (supply > 0)].max() < 2
    before = drawn(len(labels), parts.sizes, 3)
    goals = [min(size, len(present)) for size in parts.sizes]
    if [len(set(labels[one])) for one in before] == goals:
        assert [one.tolist() for one in parts.indices] == before


def test_iid_that_cannot_be_says_so() -> None:
    rare = np.array([0] * 60 + [1] * 60 + [2] * 2)
    parts = partition(rare, 4, sizes="uniform", classes="iid", seed=1, num_classes=3)
    assert parts.note == "uniform; IID; classes with too few examples for all learners: 1"

    many = np.arange(40) % 20
    parts = partition(many, 10, sizes="powerlaw", classes="iid", seed=1, num_classes=20)
    assert parts.note.endswith("IID; learners with fewer examples than there are classes: 9")
    assert classes_held(many, parts, 20) == [min(size, 20) for size in parts.sizes]


@pytest.mark.parametrize("x", [3, 5])
def test_uniform_non_iid_gives_everyone_the_same_and_exactly_x_classes(x: int) -> None:
    parts = cifar10("uniform", x)

    assert classes_held(CIFAR10, parts, 10) == [x] * 10
    assert parts.unplaced <= 3
    assert min(parts.sizes) >= 4_998
    assert max(parts.sizes) == 5_000


@pytest.mark.parametrize("sizes", ["powerlaw", "geometric"])
@pytest.mark.parametrize(
    ("x", "expected"), [(5, [8, 7, 6] + [5] * 7), (3, [8, 4] + [3] * 8), (4, [4] * 10)]
)
def test_power_law_heads_hold_as_many_classes_as_in_the_paper(
    sizes: str, x: int, expected: list[int]
) -> None:
    parts = cifar10(sizes, x)

    assert classes_held(CIFAR10, parts, 10) == expected
    assert ("the paper's head" in parts.note) == (x in (3, 5))


def test_the_power_law_head_of_cifar_100_is_the_papers() -> None:
    labels = np.tile(np.arange(100), 500)
    parts = partition(labels, 10, sizes="powerlaw", classes=50, seed=1990, num_classes=100)

    assert classes_held(labels, parts, 100) == [84, 76, 68, 64, 55] + [50] * 5
    assert parts.note == (
        "powerlaw size_k ~ k^-1.5; classes 84,76,68,64,55,50x5 (the paper's head)"
    )


def test_skewed_sizes_do_not_use_the_power_law_heads() -> None:
    assert classes_held(CIFAR10, cifar10("skewed", 3), 10) == [3] * 10


def test_a_class_list_is_kept_in_order_of_size() -> None:
    parts = cifar10("skewed", "6, 2x8, 1")

    assert classes_held(CIFAR10, parts, 10) == [6] + [2] * 8 + [1]


@pytest.mark.parametrize(
    ("sizes", "options", "ratio"),
    [
        ("skewed", {}, lambda k: 1.2),
        ("powerlaw", {}, lambda k: ((k + 1) / k) ** 1.5),
        ("powerlaw", {"exponent": 1.0}, lambda k: (k + 1) / k),
        ("geometric", {}, lambda k: 1.5),
        ("geometric", {"exponent": 2.0}, lambda k: 2.0),
    ],
)
def test_neighbouring_sizes_have_the_ratio_of_their_law(
    sizes: str, options: dict[str, float], ratio: Any
) -> None:
    parts = cifar10(sizes, "iid", **options)

    assert sum(parts.sizes) == 50_000
    for k in range(1, 10):
        assert parts.sizes[k - 1] / parts.sizes[k] == pytest.approx(ratio(k), rel=0.02)


def test_power_law_sizes_are_those_computed_by_hand() -> None:
    # 1000 / (1 + 2^-1.5 + 3^-1.5) = 646.85; times 1, .35355, .19245: 646.85, 228.69, 124.49
    labels = np.zeros(1000, dtype=np.int64)
    parts = partition(labels, 3, sizes="powerlaw", classes="iid", seed=1, num_classes=1)

    assert parts.sizes == (647, 229, 124)


def test_the_first_learner_takes_the_fullest_classes_evenly() -> None:
    labels = np.repeat([0, 1, 2, 3], [10, 40, 30, 20])
    parts = partition(labels, 2, sizes="geometric", classes=2, seed=0, num_classes=4)

    # Asked for 60 and 40. First: 30 of classes 1 and 2. Then 0 has 10, 1 has 10, 3 has 20.
    counts = holdings(labels, parts, 4)
    assert counts[0].tolist() == [0, 30, 30, 0]
    assert counts[1, 3] == 20
    assert counts[1].sum() == 30
    assert parts.unplaced == 10


def test_sizes_yield_before_the_class_count_does() -> None:
    labels = np.repeat(np.arange(4), 4)
    parts = partition(labels, 4, sizes="geometric", classes=4, seed=0, num_classes=4)

    assert classes_held(labels, parts, 4) == [4] * 4
    assert parts.sizes == (4, 4, 4, 4)


def test_the_last_learner_of_the_power_law_still_holds_its_classes_in_earnest() -> None:
    counts = holdings(CIFAR10, cifar10("powerlaw", 5), 10)

    assert counts[counts > 0].min() >= 50


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_non_iid_keeps_its_promises_on_any_data(data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(1, 8))
    supply = data.draw(st.lists(st.integers(1, 60), min_size=num_classes, max_size=num_classes))
    num_learners = data.draw(st.integers(1, 9))
    counts = data.draw(
        st.lists(st.integers(1, num_classes), min_size=num_learners, max_size=num_learners)
    )
    labels = np.repeat(np.arange(num_classes), supply)
    # Gale and Ryser, spelled out: s learners find at most min(n, s) takers for n examples.
    wanted = sorted(counts, reverse=True)
    possible = all(
        sum(wanted[:s]) <= sum(min(n, s) for n in supply) for s in range(1, num_learners + 1)
    )

    def divide() -> Partition:
        return partition(
            labels,
            num_learners,
            sizes=data_sizes,
            classes=",".join(map(str, counts)) if num_learners > 1 else counts[0],
            seed=3,
            num_classes=num_classes,
        )

    data_sizes = data.draw(st.sampled_from(SIZES))
    if num_learners > len(labels) or not possible:
        with pytest.raises(DataError):
            divide()
        return
    parts = divide()
    assert_each_example_at_most_once(parts, len(labels))
    assert sorted(classes_held(labels, parts, num_classes)) == sorted(counts)


@settings(max_examples=80, deadline=None)
@given(
    supply=st.lists(st.integers(0, 80), min_size=1, max_size=8).filter(lambda s: sum(s) >= 12),
    num_learners=st.integers(1, 6),
    sizes=st.sampled_from(["uniform", "skewed"]),
    classes=st.sampled_from(["iid", "dirichlet", "shards"]),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
)
def test_other_divisions_place_everything_in_the_sizes_asked_for(
    supply: list[int], num_learners: int, sizes: str, classes: str, alpha: float
) -> None:
    labels = np.repeat(np.arange(len(supply)), supply)
    parts = partition(
        labels,
        num_learners,
        sizes=sizes,
        classes=classes,
        seed=5,
        num_classes=len(supply),
        alpha=alpha,
    )

    assert_each_example_at_most_once(parts, len(labels))
    assert parts.unplaced == 0
    if sizes == "uniform":
        assert max(parts.sizes) - min(parts.sizes) <= 1


def test_the_same_seed_gives_the_same_division_and_another_seed_another() -> None:
    for classes in ("iid", "dirichlet", "shards", 3):
        first, again = cifar10("powerlaw", classes), cifar10("powerlaw", classes)
        other = partition(CIFAR10, 10, sizes="powerlaw", classes=classes, seed=7, num_classes=10)
        for a, b in zip(first.indices, again.indices, strict=True):
            np.testing.assert_array_equal(a, b)
        assert any(
            not np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True)
        )


def test_a_large_alpha_tends_to_iid_and_a_small_one_to_few_classes() -> None:
    even = holdings(CIFAR10, cifar10("uniform", "dirichlet", alpha=1e4), 10)
    uneven = holdings(CIFAR10, cifar10("uniform", "dirichlet", alpha=0.05), 10)

    assert even.min() > 400
    assert uneven[:5].max(axis=1).min() > 1500


def test_shards_of_uniform_sizes_are_equal_cuts_of_the_sorted_labels() -> None:
    parts = cifar10("uniform", "shards", shards=2)

    assert parts.sizes == (5_000,) * 10
    # 20 shards of 2,500: each lies within one class of 5,000.
    assert set(np.unique(holdings(CIFAR10, parts, 10))) <= {0, 2_500, 5_000}


def test_one_learner_per_owner_when_the_numbers_agree() -> None:
    owners = np.array(["north", "south", "south", "east", "east", "east"])
    parts = partition(
        np.zeros(6), 3, sizes="uniform", classes="natural", seed=0, num_classes=0, owners=owners
    )

    assert [set(owners[held]) for held in parts.indices] == [{"east"}, {"south"}, {"north"}]
    assert parts.note == "natural: one learner per owner (3)"


def test_owners_are_grouped_whole_and_balanced() -> None:
    rng = np.random.default_rng(1)
    owners = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 30, 40)))
    parts = partition(
        np.zeros(len(owners)),
        7,
        sizes="powerlaw",
        classes="natural",
        seed=0,
        num_classes=0,
        owners=owners,
    )

    groups = [set(owners[held]) for held in parts.indices]
    assert sum(len(group) for group in groups) == 40
    assert parts.unplaced == 0
    assert max(parts.sizes) - min(parts.sizes) <= 5


def test_dealing_alternates_between_the_groups() -> None:
    assert deal([5, 5]) == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert deal([10]) == list(range(10))
    assert deal([1, 3, 2]) == [0, 1, 3, 5, 2, 4]
    assert deal([0, 2]) == [0, 1]


def test_dealt_learners_get_the_rank_they_were_dealt() -> None:
    plain = cifar10("powerlaw", 3)
    dealt = cifar10("powerlaw", 3, ranks=deal([5, 5]))

    assert dealt.sizes == tuple(plain.sizes[rank] for rank in deal([5, 5]))
    assert classes_held(CIFAR10, dealt, 10) == [8] + [3] * 4 + [4] + [3] * 4


def test_uniform_sizes_are_not_dealt() -> None:
    plain, dealt = cifar10("uniform", 5), cifar10("uniform", 5, ranks=deal([5, 5]))

    for a, b in zip(plain.indices, dealt.indices, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_regression_can_be_divided_without_classes() -> None:
    targets = np.linspace(0, 1, 100)
    parts = partition(targets, 4, sizes="powerlaw", classes="iid", seed=0, num_classes=0)

    assert_each_example_at_most_once(parts, 100)
    assert holdings(targets, parts, 0).ravel().tolist() == list(parts.sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 11}, "cannot hold 11 classes: the data has 10"),
        ({"classes": 0}, "cannot hold 0 classes"),
        ({"classes": "8,4,3x7"}, "names 9 learners, but there are 10"),
        ({"classes": "dirichlett"}, "did you mean 'dirichlet'"),
        ({"classes": "3,x"}, "one per learner such as 8,4,3x8"),
        ({"sizes": "powrlaw"}, "did you mean 'powerlaw'"),
        ({"num_learners": 101}, "101 learners cannot share 100 examples"),
        ({"num_learners": 0}, "at least one"),
        ({"sizes": "geometric", "num_learners": 30}, "of 30 learners without an example"),
        ({"classes": "natural"}, "this data has no owners"),
        ({"classes": "natural", "owners": np.arange(100) % 9}, "only 9 owners"),
        ({"classes": "natural", "owners": np.arange(99)}, "99 owners for 100 examples"),
        ({"classes": "dirichlet", "alpha": 0.0}, "alpha = 0.0 must be positive"),
        ({"ranks": [0, 1, 2]}, "each of 0..9 once"),
        ({"num_classes": 5}, "labels span 0..9, but num_classes is 5"),
        ({"num_classes": 0, "classes": 3}, "this is a regression task"),
        ({"num_learners": 60, "classes": 3}, "60 learners cannot hold 3..3 classes"),
    ],
)
def test_what_cannot_be_divided_is_said_clearly(arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "num_learners": 10,
        "sizes": "uniform",
        "classes": "iid",
        "seed": 0,
        "num_classes": 10,
    }
    with pytest.raises(DataError, match=message):
        partition(np.tile(np.arange(10), 10), **(usual | arguments))


def test_every_class_distribution_has_a_name_in_the_error() -> None:
    with pytest.raises(DataError) as error:
        cifar10("uniform", "nonsense")
    assert all(name in str(error.value) for name in CLASSES)


# ---- classes in turn ---------------------------------------------------------------------------


@pytest.mark.parametrize("x", [1, 3, 5, 10])
def test_in_turn_everybody_holds_the_classes_from_their_own_number_on(x: int) -> None:
    parts = cifar10("uniform", x, class_rule="in-turn")

    assert all(abs(size - 5000) < x for size in parts.sizes)
    for k, held in enumerate(holdings(CIFAR10, parts, 10)):
        assert set(np.flatnonzero(held)) == {(k + i) % 10 for i in range(x)}
        assert held[held > 0].tolist() == pytest.approx([5000 / x] * x, abs=1)


def test_in_turn_a_class_is_divided_by_the_sizes_of_its_holders() -> None:
    parts = cifar10("skewed", 3, class_rule="in-turn")
    wanted = 1.2 ** -np.arange(10.0)

    held = holdings(CIFAR10, parts, 10)
    assert_each_example_at_most_once(parts, 50_000)
    assert parts.unplaced == 0
    for label in range(10):
        holders = [k for k in range(10) if (label - k) % 10 < 3]
        shares = [int(held[k][label]) for k in range(10) if held[k][label]]
        exact = 5000 * wanted[holders] / wanted[holders].sum()
        assert sorted(shares) == pytest.approx(sorted(exact), abs=2)
    assert list(parts.sizes) == sorted(parts.sizes, reverse=True)


def test_in_turn_classes_that_nobody_reaches_are_left_over_and_few_examples_are_told() -> None:
    assert cifar10("uniform", 1, class_rule="in-turn").unplaced == 0
    few = partition(
        CIFAR10, 3, sizes="uniform", classes=2, seed=1, num_classes=10, class_rule="in-turn"
    )
    assert few.unplaced == 6 * 5000
    with pytest.raises(DataError, match="cannot be dealt in turn to 3 learners"):
        partition(
            np.arange(3), 3, sizes="uniform", classes=2, seed=1, num_classes=3, class_rule="in-turn"
        )
    with pytest.raises(DataError, match="did you mean 'in-turn'"):
        cifar10("uniform", 3, class_rule="inturn")
