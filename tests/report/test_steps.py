"""Step functions: the value in force, several together, means over a window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis.report.steps import running_mean, together, values_at

AT, VALUES = np.array([10.0, 20.0, 40.0]), np.array([1.0, 3.0, 2.0])


def test_a_value_holds_until_the_next_and_before_the_first_there_is_none() -> None:
    found = values_at(AT, VALUES, np.array([9.0, 10.0, 19.9, 20.0, 99.0]))
    assert found.tolist()[1:] == [1.0, 1.0, 3.0, 2.0]
    assert np.isnan(found[0])


def test_the_last_of_several_values_at_one_moment_is_in_force() -> None:
    assert values_at(np.array([1.0, 1.0]), np.array([5.0, 6.0]), np.array([1.0])).tolist() == [6.0]


def test_steps_together_change_when_one_of_them_does_where_all_are_known() -> None:
    other = (np.array([15.0, 30.0, 35.0]), np.array([7.0, 8.0, 9.0]))

    at, each = together([(AT, VALUES), other])

    assert at.tolist() == [15.0, 20.0, 30.0, 35.0]
    assert each.tolist() == [[1.0, 3.0, 3.0, 3.0], [7.0, 7.0, 8.0, 9.0]]


def test_steps_that_were_never_known_at_once_have_one_moment() -> None:
    at, each = together([(np.array([0.0, 1.0]), np.array([5.0, 6.0])), (AT, VALUES)])
    assert (at.tolist(), each.tolist()) == ([10.0], [[6.0], [1.0]])


def test_a_mean_weighs_each_value_by_how_long_it_was_there() -> None:
    moments = np.array([20.0, 25.0, 45.0])
    found = running_mean(AT, VALUES, moments, np.array([10.0, 20.0, 30.0]))
    # 10 s of 1; 10 of 1 and 5 of 3, as nothing was there before; 5 of 1, 20 of 3, 5 of 2.
    assert found == pytest.approx([1.0, 25 / 15, 75 / 30])


def test_a_window_of_no_length_has_the_value_in_force() -> None:
    moments = np.array([5.0, 10.0, 20.0])
    found = running_mean(AT, VALUES, moments, np.zeros(3))
    assert np.isnan(found[0])
    assert found[1:].tolist() == [1.0, 3.0]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.floats(0, 20),
    st.floats(0.01, 20),
)
def test_a_mean_is_that_of_very_many_looks(
    scores: list[float], moment: float, window: float
) -> None:
    at, values = np.arange(len(scores), dtype=float), np.array(scores)
    (found,) = running_mean(at, values, np.array([moment]), np.array([window]))

    looks = np.linspace(max(moment - window, 0.0), moment, 4001)
    expected = values_at(at, values, (looks[:-1] + looks[1:]) / 2).mean() if moment else values[0]
    assert found == pytest.approx(expected, abs=0.01)
