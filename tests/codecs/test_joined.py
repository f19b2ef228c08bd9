"""A model as weights and the rest, against a walk over every single value."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.codecs.joined import Indices, Span, joined
from metis.core.errors import ModelError
from metis.core.kernels import all_finite
from metis.core.types import Layout
from tests.codecs.reference import places_of
from tests.codecs.updates import Change, changes, layout_of, layouts, vector

MIXED = layout_of(
    ("conv", (2, 1, 2)),
    ("plain", (2,)),
    ("dense", (1, 3)),
    ("conv", (1, 2, 1, 1)),
    ("buffer", (1,)),
)


def spread(spans: tuple[Span, ...]) -> list[int]:
    return [place for start, stop in spans for place in range(start, stop)]


def numbers(values: list[int]) -> Indices:
    return np.array(values, dtype=np.int64)


def some_of(values: list[int], seed: int) -> Indices:
    """Return about half of these numbers, in their order."""
    chosen = np.random.default_rng(seed).random(len(values)) < 0.5
    return np.array(values, dtype=np.int64)[chosen]


@given(layouts)
def test_every_value_is_a_weight_or_exact_and_weights_are_joined_in_order(layout: Layout) -> None:
    shape, places = joined(layout), places_of(layout)

    assert spread(shape.weights) == places.weights
    assert spread(shape.exact) == places.exact
    assert (shape.num_weights, shape.num_exact) == (len(places.weights), len(places.exact))
    assert [list(range(*span)) for _, span in shape.tensors] == places.tensors
    assert spread(shape.dense) == places.dense
    assert shape.num_dense == len(places.dense)
    assert shape.num_kernels == len(places.kernels)


@given(layouts)
def test_spans_are_as_few_as_can_be(layout: Layout) -> None:
    shape = joined(layout)

    for spans in (shape.weights, shape.exact, shape.dense):
        assert all(start < stop for start, stop in spans)
        assert all(a[1] < b[0] for a, b in pairwise(spans))


@given(layouts)
def test_kernels_are_numbered_through_all_tensors(layout: Layout) -> None:
    shape, kernels = joined(layout), places_of(layout).kernels
    every = np.arange(len(kernels))

    assert shape.kernel_starts(every).tolist() == [kernel[0] for kernel in kernels]
    assert shape.kernel_cells(every).tolist() == [len(kernel) for kernel in kernels]


@given(layouts, st.integers(0, 99))
def test_some_kernels_are_found_as_well_as_all(layout: Layout, seed: int) -> None:
    shape, kernels = joined(layout), places_of(layout).kernels
    chosen = some_of(list(range(len(kernels))), seed)

    assert shape.kernel_starts(chosen).tolist() == [kernels[number][0] for number in chosen]
    assert shape.kernel_cells(chosen).tolist() == [len(kernels[number]) for number in chosen]


@given(layouts, st.integers(0, 99))
def test_a_weight_is_in_one_kernel_or_in_none(layout: Layout, seed: int) -> None:
    shape, places = joined(layout), places_of(layout)
    owner = {index: number for number, cells in enumerate(places.kernels) for index in cells}
    chosen = some_of(list(range(len(places.weights))), seed)

    mask = shape.are_in_kernels(chosen)
    inside, outside = chosen[mask], chosen[~mask]

    assert inside.tolist() == [index for index in chosen if index in owner]
    assert outside.tolist() == [index for index in chosen if index not in owner]
    assert shape.kernel_of(inside).tolist() == [owner[index] for index in inside]


@given(layouts, st.integers(0, 99))
def test_numbers_of_weights_go_to_the_vector_and_to_the_dense_part_and_back(
    layout: Layout, seed: int
) -> None:
    shape, places = joined(layout), places_of(layout)
    weights = some_of(list(range(len(places.weights))), seed)
    positions = some_of(list(range(len(places.dense))), seed)

    indices = shape.dense_indices(positions)

    assert shape.places(weights).tolist() == [places.weights[index] for index in weights]
    assert indices.tolist() == [places.dense[position] for position in positions]
    assert shape.dense_positions(indices).tolist() == positions.tolist()


@given(changes)
def test_a_difference_is_of_weights_alone_and_the_rest_is_taken_as_it_is(change: Change) -> None:
    shape, places = joined(change.layout), places_of(change.layout)

    difference = shape.difference(change.local, change.base)
    exact = shape.exact_values(change.local)

    expected = change.local[places.weights] - change.base[places.weights]
    assert difference.tobytes() == expected.tobytes()
    assert exact.tobytes() == change.local[places.exact].tobytes()


def test_a_layout_by_hand() -> None:
    shape = joined(MIXED)

    assert shape.weights == ((0, 4), (6, 11))
    assert shape.exact == ((4, 6), (11, 12))
    assert shape.dense == ((4, 7),)
    assert shape.tensors == (("conv0", (0, 4)), ("dense2", (4, 7)), ("conv3", (7, 9)))
    assert shape.kernel_starts(numbers([0, 1, 2, 3])).tolist() == [0, 2, 7, 8]
    assert shape.kernel_cells(numbers([1, 2])).tolist() == [2, 1]
    assert shape.places(numbers([3, 4, 8])).tolist() == [3, 6, 10]


def test_a_filter_without_cells_has_no_kernels() -> None:
    shape = joined(layout_of(("conv", (0, 3, 3)), ("conv", (1, 2, 2)), ("conv", (2, 2, 0))))

    assert (shape.num_weights, shape.num_kernels) == (4, 2)
    assert shape.kernel_starts(numbers([0, 1])).tolist() == [0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(MIXED.size))
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(bad: float, place: int) -> None:
    weights = np.ones(MIXED.size, dtype=np.float32)
    weights[place] = bad

    with pytest.raises(ModelError, match="not finite"):
        joined(MIXED).difference(weights, vector(*[0.5] * MIXED.size))


@pytest.mark.parametrize(("local", "base"), [(3e38, -3e38), (np.inf, np.inf), (-np.inf, np.inf)])
def test_a_difference_that_is_not_finite_is_refused_without_a_warning(
    local: float, base: float
) -> None:
    weights, before = vector(*[local] * MIXED.size), vector(*[base] * MIXED.size)

    with pytest.raises(ModelError, match="not finite"):
        joined(MIXED).difference(weights, before)


def test_finite_values_whose_sum_is_not_are_finite() -> None:
    assert all_finite(vector(3e38, 3e38, 3e38))
    assert all_finite(vector())
    assert not all_finite(vector(np.inf, -np.inf))
    assert not all_finite(vector(0.0, np.nan))
