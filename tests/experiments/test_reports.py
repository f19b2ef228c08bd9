"""Tables, the check of orderings and figures, from cells that were never run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.core.errors import ConfigError, RunError
from metis.experiments import (
    beliefs,
    check,
    cost,
    fig3,
    fig4,
    fig9,
    sstc,
    table1,
    table1_by_class,
    table3,
    update_frequency,
    validation_size,
    wrong_labels,
)
from metis.experiments.cells import Setting
from metis.experiments.check import FAILS, HOLDS, MISSING, TIE, findings
from metis.experiments.outcome import Outcome
from metis.experiments.sstc_kernels import SHARES, gains, in_words, look, measures
from metis.experiments.study import Choice
from metis.experiments.words import beside, markdown_table, score, write_page
from metis.models import build
from metis.training.flat import layout_of
from tests.experiments.made_up import outcome, put


def verdicts(*outcomes: Outcome) -> dict[str, str]:
    return {one.claim: one.verdict for one in findings(outcomes)}


# ---- words -------------------------------------------------------------------------------------


def test_a_score_of_several_seeds_has_its_spread() -> None:
    assert score([0.5]) == "0.5000"
    assert score([0.4, 0.6]) == "0.5000 ±0.1000 (2 seeds)"
    assert score([]) == "-"


def test_a_difference_is_taken_only_where_it_means_something() -> None:
    assert beside([0.5], 0.6, comparable=True) == "0.5000 (0.6000, -0.1000)"
    assert beside([0.5], 0.6, comparable=False) == "0.5000 (0.6000)"
    assert beside([], 0.6, comparable=True) == "-"


def test_columns_of_a_table_are_aligned() -> None:
    lines = markdown_table(("a", "long"), [("wide cell", "b")]).splitlines()

    assert len({len(line) for line in lines}) == 1


def test_a_page_is_renewed_where_a_readme_has_a_place_for_it(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- fig9.md -->\nold\n<!-- end -->\nafter <!-- end -->\n")

    write_page(tmp_path, "fig9", "new\n")

    assert page.read_text() == ("before\n<!-- fig9.md -->\nnew\n<!-- end -->\nafter <!-- end -->\n")


# ---- tables ------------------------------------------------------------------------------------


def test_table_1_shows_ours_beside_the_published_and_names_what_is_missing(
    tmp_path: Path,
) -> None:
    setting = put(
        tmp_path,
        outcome("async-dvw-adaptive", 0.56),
        outcome("async-dvw-adaptive", 0.58, seed=7),
        outcome(
            "sync-dvw",
            0.62,
            cluster="homogeneous",
            horizon="200 rounds",
            curve=[[9_000.0, 1, 0.58], [11_000.0, 2, 0.62]],
        ),
    )

    text = table1.report(setting, Choice()).text

    assert "0.5700 ±0.0100 (2 seeds) (0.5703, -0.0003)" in text
    assert "0.6200 (0.6191, +0.0009)" in text  # after 200 rounds
    assert "0.5800 (0.5744, +0.0056)" in text  # after 10,000 s
    assert "97 of 99 cells are missing" in text
    assert "- homogeneous: sync-fedavg, sync-uniform of powerlaw-3" in text
    assert (tmp_path / "table1.md").read_text() == text
    assert (tmp_path / "fig6.png").stat().st_size > 10_000


def test_a_table_tells_the_last_tenth_and_how_far_each_is_from_its_rows_best(
    tmp_path: Path,
) -> None:
    def cell(policy: str, seed: int, score: float, row: str = "powerlaw-3") -> Outcome:
        curve = [[13_000.0, 1, score - 0.1], [14_000.0, 2, score + 0.1]]
        return outcome(policy, score + 0.1, seed=seed, curve=curve, row=row)

    scores = {"async-dvw": (0.6, 0.8), "fedasync": (0.5, 0.4)}
    setting = put(
        tmp_path,
        *(cell(policy, seed, of[seed]) for policy, of in scores.items() for seed in (0, 1)),
        cell("async-dvw", 2, 0.7),  # a seed of which fedasync knows nothing
        cell("async-uniform", 2, 0.9),  # of one seed nothing is told
        cell("async-dvw", 0, 0.3, "powerlaw-5"),
    )

    text = table1.report(setting, Choice()).text

    _, means, off, *_ = text.split("distribution | SyncFedAvg")[1:]  # the first has final scores
    told = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[5:7]]
        for line in means.splitlines()
        if line.startswith("| powerlaw")
    }
    assert told["powerlaw-3"] == ["0.4500 ±0.0500 (2 seeds)", "0.7000 ±0.1000 (3 seeds)"]
    assert told["powerlaw-5"] == ["-", "0.3000"]
    told = {
        line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[5:7]]
        for line in off.splitlines()
        if line.startswith("| powerlaw")
    }
    # -0.1 and -0.4 in the seeds that both have: their standard deviation is 0.2121.
    assert told["powerlaw-3"] == ["-0.2500 ±0.1500", "best"]
    assert told["powerlaw-5"] == ["-", "-"]  # one seed


def test_cells_of_a_shorter_horizon_are_not_compared(tmp_path: Path) -> None:
    setting = put(tmp_path, outcome("fedasync", 0.3, horizon="1,400 s"))

    text = table1.report(setting, Choice()).text

    assert "after 1,400 s; in brackets the paper's after 14,000 s, so no difference" in text
    assert "| 0.3000 (0.4205) |" in text


def test_other_data_never_stands_beside_the_papers_numbers(tmp_path: Path) -> None:
    mine = {"study": "table3-mnist_by_writer", "row": "uniform-iid", "dataset": "mnist_by_writer"}
    setting = put(tmp_path, outcome("fedasync", 0.99, horizon="30,000 s", **mine))

    text = table3.report(setting, Choice(data="mnist_by_writer")).text

    assert "not the paper's data" in text
    assert "0.8600" not in text


def test_by_class_with_other_data_has_files_of_its_own_and_no_published_numbers(
    tmp_path: Path,
) -> None:
    mine = {"study": "table1-by-class-mnist", "dataset": "mnist"}

    found = table1_by_class.report(
        put(tmp_path, outcome("sync-dvw", 0.5, **mine)), Choice(data="mnist")
    )

    assert "## Table I's power law on mnist, examples class by class" in found.text
    assert "not the paper's data" in found.text
    assert "0.3546" not in found.text
    assert [path.name for path in found.files] == [
        "table1-by-class-mnist.md",
        "table1-by-class-mnist-heterogeneous.png",
    ]


# ---- orderings ---------------------------------------------------------------------------------


def test_orderings_that_hold_are_said_to_hold() -> None:
    found = verdicts(
        outcome("sync-fedavg", 0.12),
        outcome("sync-dvw", 0.35),
        outcome("async-fedavg", 0.15),
        outcome("fedasync", 0.42),
        outcome("async-dvw", 0.565),
        outcome("async-dvw-adaptive", 0.56),
        outcome("async-uniform", 0.70),  # a control: it is told of, not competed with
    )

    assert found == {
        "SyncDVW >= SyncFedAvg": HOLDS,
        "AsyncDVW(na) >= AsyncFedAvg": HOLDS,
        "AsyncDVW(a) >= AsyncFedAvg": HOLDS,
        "AsyncDVW(a) best, or within 0.01 of the best": HOLDS,
    }


def test_orderings_that_fail_are_findings() -> None:
    found = verdicts(outcome("sync-fedavg", 0.6), outcome("sync-dvw", 0.5))

    assert found["SyncDVW >= SyncFedAvg"] == FAILS
    assert found["AsyncDVW(a) best, or within 0.01 of the best"] == MISSING

    behind = verdicts(outcome("fedasync", 0.52), outcome("async-dvw-adaptive", 0.5))
    assert behind["AsyncDVW(a) best, or within 0.01 of the best"] == FAILS


def test_a_finding_is_decided_by_the_last_tenth_and_tells_the_final_score() -> None:
    steady = [[700.0 * at, at, 0.7] for at in range(21)]
    unlucky = [*steady[:-1], [14_000.0, 20, 0.6]]  # the last tenth of the time has three tests

    (found, _) = findings(
        [
            outcome("sync-fedavg", 0.61, curve=[[13_000.0, 0, 0.6], [14_000.0, 1, 0.61]]),
            outcome("sync-dvw", 0.6, curve=unlucky),
        ]
    )[:2]

    assert found.verdict == HOLDS
    assert (
        found.why
        == "0.6667, 0.6050: +0.0617 (one seed, noise 0.0500 of 3 and 2 tests; final -0.0100)"
    )


def test_a_difference_of_one_seed_below_half_of_its_range_is_a_tie() -> None:
    shaken = [[13_000.0, 1, 0.5], [14_000.0, 2, 0.6]]

    def verdict(score: float) -> str:
        calm = outcome("sync-fedavg", score, curve=[[13_000.0, 1, score], [14_000.0, 2, score]])
        return findings([outcome("sync-dvw", 0.6, curve=shaken), calm])[0].verdict

    # Their mean is 0.55, half of the range 0.05.
    assert [verdict(score) for score in (0.49, 0.51, 0.59, 0.61)] == [HOLDS, TIE, TIE, FAILS]


def test_noise_of_one_seed_is_said_to_be_of_so_many_tests() -> None:
    (found, *_) = findings([outcome("sync-dvw", 0.6), outcome("sync-fedavg", 0.5)])

    assert "one seed, noise 0.0000 of 1 and 1 tests" in found.why


def test_a_difference_of_several_seeds_below_two_standard_errors_is_a_tie() -> None:
    def verdict(*differences: float) -> str:
        cells = [
            outcome(policy, 0.5 + more, seed=seed)
            for seed, difference in enumerate(differences)
            for policy, more in (("sync-dvw", difference), ("sync-fedavg", 0.0))
        ]
        return findings(cells)[0].verdict

    # Standard errors are 0.02, 0.01, 0.02.
    assert verdict(0.01, 0.05) == TIE
    assert verdict(0.01, 0.03) == HOLDS
    assert verdict(-0.03, -0.07) == FAILS
    assert verdict(0.0, 0.0) == HOLDS  # not below, and no noise


def test_a_tie_of_the_other_orderings_is_being_too_near_to_their_bound() -> None:
    best = "AsyncDVW(a) best, or within 0.01 of the best"
    alike = "FedAvg and DVW within 0.02 of each other"

    def cells(score: float, noise: float) -> list[Outcome]:
        curve = [[13_000.0, 1, score - noise], [14_000.0, 2, score + noise]]
        return [
            outcome("async-dvw-adaptive", score, row="uniform-3", curve=curve),
            outcome("async-dvw", 0.6, row="uniform-3", curve=[[13e3, 1, 0.6], [14e3, 2, 0.6]]),
        ]

    def found(score: float, noise: float) -> list[str]:
        return [verdicts(*cells(score, noise))[claim] for claim in (best, alike)]

    # No difference that noise could not make, and yet both orderings surely hold.
    assert found(0.599, 0.005) == [HOLDS, HOLDS]
    assert found(0.592, 0.005) == [TIE, HOLDS]  # 0.002 from the bound of 0.01
    assert found(0.584, 0.005) == [FAILS, TIE]
    assert found(0.574, 0.005) == [FAILS, FAILS]
    assert found(0.6, 0.03) == [TIE, TIE]  # too much noise for either to be shown


def test_the_worst_pair_decides_and_each_pair_has_seeds_of_its_own() -> None:
    claim = "AsyncDVW(a) best, or within 0.01 of the best"
    adaptive = [outcome("async-dvw-adaptive", 0.5, seed=seed) for seed in (1, 2, 3)]
    far = [outcome("fedasync", 0.6, seed=seed) for seed in (2, 3)]

    (found,) = (
        one
        for one in findings([*adaptive, *far, outcome("async-dvw", 0.4, seed=1)])
        if one.claim == claim
    )

    assert found.verdict == FAILS
    assert found.why.startswith("AsyncDVW(a) and FedAsync, of 2 pairs, 0.5000, 0.6000: -0.1000")
    assert "2 seeds" in found.why


EXPLAINED = """
[[explanation]]
study = "table1"
cluster = "heterogeneous"
row = "powerlaw-3"
ordering = "SyncDVW >= SyncFedAvg"
text = "a batch of two | examples"
command = "metis reproduce beliefs"
"""


def test_a_failure_is_not_explained_until_the_file_beside_the_results_says_why(
    tmp_path: Path,
) -> None:
    setting = put(tmp_path, outcome("sync-fedavg", 0.6), outcome("sync-dvw", 0.5))

    def told() -> list[str]:
        text = check.report(setting, Choice()).text
        table = text.partition("Of what fails:")[2].partition("What DVW")[0]
        return [" ".join(line.split()) for line in table.splitlines() if "SyncDVW >=" in line]

    where = "| table1 heterogeneous powerlaw-3, 14,000 s | SyncDVW >= SyncFedAvg |"
    assert told() == [f"{where} not explained | - |"]

    (tmp_path / "explanations.toml").write_text(EXPLAINED)
    assert told() == [f"{where} a batch of two \\| examples | `metis reproduce beliefs` |"]


def test_an_explanation_of_what_does_not_fail_is_named(tmp_path: Path) -> None:
    setting = put(tmp_path, outcome("sync-fedavg", 0.5), outcome("sync-dvw", 0.6))
    (tmp_path / "explanations.toml").write_text(EXPLAINED)

    text = check.report(setting, Choice()).text

    assert "explanations.toml also explains what does not fail here:" in text
    assert "- table1 heterogeneous powerlaw-3: SyncDVW >= SyncFedAvg" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[", "explanations.toml: "),
        ("[[explanations]]", "unknown key 'explanations'; did you mean 'explanation'?"),
        ("explanation = 1", r"must be a list of tables: \[\[explanation\]\]"),
        (EXPLAINED.replace("text", "txt"), "explanation 1: unknown key 'txt'; did you mean 'text'"),
        (EXPLAINED.replace('command = "metis reproduce beliefs"', ""), "1 lacks the key command"),
        (EXPLAINED.replace('"metis reproduce beliefs"', '" "'), "1: command = ' ' must be text"),
    ],
)
def test_a_file_of_explanations_that_is_wrong_is_refused(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "explanations.toml").write_text(text)

    with pytest.raises(ConfigError, match=words):
        check.report(put(tmp_path, outcome("sync-dvw", 0.5)), Choice())
    assert not (tmp_path / "check.md").exists()


def test_seeds_that_only_one_policy_has_decide_nothing() -> None:
    mine = [outcome("sync-dvw", 0.6), outcome("sync-dvw", 0.1, seed=7)]

    (found, *_) = findings([*mine, outcome("sync-fedavg", 0.5)])
    assert (found.verdict, found.why[:23]) == (HOLDS, "0.6000, 0.5000: +0.1000")

    (found, *_) = findings(
        [*mine, outcome("sync-fedavg", 0.5), outcome("sync-fedavg", 0.3, seed=7)]
    )
    assert found.verdict == TIE  # 0.1 and -0.2
    assert "2 seeds" in found.why

    (found, *_) = findings([*mine, outcome("sync-fedavg", 0.5, seed=8)])
    assert (found.verdict, found.why) == (
        MISSING,
        "no seed is there of all: sync-dvw, sync-fedavg",
    )


def test_differences_of_several_seeds_are_paired_and_have_a_standard_error() -> None:
    scores = {"sync-dvw": (0.5, 0.7, 0.9), "sync-fedavg": (0.4, 0.4, 0.7)}
    (found, *_) = findings(
        [
            outcome(policy, score, seed=seed)
            for policy, of_seeds in scores.items()
            for seed, score in enumerate(of_seeds)
        ]
    )

    # 0.1, 0.3 and 0.2: their standard deviation is 0.1, and 0.1 / sqrt(3) = 0.0577.
    assert found.why == ("0.7000, 0.5000: +0.2000 ±0.0577 (3 seeds; final +0.2000 ±0.0577)")


def test_a_gap_of_just_one_point_is_within_one_point() -> None:
    claim = "AsyncDVW(a) best, or within 0.01 of the best"

    assert 0.8372 - 0.8272 > 0.01
    assert verdicts(outcome("async-dvw", 0.8372), outcome("async-dvw-adaptive", 0.8272))[claim] == (
        HOLDS
    )


def test_the_check_keeps_rows_that_are_not_the_papers_apart(tmp_path: Path) -> None:
    ours = [outcome("sync-fedavg", 0.5), outcome("sync-dvw", 0.6)]
    changed = [replace(one, study="table1-by-class") for one in ours]
    small = [replace(one, study="table1-fashion_mnist") for one in ours]
    setting = put(tmp_path, *ours, *changed, *small)
    put(tmp_path / "smoke", outcome("sync-dvw", 0.1, row="powerlaw-5"))

    text = check.report(setting, Choice()).text

    parts = text.split("\n### ")
    assert [part.split()[0] for part in parts[1:]] == ["table1-by-class", "table1-fashion_mnist"]
    for part, study in zip(
        parts, ("table1", "table1-by-class", "table1-fashion_mnist"), strict=True
    ):
        assert "over 2 cells" in part
        assert f" {study} heterogeneous" in part
        assert part.count("heterogeneous powerlaw-3") == part.count(f" {study} heterogeneous")
    assert "powerlaw-5" not in text


def test_the_check_of_other_data_alone_says_that_the_papers_is_missing(tmp_path: Path) -> None:
    setting = put(tmp_path, outcome("sync-dvw", 0.5, study="table1-mnist"))

    text = check.report(setting, Choice()).text

    assert "No cell of the paper's tables is there." in text
    assert text.count("over 1 cells") == 1


def test_policies_on_uniform_rows_must_be_alike_but_for_fedasync() -> None:
    claim = "FedAvg and DVW within 0.02 of each other"
    row = {"row": "uniform-3"}
    alike = [outcome("async-fedavg", 0.75, **row), outcome("async-dvw", 0.74, **row)]

    assert verdicts(*alike, outcome("fedasync", 0.6, **row))[claim] == HOLDS
    assert verdicts(*alike, outcome("sync-dvw", 0.7, **row))[claim] == FAILS


def test_cells_of_different_horizons_are_not_put_in_order() -> None:
    found = verdicts(outcome("sync-fedavg", 0.6), outcome("sync-dvw", 0.5, horizon="1,400 s"))

    assert found["SyncDVW >= SyncFedAvg"] == MISSING


def test_the_check_says_what_scores_bring_over_equal_weights(tmp_path: Path) -> None:
    setting = put(
        tmp_path,
        outcome("async-dvw", 0.55, curve=[[0.0, 0, 0.4]]),
        outcome("async-uniform", 0.5, curve=[[0.0, 0, 0.45]]),
        outcome("async-fedavg", 0.2, curve=[[0.0, 0, 0.25]]),
    )

    text = check.report(setting, Choice()).text

    assert "1 hold, 0 tie, 0 fail, 3 lack a cell, over 3 cells" in text
    assert "| 0.4000, 0.4500: -0.0500 (one seed, noise 0.0000" in text
    assert "final +0.0500) | 0.4500, 0.2500: +0.2000 (one seed" in text


# ---- figures -----------------------------------------------------------------------------------


def test_figure_9_counts_models_a_request(tmp_path: Path) -> None:
    setting = put(
        tmp_path,
        outcome("async-dvw", 0.5),
        outcome("fedasync", 0.4, models_exchanged=40, evaluation_models=0),
    )

    text = fig9.report(setting, Choice()).text

    assert "11.0" in text
    assert "2.0" in text
    assert (tmp_path / "fig9.png").exists()


def told_costs(page: str) -> list[dict[str, list[str]]]:
    """What each table of a page says, by policy."""
    tables: list[dict[str, list[str]]] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if cells[1:2] == ["policy"]:
            tables.append({})
        if len(cells) == 7:
            tables[-1][cells[1]] = cells[2:6]
    return tables


def test_what_accuracy_costs_is_told_by_the_moment_it_was_reached_first(tmp_path: Path) -> None:
    steps = [0.1, 0.5, 0.7, 0.6, 0.8]
    curve = [[3_500.0 * at, at, value] for at, value in enumerate(steps)]
    traffic = [[10 * at, at * 10**9, 4 * at * 10**9, at * 10**6] for at in range(5)]
    best = outcome("async-dvw", 0.8, curve=curve, traffic=traffic)
    # Never near the best, and of code that told updates and bytes alone; 5 million samples.
    early = [row[:3] for row in traffic]
    poor = outcome("fedasync", 0.2, curve=[[at, v, 0.2] for at, v, _ in curve], traffic=early)

    page = cost.report(put(tmp_path, best, poor), Choice()).text

    (told,) = told_costs(page)
    assert told["policy"][1:] == ["until 0.6400", "until 0.7200", "until 0.7600"]
    assert told["AsyncDVW(na)"][1:] == ["7,000 s, 10.0 GB, 2.0M", *["14,000 s, 20.0 GB, 4.0M"] * 2]
    assert told["FedAsync"] == ["0.2000", *["-"] * 3]
    assert "early code" in page
    assert [point.samples for point in cost.spent_by(poor)] == [0, 1.25e6, 2.5e6, 3.75e6, 5e6]
    assert (tmp_path / "cost.png").stat().st_size > 10_000


def test_costs_of_several_seeds_are_their_mean_and_horizons_are_kept_apart(tmp_path: Path) -> None:
    def run(seed: int, early: float, horizon: str = "14,000 s") -> Outcome:
        curve = [[7_000.0, 1, early], [14_000.0, 2, 0.8]]
        traffic = [[10, 10**9, 10**9, 10**6], [20, 2 * 10**9, 2 * 10**9, 2 * 10**6]]
        more = {"curve": curve, "traffic": traffic, "horizon": horizon}
        return outcome("async-dvw", 0.8, seed=seed, **more)

    cells = [run(1, 0.7), run(2, 0.1), run(3, 0.79, "1,400 s")]
    first, second = told_costs(cost.report(put(tmp_path, *cells), Choice()).text)

    assert first["AsyncDVW(na)"][0] == "0.8000 ±0.0000 (2 seeds)"
    assert first["AsyncDVW(na)"][1] == "10,500 s, 3.0 GB, 1.5M"  # one at 7,000 s, one at 14,000 s
    assert second["AsyncDVW(na)"][1] == "7,000 s, 2.0 GB, 1.0M"


def test_costs_of_several_seeds_are_drawn_as_their_mean_where_all_of_them_were() -> None:
    def run(scores: list[float], gigabytes: list[float]) -> list[cost.Spent]:
        return [cost.Spent(s, 1.0, g, 1.0) for s, g in zip(scores, gigabytes, strict=True)]

    runs = [run([0.2, 0.4], [1.0, 4.0]), run([0.4, 0.8], [2.0, 4.0])]

    x, y = cost._mean_curve(runs, "gigabytes moved")
    assert x == pytest.approx([2.0, 4.0])
    assert y == pytest.approx([0.3, 0.6])  # at 2 GB the first still has its 0.2
    assert cost._mean_curve(runs[:1], "gigabytes moved") == ([1.0, 4.0], [0.2, 0.4])
    assert cost._mean_curve([], "gigabytes moved") == ([], [])


def test_scores_that_costs_are_told_by_are_means_over_a_while() -> None:
    curve = [[100.0 * at, at, score] for at, score in enumerate([0.0, 0.3, 0.6, 0.9])]
    late = [[time + 10_000.0, version, score] for time, version, score in curve]
    one = outcome("async-dvw", 0.9, curve=late, traffic=[[0] * 4] * 4, virtual_seconds=10_000.0)

    scores = [round(point.score, 9) for point in cost.spent_by(one)]

    assert scores == [0.0, 0.15, 0.3, 0.45]  # of the last 500 s

    # 500 s would be all; of a fifth of the time until then the last one has two tests.
    times = (10.0, 20.0, 30.0, 36.0)
    tests = [[at, version, score] for at, (_, version, score) in zip(times, curve, strict=True)]
    scores = [round(point.score, 9) for point in cost.spent_by(replace(one, curve=tests))]

    assert scores == [0.0, 0.3, 0.6, 0.75]


def test_sizes_of_the_validation_set_are_compared_by_means_over_the_last_tenth(
    tmp_path: Path,
) -> None:
    def cell(variant: str, score: float, seed: int = 1990) -> Outcome:
        late = [[13_000.0, 1, score - 0.1], [14_000.0, 2, score + 0.1]]
        more = {"study": "validation-size", "variant": variant, "seed": seed}
        return outcome("async-dvw" if variant else "async-uniform", score, curve=late, **more)

    setting = put(
        tmp_path,
        cell("async-dvw-5percent-stratified", 0.5),
        cell("async-dvw-5percent-stratified", 0.6, seed=7),
        cell("async-dvw-1percent-random", 0.4),
        cell("async-dvw-2percent-random", 0.4),
        cell("async-dvw-2percent-random", 0.7, seed=7),
        cell("", 0.3),
        replace(cell("async-dvw-5percent-stratified", 0.9, seed=8), horizon="1,400 s"),
    )

    page = validation_size.report(setting, Choice()).text

    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    told = {line[1]: line[2:4] for line in reversed(lines) if len(line) == 6}
    assert told["5"] == ["0.5500 ±0.0500 (2 seeds)", "-"]  # not with that of another horizon
    assert told["1"] == ["-", "0.4000"]
    # -0.1 and 0.1 in the same seeds: their standard deviation is 0.1414.
    (pair,) = [line[1:4] for line in lines if len(line) == 5 and line[1].startswith("async")]
    assert pair == ["async-dvw-2percent-random", "2", "+0.0000 ±0.1000"]
    assert "Equal weights, 5 % held out: 0.3000." in page
    assert (tmp_path / "validation-size.png").stat().st_size > 10_000


def test_seeds_that_come_to_the_same_can_be_drawn(tmp_path: Path) -> None:
    """The mean of three times 0.1 is more than 0.1."""
    more = {"study": "update-frequency", "variant": "async-dvw-32epochs"}
    cells = [
        outcome("async-dvw", 0.1, seed=seed, curve=[[9.0, 1, 0.1]], **more) for seed in (1, 2, 3)
    ]

    (_, picture) = update_frequency.report(put(tmp_path, *cells), Choice()).files

    assert picture.stat().st_size > 10_000


def test_local_epochs_are_compared_with_four_and_with_what_adaptive_learners_choose(
    tmp_path: Path,
) -> None:
    cycles = {"fast": {"cycles": 4, "epochs": 30, "by_loss": 3, "losses": [], "offers": []}}

    def cell(variant: str, score: float, seed: int = 1990) -> Outcome:
        more = {"study": "update-frequency", "variant": variant, "seed": seed, "cycles": cycles}
        policy = variant.rpartition("-")[0] or "async-dvw-adaptive"
        return outcome(policy, score, curve=[[14_000.0, 2, score]], **more)

    setting = put(
        tmp_path,
        cell("async-dvw-4epochs", 0.5),
        cell("async-dvw-4epochs", 0.6, seed=7),
        cell("async-fedavg-4epochs", 0.3),
        cell("async-dvw-16epochs", 0.4),
        cell("sync-fedavg-4epochs", 0.3),
        cell("sync-fedavg-8epochs", 0.35),
        cell("", 0.45),
        cell("", 0.45, seed=7),
    )

    page = update_frequency.report(setting, Choice()).text

    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    told = {line[1]: line[2:-1] for line in lines if len(line) in (5, 7)}
    assert told["4"] == ["0.3000", "-", "0.3000", "0.5500 ±0.0500 (2 seeds)"]
    assert told["16"] == ["-", "-", "-", "0.4000"]
    assert told["SyncFedAvg"] == ["4, 8", "8", "0.3500", "-0.0500"]
    assert told["AsyncDVW(na)"] == ["4, 16", "4", "0.5500", "+0.0000"]
    assert "AsyncFedAvg" not in told  # of one number nothing is best
    # -0.05 and -0.15 in the same seeds: their standard deviation is 0.0707.
    assert told["async-dvw-adaptive"] == ["2", "-0.1000 ±0.0500"]
    assert told["fast"] == ["7.5", "75%"]
    assert "AsyncDVW(a): 0.4500 ±0.0000 (2 seeds)." in page
    assert (tmp_path / "update-frequency.png").stat().st_size > 10_000


def test_weightings_are_compared_where_as_many_learners_are_mistaken(tmp_path: Path) -> None:
    sizes = {"learner-01": 60, "learner-06": 20, "learner-05": 10, "learner-10": 10}
    learners = [
        {"learner": name, "group": "fast", "holdings": [size - 5, 5], "mean_weight": weight}
        for (name, size), weight in zip(sizes.items(), (0.1, 0.7, 0.2, None), strict=True)
    ]

    def cell(variant: str, score: float, seed: int = 1990, row: str = "powerlaw-iid") -> Outcome:
        more = {"study": "wrong-labels", "variant": variant, "seed": seed, "learners": learners}
        policy = variant.rpartition("wrong")[0][:-2]
        return outcome(policy, score, row=row, curve=[[14_000.0, 2, score]], **more)

    setting = put(
        tmp_path,
        *(cell(f"sync-{name}-0wrong", 0.8) for name in ("dvw", "fedavg")),
        cell("sync-dvw-1wrong-largest", 0.7),
        cell("sync-dvw-1wrong-largest", 0.8, seed=7),
        cell("sync-fedavg-1wrong-largest", 0.3),
        cell("sync-fedavg-1wrong-largest", 0.5, seed=7),
        cell("sync-uniform-1wrong-largest", 0.6, seed=8),  # a seed that the others do not have
        cell("sync-fedavg-2wrong-smallest", 0.75),
        cell("async-dvw-2wrong", 0.5, row="uniform-iid"),
        cell("async-uniform-2wrong", 0.55, row="uniform-iid"),
    )

    page = wrong_labels.report(setting, Choice()).text

    uniform, largest, smallest = page.split("; means over the last tenth of the time:")[1:]

    def told(part: str) -> list[list[str]]:
        """Return scores, differences and shares of weight, by how many learners are mistaken."""
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
        return [line for line in lines if line and line[0] in ("0", "1", "2", "4")]

    assert "powerlaw-iid, learners with most examples first, 14,000 s" in uniform
    assert "powerlaw-iid, learners with fewest examples first, 14,000 s" in largest
    assert told(uniform)[2] == ["2", "-", "-", "-", "-", "0.5500", "0.5000"]
    assert told(uniform)[6] == ["2", "-", "-", "-", "-0.0500"]
    assert told(uniform)[8:] == [["2", "80.0%", "50.0%", "-", "80.0%"]]
    both = ["0.4000 ±0.1000 (2 seeds)", "0.6000", "0.7500 ±0.0500 (2 seeds)"]
    assert told(largest)[0][1:4] == told(smallest)[0][1:4] == ["0.8000", "-", "0.8000"]
    assert told(largest)[1] == ["1", *both, "-", "-", "-"]
    # 0.4 and 0.3 in the same seeds: their standard deviation is 0.0707.
    assert told(largest)[5] == ["1", "+0.3500 ±0.0500", "-", "-", "-"]
    assert told(largest)[8:] == [
        ["0", "0.0%", "0.0%", "0.0%", "-"],
        ["1", "60.0%", "25.0%", "10.0%", "-"],
    ]
    assert told(smallest)[2] == ["2", "0.7500", *["-"] * 5]
    assert told(smallest)[9:] == [["2", "20.0%", "50.0%", "-", "-"]]
    assert (tmp_path / "wrong-labels.png").stat().st_size > 10_000


def test_a_study_without_cells_says_so(tmp_path: Path) -> None:
    for study in (table1.STUDY, fig9.STUDY, cost.STUDY, sstc.STUDY, check.STUDY):
        assert "missing" in study.report(Setting(tmp_path), Choice()).text or study is check.STUDY


def test_compressed_runs_are_compared_after_as_many_updates_as_the_shortest_has() -> None:
    dense = outcome("sync-fedavg", 0.9, study="sstc", variant="dense")
    stopped = replace(dense, variant="stc", curve=dense.curve[:2], traffic=dense.traffic[:2])

    curves = sstc.curves_of([dense, stopped])

    assert [[len(points) for points in seeds] for seeds in curves.values()] == [[2], [2]]
    assert curves["dense"][0][-1].updates == 10


def compressed(variant: str, score: float, seed: int = 1990, **values: Any) -> Outcome:
    mine = {"study": "sstc", "row": "mnist_by_writer", "horizon": "50 rounds"}
    return outcome("sync-fedavg", score, variant=variant, seed=seed, **{**mine, **values})


def test_compressed_runs_are_told_by_the_first_seed_and_their_spread_over_all(
    tmp_path: Path,
) -> None:
    seeds = {1990: (0.96, 0.93), 7: (0.94, 0.92), 8: (0.98, 0.94)}
    runs = [
        compressed(variant, scores[number], seed=seed)
        for seed, scores in seeds.items()
        for number, variant in enumerate(("dense", "stc"))
    ]

    page = sstc.report(put(tmp_path, *runs, compressed("int8", 0.9)), Choice()).text

    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    told = {line[1]: [*line[3:6], line[11]] for line in lines if len(line) == 13}
    assert told["dense"] == ["1990", "0.9600", "0.9600", "0.9600 ±0.0200 (3 seeds)"]
    assert told["int8"] == ["1990", "0.9000", "0.9000", ""]
    # 0.03, 0.02 and 0.04: their standard deviation is 0.01, and 0.01 / sqrt(3) = 0.0058.
    (pair,) = [line[1:4] for line in lines if len(line) == 6 and line[1] == "dense - stc"]
    assert pair == ["dense - stc", "3", "+0.0300 ±0.0058"]
    assert "dense - int8" not in page  # one seed is no spread


def test_compressed_runs_of_another_horizon_have_a_table_of_their_own(tmp_path: Path) -> None:
    dense = compressed("dense", 0.96)
    short = compressed(
        "dense", 0.5, seed=7, horizon="5 rounds", curve=dense.curve[:2], traffic=dense.traffic[:2]
    )
    untested = compressed("stc", 0.9, curve=[], traffic=[])

    page = sstc.report(put(tmp_path, dense, short, untested), Choice()).text

    assert "mnist_by_writer, 50 rounds, scale full:" in page
    assert "mnist_by_writer, 5 rounds, scale full:" in page
    lines = [line.split("|") for line in page.splitlines() if line.startswith("| dense")]
    assert [(line[2].strip(), line[3].strip()) for line in lines] == [("20", "1990"), ("10", "7")]


def measured(when: str, share: float | None, gain: float | None) -> dict[str, Any]:
    return {
        "when": when,
        "codec": "stc" if share is None else f"sstc-{share:g}",
        "share": share,
        "kept_in_kernels": 2_500,
        "convolutions": 41.6 if share is None else 103.2,
        "with_papers_bits": 104.9 if share == 0.125 else None,
        "model": 200.5,
        "wire": 400.5,
        "gain": gain,
        "pays": None if gain is None else gain > 1,
    }


def test_where_kept_weights_lie_is_shown_again_without_the_models(tmp_path: Path) -> None:
    one = compressed("dense", 0.9, dataset="mnist_by_writer")
    dense = tmp_path / "dense"
    kept = tmp_path / "sstc-kernels.json"

    assert look(tmp_path, dense, one) == ([], [])
    assert "which is not here" in in_words([], [])

    for name in ("sstc-fig1.png", "sstc-fig2-first.png", "sstc-fig2-last.png"):
        (tmp_path / name).touch()
    rows = [
        measured("first", None, None),
        measured("first", 0.125, 2.5),
        measured("last", 0.125, 1.5),
        measured("last", 0.4, 0.8),
    ]
    of = ["mnist_by_writer", "full", "50 rounds", 1990]
    kept.write_text(json.dumps({"of": of, "rows": rows}))

    found, files = look(tmp_path, dense, one)
    assert [asdict(row) for row in found] == rows
    assert len(files) == 4

    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in in_words(found, files).splitlines()
    ]
    assert ["first round", "stc", "2,500", "41.6", "200.5", "400.5", "-", "-"] in lines
    sstc_line = ["103.2 (with 11 bits 104.9)", "200.5", "400.5", "2.50", "yes"]
    assert ["first round", "sstc-0.125", "2,500", *sstc_line] in lines
    assert ["last round", "sstc-0.4", "2,500", "103.2", "200.5", "400.5", "0.80", "no"] in lines
    assert gains(found) == {0.125: 2.0, 0.4: 0.8}

    assert look(tmp_path, dense, replace(one, dataset="femnist")) == ([], [])

    strings = [["first round", "12", "3", "4", "5", "6"]] * 2  # of earlier code
    for damaged in ("", "[1]", json.dumps({"of": of, "rows": strings})):
        kept.write_text(damaged)
        with pytest.raises(RunError, match=r"is no measurement of SSTC's kernels.*remove it"):
            look(tmp_path, dense, one)


def test_figure_3c_of_sstc_has_its_compression_on_an_upper_axis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        kept.append(figure)
        return path

    monkeypatch.setattr(sstc, "write_figure", keep)
    runs = [compressed(f"sstc-{share:g}", 0.9) for share in (0.125, 0.4)]

    sstc.draw(sstc.curves_of(runs), {0.125: 2.5, 0.4: 0.79}, tmp_path / "a.png")
    sstc.draw(sstc.curves_of(runs), {}, tmp_path / "b.png")

    (upper,) = kept[0].axes[2].child_axes
    assert upper.get_xticks().tolist() == [12.5, 40.0]
    assert [tick.get_text() for tick in upper.get_xticklabels()] == ["2.50", "0.79"]
    assert kept[1].axes[2].child_axes == []


def test_an_update_is_measured_for_stc_and_each_share_of_kernels() -> None:
    layout = layout_of(build("femnist_cnn", (1, 28, 28), 62, seed=0))
    rng = np.random.default_rng(0)
    base = np.zeros(layout.size, dtype=np.float32)
    trained = rng.normal(size=layout.size).astype(np.float32)

    rows = measures("first", trained, base, layout)

    assert [row.codec for row in rows] == ["stc", *(f"sstc-{share:g}" for share in SHARES)]
    stc, *others = rows
    # Of 1,687,344 weights 52,000 lie in kernels, a hundredth of which is kept.
    assert stc.kept_in_kernels == pytest.approx(520, rel=0.2)
    for row in others:
        assert row.share is not None
        assert row.gain is not None
        chosen = int(row.share * 2080 + 0.5)
        assert row.gain == pytest.approx(stc.kept_in_kernels * 16 / (chosen * 62))
        assert row.pays == (row.gain > 1)
        assert row.convolutions == pytest.approx(32 * 52_000 / (chosen * 62))
    assert [row.codec for row in rows if row.with_papers_bits] == ["sstc-0.125"]
    assert all(row.model > 1 and row.wire > 1 for row in rows)


def test_a_belief_stands_beside_our_table_at_the_same_round_and_the_papers_number(
    tmp_path: Path,
) -> None:
    curve = [[10.0 * version, version, 0.1 * version] for version in range(7)]
    table = outcome(
        "sync-fedavg", 0.6, cluster="homogeneous", horizon="200 rounds", rounds=6, curve=curve
    )
    changed = replace(
        table,
        study="beliefs",
        horizon="4 rounds",
        variant="sync-fedavg-buffer-1000",
        rounds=4,
        curve=[[at, version, value / 2] for at, version, value in curve[:5]],
    )
    other = replace(changed, row="geometric-3", variant="sync-fedavg-geometric")
    too_far = replace(changed, row="powerlaw-iid", variant="sync-fedavg-no-decay")
    of_another_scale = replace(table, row="powerlaw-iid", scale="smoke")
    cells = (table, changed, other, too_far, of_another_scale)

    page = beliefs.report(put(tmp_path, *cells), Choice()).text

    lines = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    found = {(line[2], line[1].split()[0]): line[5:9] for line in lines if len(line) == 10}
    assert found["powerlaw-3", "examples"] == ["0.1500", "0.3000", "-0.1500", "0.4869"]
    assert found["geometric-3", "sizes"] == ["0.1500", "0.3000", "-0.1500", "0.4869"]
    assert found["powerlaw-iid", "no"] == ["0.1500", "-", "-", "0.7113"]  # not in our table


def test_a_belief_with_a_horizon_in_seconds_stands_beside_our_table_at_the_same_moment(
    tmp_path: Path,
) -> None:
    curve = [[100.0 * number, 7 * number, 0.1 * number] for number in range(4)]
    curve += [[370.0, 26, 0.37], [400.0, 28, 0.4], [500.0, 35, 0.5]]
    table = outcome("async-dvw", 0.6, horizon="14,000 s", virtual_seconds=14_000.0, curve=curve)
    changed = replace(
        table,
        study="beliefs",
        variant="async-dvw-short-last-4000",
        horizon="400 s",
        virtual_seconds=400.0,
        rounds=9,  # fewer versions in as much time
        curve=[[at, version // 3, value / 2] for at, version, value in curve[:6]],
    )
    homogeneous = replace(table, cluster="homogeneous", curve=[[0.0, 0, 0.0]])

    page = beliefs.report(put(tmp_path, table, changed, homogeneous), Choice()).text

    (line,) = [line for line in page.splitlines() if line.startswith("| a last mini-batch")]
    told = [cell.strip() for cell in line.split("|")][4:9]
    # Means over the last tenth of 400 s, in which there are two tests.
    assert told == ["400 s", "0.1925", "0.3850", "-0.1925", "0.5517"]


def test_a_belief_tried_with_other_data_and_several_seeds_is_compared_in_the_same_seeds(
    tmp_path: Path,
) -> None:
    def cell(study: str, variant: str, score: float, seed: int) -> Outcome:
        more = {"study": study, "variant": variant, "seed": seed, "dataset": "mnist"}
        return outcome("async-dvw-adaptive", score, curve=[[13_900.0, 9, score]], **more)

    setting = put(
        tmp_path,
        *(
            cell("table1-mnist", "", score, seed)
            for seed, score in {1990: 0.5, 7: 0.6, 8: 0.9}.items()
        ),
        *(
            cell("beliefs-mnist", "async-dvw-adaptive-offer-best", score, seed)
            for seed, score in {1990: 0.4, 7: 0.3, 9: 0.2}.items()
        ),
    )

    page = beliefs.report(setting, Choice(data="mnist")).text

    (line,) = [line for line in page.splitlines() if "of least loss" in line]
    told = [cell.strip() for cell in line.split("|")][5:9]
    # -0.1 and -0.3 in the same seeds: their standard deviation is 0.1414.
    assert told[0] == "0.3000 ±0.1000 (3 seeds)"
    assert told[1:] == ["0.5500 ±0.0500 (2 seeds)", "-0.2000 ±0.1000", "-"]
    assert (tmp_path / "beliefs-mnist.md").read_text() == page


def test_figures_3_and_4_of_other_data_have_files_of_their_own(tmp_path: Path) -> None:
    cycles: dict[str, Any] = {
        "fast": {"learner": "learner-01", "losses": [2.0, 1.0, 1.1], "offers": [2]}
    }
    cycles["fast"] |= {"cycles": 9, "epochs": 40, "by_loss": 5, "by_cap": 1}
    cycles["slow"] = {**cycles["fast"], "cycles": 0}  # not one came to its end
    stale = {"fast": {"first": [10, 30], "updates": 2, "median": 20, "mean": 20.0, "std": 14.1}}
    mine = {"row": "uniform-iid", "cycles": cycles, "trigger_staleness": stale, "dataset": "mnist"}
    setting = put(
        tmp_path,
        outcome("async-dvw-adaptive", 0.5, study="table1-mnist", **mine),
        outcome("async-dvw-adaptive", 0.5, study="fig3-mnist", **mine),
    )

    cycled = fig3.report(setting, Choice(data="mnist"))
    staled = fig4.report(setting, Choice(data="mnist"))

    assert "1 cycles in its first 3 epochs" in cycled.text
    assert (
        "all fast learners: of 9 cycles 5 ended since the loss rose or hardly fell" in cycled.text
    )
    assert "1 after the most epochs a cycle may have, 3 for staleness alone (C3)" in cycled.text
    assert "| fast  | 2      | 20     | 20   | 14  | - " in staled.text
    assert [path.name for path in cycled.files] == ["fig3-mnist.md", "fig3-mnist.png"]
    assert [path.name for path in staled.files] == ["fig4-mnist.md", "fig4-mnist.png"]
    assert "missing" in fig3.report(setting, Choice()).text
    assert "missing" in fig4.report(setting, Choice()).text


def test_figure_4_is_of_staleness_at_the_trigger_as_c3_is(tmp_path: Path) -> None:
    """Learners' own medians are what C3 compares with; at the commit all is later."""

    def stale(first: list[int]) -> dict[str, Any]:
        return {"fast": {"first": first, "updates": 40, "median": 0, "mean": 0.0, "std": 0.0}}

    learners = [
        {"learner": name, "group": "fast", "holdings": [1], "mean_weight": 1.0} for name in "ab"
    ]
    one = outcome(
        "async-dvw-adaptive",
        0.5,
        row="uniform-iid",
        learners=learners,
        staleness=stale([1_000] * 40),
        trigger_staleness=stale([90] * 20 + [100] * 20),
    )

    page = fig4.report(put(tmp_path, one), Choice()).text

    (line,) = [line for line in page.splitlines() if line.startswith("| fast")]
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["40", "95", "95", "5", "90 to 100"]
    assert "at the trigger" in page
    assert "1,000" not in page


def test_figure_4_of_a_cell_that_knows_staleness_at_the_commit_alone_is_not_drawn(
    tmp_path: Path,
) -> None:
    stale = {"fast": {"first": [10, 30], "updates": 2, "median": 20, "mean": 20.0, "std": 14.1}}
    one = outcome("async-dvw-adaptive", 0.5, row="uniform-iid", staleness=stale)

    found = fig4.report(put(tmp_path, one), Choice())

    assert "does not tell of staleness at the trigger: make it again" in found.text
    assert [path.name for path in found.files] == ["fig4.md"]
