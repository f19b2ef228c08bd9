from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from metis.core.errors import RunError
from metis.core.policies import POLICIES
from metis.report import plots
from metis.report.runs import Run, curve

pytest.importorskip("matplotlib")
RunOf = Callable[..., Run]

OVER = (plots.accuracy_over_time, plots.accuracy_over_samples, plots.accuracy_over_megabytes)
TOGETHER = (*OVER, plots.requests_and_models, plots.staleness)
ALONE = (plots.holdings, plots.weights_over_time, plots.validation_cycles)


def drawn(figure: Any) -> bytes:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=50)
    return png.getvalue()


def colours(figure: Any) -> dict[str, str]:
    return {
        line.get_label(): line.get_color()
        for line in figure.axes[0].get_lines()
        if not line.get_label().startswith("_")
    }


def test_every_picture_of_a_comparison_can_be_drawn(run_of: RunOf) -> None:
    policies = ("sync-dvw", "async-dvw-adaptive")
    runs = [run_of(policy, seed=seed) for policy in policies for seed in (1, 2)]
    for plot in TOGETHER:
        assert drawn(plot(runs)).startswith(b"\x89PNG")
    for plot_one in ALONE:
        assert drawn(plot_one(runs[-1])).startswith(b"\x89PNG")


def test_drawing_leaves_pyplot_alone(run_of: RunOf) -> None:
    before = "matplotlib.pyplot" in sys.modules
    plots.accuracy_over_time([run_of(seconds=20)])
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_curves_whose_bytes_are_far_apart_are_drawn_on_a_logarithmic_axis(run_of: RunOf) -> None:
    plain, packed = run_of("sync-fedavg"), run_of("sync-fedavg", name="packed")
    for record in packed.records:
        for name in ("bytes_up", "bytes_down"):
            if name in record:
                record[name] //= 300

    figure: Any = plots.accuracy_over_megabytes([plain, packed])
    alike: Any = plots.accuracy_over_megabytes([plain, plain])

    assert figure.axes[0].get_xscale() == "log"
    assert alike.axes[0].get_xscale() == "linear"


def test_a_run_without_versions_shows_its_first_test_only(run_of: RunOf) -> None:
    run = run_of(seconds=0.5)
    assert run.summary["versions"] == 0
    assert drawn(plots.accuracy_over_time([run]))
    assert drawn(plots.holdings(run))
    assert plots.requests_and_models([run]) is None
    assert plots.staleness([run]) is None
    assert plots.weights_over_time(run) is None


def test_a_run_that_was_never_tested_has_an_empty_picture(run_of: RunOf) -> None:
    run = run_of(seconds=0.5, ended=False)
    untested = Run(run.name, run.directory, run.records[:1], run.summary)
    assert all(not plot([untested]).axes[0].get_lines() for plot in OVER)


def test_validation_cycles_need_losses(run_of: RunOf) -> None:
    assert plots.validation_cycles(run_of("async-dvw")) is None


def test_a_fast_and_a_slow_learner_show_their_cycles(run_of: RunOf) -> None:
    figure: Any = plots.validation_cycles(run_of())
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.split(" ")[1] for title in titles] == ["(fast)", "(slow)"]


def test_a_regression_is_labelled_as_one_and_has_no_classes(run_of: RunOf) -> None:
    run = run_of("sync-dvw", num_classes=0)
    figure: Any = plots.accuracy_over_time([run])
    assert figure.axes[0].get_ylabel() == "test R²"
    held: Any = plots.holdings(run)
    assert len(held.axes) == 1


def test_several_seeds_are_drawn_as_a_mean_and_a_band(run_of: RunOf) -> None:
    runs = [run_of("sync-dvw", seed=seed) for seed in (1, 2, 3)]
    figure: Any = plots.accuracy_over_time(runs)
    assert list(colours(figure)) == ["sync-dvw"]
    assert len(figure.axes[0].collections) == 1


@pytest.mark.parametrize("plot", OVER)
def test_a_score_holds_until_the_next_test(plot: Any, run_of: RunOf) -> None:
    for runs in ([run_of("sync-dvw", seconds=20)], [run_of(seed=seed) for seed in (1, 2)]):
        axes = plot(runs).axes[0]
        assert [line.get_drawstyle() for line in axes.get_lines()] == ["steps-post"]


def test_seeds_are_averaged_by_the_scores_in_force(run_of: RunOf) -> None:
    runs = [run_of("sync-dvw", seed=seed) for seed in (1, 2)]
    (line,) = plots.accuracy_over_time(runs).axes[0].get_lines()
    of_runs = [[(p.seconds, p.score) for p in curve(run)] for run in runs]

    for at, middle in np.asarray(line.get_xydata(), dtype=float).tolist():
        in_force = [[score for when, score in one if when <= at][-1] for one in of_runs]
        assert middle == pytest.approx(sum(in_force) / 2)


def test_tests_are_marked_where_there_are_few_and_the_end_is_none(run_of: RunOf) -> None:
    def marked(seconds: float) -> tuple[Any, Any]:
        run = run_of("sync-dvw", name=f"of-{seconds}", seconds=seconds)
        (line,) = plots.accuracy_over_time([run]).axes[0].get_lines()
        tests = sum(record["kind"] == "test" for record in run.records)
        return (line.get_marker(), line.get_markevery()), tests

    (few, every), number = marked(3)
    assert number < 20
    assert few == "o"
    assert len(every) == number
    assert marked(200)[0][0] in ("None", None)


def test_reports_and_experiments_draw_a_policy_alike(run_of: RunOf) -> None:
    assert set(plots.LOOKS) == set(POLICIES)
    assert len(set(plots.LOOKS.values())) == len(POLICIES)
    assert {colour for colour, _ in plots.LOOKS.values()} <= set(plots.COLOURS)
    figure: Any = plots.accuracy_over_time([run_of("async-dvw", seconds=5)])
    assert colours(figure) == {"async-dvw": plots.LOOKS["async-dvw"][0]}


def test_a_policy_keeps_its_colour_whoever_is_beside_it(run_of: RunOf) -> None:
    one, other = run_of("sync-dvw", seconds=20), run_of("fedasync", seconds=20)
    both = colours(plots.accuracy_over_time([one, other]))
    assert colours(plots.accuracy_over_samples([other])) == {"fedasync": both["fedasync"]}
    assert both["fedasync"] != both["sync-dvw"]


def test_all_known_policies_look_different(run_of: RunOf) -> None:
    runs = [run_of(policy, seconds=5) for policy in POLICIES]
    figure: Any = plots.accuracy_over_time(runs)
    lines = figure.axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(POLICIES)


def test_two_runs_of_one_policy_look_different(run_of: RunOf) -> None:
    runs = [run_of("sync-dvw", name=name, seconds=20) for name in ("a", "b")]
    assert len(set(colours(plots.accuracy_over_time(runs)).values())) == 2


def test_staleness_names_the_statistics_of_each_group(run_of: RunOf) -> None:
    run = run_of("async-dvw")
    figure: Any = plots.staleness([run])
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert [label.split(":")[0] for label in labels] == ["fast", "slow"]
    assert all(word in labels[0] for word in ("median", "mean", "std"))


def test_hundreds_of_learners_are_drawn_without_their_names(run_of: RunOf) -> None:
    run = run_of("async-fedavg", num_learners=300, num_classes=62, seconds=6)
    figure: Any = plots.holdings(run)
    assert figure.axes[0].get_ylabel() == "300 learners: fast, slow, largest first"
    assert drawn(figure)
    weights: Any = plots.weights_over_time(run)
    assert all(axes.get_legend() is None for axes in weights.axes)


def test_without_matplotlib_it_says_what_to_install(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match=r"pip install 'metis-fl\[plot\]'"):
        plots.accuracy_over_time([run_of(seconds=5)])
