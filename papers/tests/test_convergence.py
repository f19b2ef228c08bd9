"""Figures 5 to 8: steps, running means of steps, a panel for each row that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.tests.made_up import result

from metis.report.style import LOOKS
from metis_papers import convergence
from metis_papers.formatting import TITLES
from metis_papers.results import Result


def many_tests(policy: str = "async-dvw", shift: float = 0.0, **values: Any) -> Result:
    """A cell with 100 tests: the score is 0.5, and 0.7 from half of the time on."""
    times = np.linspace(0.0, 990.0, 100)
    curve = [[at, number, (0.5 if at < 500 else 0.7) + shift] for number, at in enumerate(times)]
    return result(policy, 0.7, curve=curve, virtual_seconds=1_000.0, **values)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Draw, and return the figure instead of its file."""

    def figure(*found: Result) -> Any:
        kept: list[Any] = []

        def keep(figure: Any, path: Path) -> Path:
            kept.append(figure)
            return path

        monkeypatch.setattr(convergence, "write_figure", keep)
        convergence.draw_convergence(found, "title", tmp_path / "a.png")
        kept[0].draw_without_rendering()
        return kept[0]

    return figure


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_title(loc="left") != "examples by learner"]


def test_few_tests_are_drawn_as_steps_that_hold_until_the_next(drawn: Any) -> None:
    curve = [[0.0, 0, 0.1], [600.0, 1, 0.7]]
    figure = drawn(result("fedasync", 0.7, curve=curve, virtual_seconds=1_000.0))
    (axes,) = panels(figure)
    (line,) = axes.get_lines()

    assert figure.legends[0].get_title().get_text() == "Lines: scores, each until the next test."
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xydata().tolist() == [[0.0, 0.1], [600.0, 0.7], [1_000.0, 0.7]]


def test_many_tests_are_a_mean_over_faint_steps(drawn: Any) -> None:
    figure = drawn(many_tests())
    (axes,) = panels(figure)
    faint, line = axes.get_lines()

    assert (faint.get_drawstyle(), line.get_drawstyle()) == ("steps-post", "default")
    assert faint.get_alpha() < 0.5
    at, score = line.get_xydata().T
    # The window is 50 s: half of it is of the new score 25 s after the change.
    assert np.interp([499.0, 525.0, 551.0], at, score) == pytest.approx([0.5, 0.6, 0.7], abs=0.01)
    assert "means over the 5% of the virtual time" in " ".join(
        figure.legends[0].get_title().get_text().split()
    )


def test_a_window_does_not_reach_across_the_start() -> None:
    """Early on it is a fifth of the time until then: 20 s after 100."""
    curve = [[10.0 * number, number, 0.0 if number < 9 else 1.0] for number in range(100)]
    one = result("async-dvw", 1.0, curve=curve, virtual_seconds=1_000.0)

    found = convergence.smoothed(one, np.array([0.0, 10.0, 100.0]))

    assert found == pytest.approx([0.0, 0.0, 0.5])


def test_seeds_are_averaged_by_the_value_in_force(drawn: Any) -> None:
    first = result("fedasync", 1.0, curve=[[0, 0, 0.0], [100, 1, 1.0]], virtual_seconds=200.0)
    second = result(
        "fedasync", 0.5, curve=[[0, 0, 0.0], [150, 1, 0.5]], virtual_seconds=200.0, seed=7
    )
    (axes,) = panels(drawn(first, second))
    (line,) = axes.get_lines()

    assert line.get_xydata().tolist() == [[0, 0], [100, 0.5], [150, 0.75], [200, 0.75]]
    assert len(axes.collections) == 1  # the band


@pytest.mark.parametrize("number", range(1, 10))
def test_there_is_a_panel_for_each_row_that_was_tested_and_no_other(
    number: int, drawn: Any
) -> None:
    rows = [f"uniform-{number + 1}" for number in range(number)]
    cells = [result("fedasync", 0.5, row=row) for row in rows]

    figure = drawn(*cells, result("fedasync", 0.0, row="skewed-3", curve=[]))

    assert [axes.get_title(loc="left") for axes in panels(figure)] == rows
    assert all(axes.get_visible() for axes in figure.axes)


def test_an_inset_hides_nothing_of_its_panel(drawn: Any) -> None:
    figure = drawn(many_tests(), many_tests("fedasync", -0.3))
    (panel,) = panels(figure)
    (inset,) = panel.child_axes

    assert inset.get_window_extent().x0 > panel.get_window_extent().x1


def test_all_policies_of_the_tables_have_a_colour_of_their_own_in_every_figure(
    drawn: Any,
) -> None:
    figure = drawn(*(many_tests(policy, 0.01 * n) for n, policy in enumerate(TITLES)))
    handles = {text.get_text(): line for text, line in legend_of(figure)}

    assert {name: handles[TITLES[name]].get_color() for name in TITLES} == {
        name: LOOKS[name][0] for name in TITLES
    }
    assert len({LOOKS[name][0] for name in TITLES}) == len(TITLES)


def legend_of(figure: Any) -> Any:
    (legend,) = figure.legends
    return zip(legend.get_texts(), legend.get_lines(), strict=True)


def test_an_axis_begins_below_what_comes_after_the_first_climb() -> None:
    climbed = result("async-dvw", 0.9, curve=[[0.0, 0, 0.1], [600.0, 1, 0.7], [9e3, 2, 0.9]])
    other = result("fedasync", 0.5, curve=[[0.0, 0, 0.1], [600.0, 2, 0.5]])
    margin = convergence.MARGIN

    assert convergence._limits([climbed]) == pytest.approx((0.7 - margin * 0.2, 0.9 + margin * 0.2))
    assert convergence._limits([climbed, other]) == pytest.approx(
        (0.5 - margin * 0.4, 0.9 + margin * 0.4)
    )
    assert convergence._limits([other]) is None  # one score is no range
