"""The largest are found as a stable sort would find them, guess or no guess."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metis.codecs import selection
from metis.codecs.joined import Indices, joined
from metis.codecs.selection import blank_kernels, kept_kernels, largest, rounded
from tests.codecs import reference
from tests.codecs.updates import Change, changes, layout_of, shares, vector

SIZE = 5 * selection._SAMPLE + 12_345
STRIDE = SIZE // selection._SAMPLE


def by_sorting(magnitudes: NDArray[np.float32], count: int) -> Indices:
    order = np.argsort(-magnitudes, kind="stable")[:count]
    return np.sort(order[magnitudes[order] > 0.0])


def patterns() -> dict[str, NDArray[np.float32]]:
    chance = np.random.default_rng(5)
    gaussian = np.abs(chance.normal(size=SIZE)).astype(np.float32)
    on_the_sample = gaussian.copy()
    on_the_sample[::STRIDE] += 100.0
    off_the_sample = gaussian + np.float32(100.0)
    off_the_sample[::STRIDE] = 0.0
    return {
        "gaussian": gaussian,
        "few values": chance.integers(0, 4, SIZE).astype(np.float32),
        "constant": np.full(SIZE, 0.5, dtype=np.float32),
        "zeros": np.zeros(SIZE, dtype=np.float32),
        "mostly zeros": np.where(chance.random(SIZE) < 0.003, gaussian, np.float32(0.0)),
        "large where the sample looks": on_the_sample,
        "large where it does not": off_the_sample,
        "ascending": np.arange(SIZE, dtype=np.float32),
        "descending": np.arange(SIZE, 0, -1).astype(np.float32),
        "tiny": np.full(SIZE, 1e-45, dtype=np.float32),
    }


@pytest.mark.parametrize("name", patterns())
def test_the_largest_of_many_are_those_of_a_stable_sort(name: str) -> None:
    magnitudes = patterns()[name]

    for count in (0, 1, 2, 400, SIZE // 100, SIZE // 10, SIZE // 2, SIZE - 1, SIZE, SIZE + 1):
        assert np.array_equal(largest(magnitudes, count), by_sorting(magnitudes, count)), count


@given(st.lists(st.integers(0, 6), max_size=120), st.integers(0, 130), st.integers(1, 12))
def test_the_guess_changes_nothing(values: list[int], count: int, sample: int) -> None:
    magnitudes = np.array(values, dtype=np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_SAMPLE", sample)
        found = largest(magnitudes, count)

    expected = reference.largest([float(v) for v in values], list(range(len(values))), count)
    assert found.tolist() == expected


def test_of_equals_the_first_and_never_a_zero() -> None:
    magnitudes = vector(0, 2, 1, 0, 1, 1)

    assert largest(magnitudes, 3).tolist() == [1, 2, 4]
    assert largest(magnitudes, 6).tolist() == [1, 2, 4, 5]
    assert largest(magnitudes, 0).tolist() == []
    assert largest(vector(), 3).tolist() == []


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [
        (0.5, 1, 1),
        (0.5, 3, 2),
        (0.25, 2, 1),
        (0.25, 10, 3),
        (0.125, 2080, 260),
        (0.01, 49, 0),
        (0.01, 50, 1),
        (0.0, 9, 0),
        (1.0, 9, 9),
    ],
)
def test_a_share_is_rounded_half_up(share: float, count: int, expected: int) -> None:
    assert rounded(share, count) == reference.half_up(share, count) == expected


@given(changes, shares)
def test_kernels_of_all_tensors_compete_by_their_mean(change: Change, share: float) -> None:
    shape, kernels = joined(change.layout), reference.places_of(change.layout).kernels
    magnitudes = np.abs(shape.difference(change.local, change.base))
    count = rounded(share, shape.num_kernels)
    scores = [float(magnitudes[cells].astype(np.float64).sum()) / len(cells) for cells in kernels]

    kept = kept_kernels(magnitudes, shape, count)

    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    assert np.flatnonzero(kept).tolist() == sorted(order[:count])


def test_of_many_kernels_that_tie_the_first_are_kept() -> None:
    shape = joined(layout_of(("conv", (40, 50, 1, 1)), ("conv", (30, 20, 2))))
    magnitudes = np.random.default_rng(2).integers(0, 3, shape.num_weights).astype(np.float32)
    means = [*magnitudes[:2000], *magnitudes[2000:].reshape(600, 2).mean(axis=1)]

    for count in (1, 300, 1000, 2599):
        kept = kept_kernels(magnitudes, shape, count)

        order = sorted(range(2600), key=lambda number: (-means[number], number))
        assert np.flatnonzero(kept).tolist() == sorted(order[:count])


def test_what_is_in_no_kept_kernel_is_blanked_and_nothing_else() -> None:
    shape = joined(layout_of(("conv", (2, 1, 2)), ("dense", (1, 2)), ("conv", (1, 1, 3))))
    magnitudes = np.arange(1, 10, dtype=np.float32)

    blank_kernels(magnitudes, shape, np.array([False, True, False]))

    assert magnitudes.tolist() == [0, 0, 3, 4, 5, 6, 0, 0, 0]
