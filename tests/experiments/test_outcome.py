"""What is kept of a cell, and how cells are made, left alone and taken up again."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metis.config import load
from metis.core.errors import Interrupted, RunError
from metis.experiments.cells import Cell, Horizon, Setting, cell_from_json
from metis.experiments.outcome import _Cycles, as_text, read_outcome, read_outcomes
from metis.experiments.work import finished, make, run_cell
from metis.journal.file import Record
from tests.experiments.made_up import outcome, put


def small(policy: str = "async-dvw-adaptive", **values: Any) -> Cell:
    """Four learners, real digits, a linear model: a second a cell."""
    usual = {
        "groups": {"fast": {"seconds_per_step": 0.03}, "slow": {"seconds_per_step": 0.09}},
        "train": {"max_epochs": 4, "epochs": 1},
        "horizon": {"seconds": 20.0},
        "learners": 4,
        "partition": {"sizes": "uniform", "classes": "iid"},
    }
    config = load(None, policy=policy, model={"name": "linear"}, **{**usual, **values})
    horizon = Horizon(seconds=20.0)
    return Cell("table1", "heterogeneous", "uniform-iid", policy, 1990, "full", horizon, config)


def unwatched(cell: Cell) -> AbstractContextManager[tuple[Any, ...]]:
    return nullcontext(())


def test_an_outcome_agrees_with_the_runs_own_summary(tmp_path: Path) -> None:
    made = run_cell(small(), tmp_path)

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert made == read_outcome(tmp_path / "cell.json")
    assert made.final_score == summary["final_score"]
    assert made.requests == summary["update_requests"] > 0
    assert made.models_exchanged == 5 * made.requests  # one up, three to judges, one down
    assert made.samples == summary["samples_trained"]
    assert [point[1] for point in made.curve] == [point[1] for point in summary["curve"]]
    assert made.traffic[-1][1] == summary["bytes_up"]
    assert made.traffic[-1][3] == summary["samples_trained"]
    assert len(made.traffic) == len(made.curve)
    assert made.config == (tmp_path / "config.toml").read_text()


def test_wrong_labels_are_told_in_words(tmp_path: Path) -> None:
    wrong = {"learner-01": 1.0, "learner-02": 0.25, "learner-03": 1.0}
    even = {"sizes": "uniform", "classes": "iid"}
    cell = small(partition={**even, "wrong_labels": wrong, "mistake": "random"})

    made = run_cell(cell, tmp_path)

    assert "; 100 % of the labels of learner-01, learner-03 wrong (random); 25 % of" in made.about
    assert read_outcome(tmp_path / "cell.json").about == made.about


def test_validation_cycles_and_staleness_of_both_groups_are_kept(tmp_path: Path) -> None:
    made = run_cell(small(), tmp_path)

    assert set(made.cycles) == set(made.staleness) == {"fast", "slow"}
    for cycle in made.cycles.values():
        assert cycle["offers"]
        assert max(cycle["offers"]) <= len(cycle["losses"])
    updates = {group: stale["updates"] for group, stale in made.staleness.items()}
    assert sum(updates.values()) == made.requests
    assert updates["fast"] > updates["slow"]


def test_what_ended_validation_cycles_is_told_as_the_paper_defines_it(tmp_path: Path) -> None:
    thresholds = {"fast": (0.5, 1), "slow": (0.1, 0)}
    cell = small(
        train={"max_epochs": 30},
        groups={
            name: {"seconds_per_step": 0.03 * times, "vc_loss": loss, "vc_tomb": tomb}
            for times, (name, (loss, tomb)) in enumerate(thresholds.items(), start=1)
        },
        horizon={"seconds": 150.0},
    )
    made = run_cell(cell, tmp_path)

    # Once more, slowly, from the journal: tombstones counted one by one.
    records = [*map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines())]
    group_of = {one["learner"]: one["group"] for one in records[0]["learners"]}
    counted = {group: [0, 0, 0] for group in thresholds}
    for learner, group in group_of.items():
        vc_loss, vc_tomb = thresholds[group]
        losses: list[float] = []
        for record in (one for one in records if one.get("learner") == learner):
            if record["kind"] == "steps":
                losses.append(record["loss"])
            elif record["kind"] == "arrive":
                tombstones = 0
                for epoch in range(3, len(losses) + 1):  # two are burn-in
                    before, after = losses[epoch - 2], losses[epoch - 1]
                    change = 100 * (after - before) / before
                    tombstones += change >= 0 or abs(change) <= vc_loss
                counted[group][0] += 1
                counted[group][1] += tombstones > vc_tomb
                counted[group][2] += tombstones <= vc_tomb and len(losses) == 30
                losses = []
    names = ("cycles", "by_loss", "by_cap")
    told = {group: [one[name] for name in names] for group, one in made.cycles.items()}
    assert told == counted
    every, by_loss, by_cap = told["fast"]
    assert 0 < by_loss < every - by_cap, told  # some for staleness alone

    short = run_cell(small(train={"max_epochs": 3}, horizon={"seconds": 9.0}), tmp_path / "short")
    for one in short.cycles.values():
        assert one["by_cap"] == one["cycles"] == one["epochs"] / 3 > 0

    unknowable = run_cell(small(train={"burn_in_epochs": 0, "max_epochs": 4}), tmp_path / "other")
    assert not any("by_loss" in one for one in unknowable.cycles.values())


def test_epochs_of_a_task_that_failed_are_of_no_cycle() -> None:
    config = small(groups={"fast": {"vc_loss": 0.0, "vc_tomb": 0}}, learners=1).config
    told = _Cycles(config)
    for task, losses, ends in ((1, (0.5, 0.4), "fail"), (2, (0.9, 0.7, 0.5), "arrive")):
        for loss in losses:
            told.add({"kind": "steps", "learner": "learner-01", "task": task, "loss": loss})
        told.add({"kind": ends, "learner": "learner-01", "task": task})

    found = told.by_group({"learner-01": "fast"})["fast"]

    assert (found["losses"], found["offers"]) == ([0.9, 0.7, 0.5], [3])
    assert (found["cycles"], found["epochs"], found["by_loss"]) == (1, 3, 0)


def test_an_outcome_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    one = outcome("async-dvw", 0.5)
    path = tmp_path / "a" / "b" / "cell.json"
    path.parent.mkdir(parents=True)

    path.write_text(as_text(one))

    assert read_outcomes(tmp_path) == [one]


def test_rows_are_read_in_the_order_of_the_paper(tmp_path: Path) -> None:
    rows = ["uniform-iid", "uniform-50", "uniform-5", "skewed-3", "powerlaw-iid", "powerlaw-3"]
    for row in rows:
        (tmp_path / row).mkdir()
        (tmp_path / row / "cell.json").write_text(as_text(outcome("async-dvw", 0.5, row=row)))

    assert [one.row for one in read_outcomes(tmp_path)] == rows


def test_seeds_are_read_in_their_order_but_for_the_papers_which_comes_first(
    tmp_path: Path,
) -> None:
    seeds = [(policy, seed) for policy in ("async-dvw", "fedasync") for seed in (1990, 7, 12)]
    put(tmp_path, *(outcome(policy, 0.5, seed=seed) for policy, seed in reversed(seeds)))

    assert [(one.policy, one.seed) for one in read_outcomes(tmp_path)] == seeds


def test_a_file_that_is_no_cell_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    without_weight = [{"learner": "learner-01", "holdings": [5]}]
    for text in (
        '{"study": "table1"}',
        as_text(replace(outcome("async-dvw", 0.5), learners=without_weight)),
        as_text(replace(outcome("async-dvw", 0.5), learners=["learner-01"])),  # type: ignore[list-item]
    ):
        path.write_text(text)

        with pytest.raises(RunError, match=r"cell\.json is no cell of a table"):
            read_outcome(path)


def test_the_score_at_a_moment_is_that_of_the_last_model_before_it() -> None:
    one = outcome("async-dvw", 0.5)

    assert [one.score_at(at) for at in (-1.0, 0.0, 6_999.0, 7_000.0, 20_000.0)] == [
        None,
        0.1,
        0.1,
        0.49,
        0.5,
    ]


def test_a_cell_survives_the_way_to_its_process(tmp_path: Path) -> None:
    cell = replace(small(), variant="a-name")
    values = json.loads(json.dumps(cell.as_json()))
    (tmp_path / "config.toml").write_text(values["config"])

    assert cell_from_json(values, load(tmp_path / "config.toml")) == cell


def test_finished_cells_are_left_alone(tmp_path: Path) -> None:
    setting, cell, told = Setting(tmp_path), small("sync-fedavg"), list[str]()
    make([cell], setting, told.append, unwatched)
    before = (cell.directory(tmp_path) / "cell.json").stat().st_mtime_ns

    make([cell], setting, told.append, unwatched)

    assert told[-1] == "1 of 1 cells are there already"
    assert (cell.directory(tmp_path) / "cell.json").stat().st_mtime_ns == before


def test_an_interrupted_cell_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    cell = small()
    whole = run_cell(cell, tmp_path / "whole")

    def stop(record: Record) -> None:
        if record["kind"] == "version" and record["version"] == 3:
            import signal

            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        run_cell(cell, tmp_path / "stopped", (stop,))
    assert not (tmp_path / "stopped" / "cell.json").exists()
    # With more jobs it would be asked to use fewer cores; it goes on as it began.
    resumed = run_cell(replace(cell, config=replace(cell.config, threads=1)), tmp_path / "stopped")

    resumed = replace(resumed, wall_seconds=0.0, samples_per_second=0.0)
    assert resumed == replace(whole, wall_seconds=0.0, samples_per_second=0.0)


def test_a_cell_made_for_another_horizon_is_not_taken_for_this_one(tmp_path: Path) -> None:
    cell = small("sync-fedavg")
    run_cell(cell, cell.directory(tmp_path))

    assert finished(cell, tmp_path)
    with pytest.raises(RunError, match="for 20 s, but scale full and 40 s are asked for"):
        finished(replace(cell, horizon=Horizon(seconds=40.0)), tmp_path)
    with pytest.raises(RunError, match="made with precision float32, but bf16"):
        finished(replace(cell, config=replace(cell.config, precision="bf16")), tmp_path)
    # A CPU computes tf32 as float32.
    assert finished(replace(cell, config=replace(cell.config, precision="float32")), tmp_path)


def test_precision_is_told_as_it_was_computed_with() -> None:
    on_gpu = outcome("async-dvw", 0.5, device="NVIDIA H200, torch 2.11.0+cu130")
    on_cpu = replace(on_gpu, device="2 cores of AMD EPYC, torch 2.13.0+cpu")

    assert (on_gpu.precision, on_cpu.precision) == ("tf32", "float32")
    assert replace(on_cpu, about="precision bf16").precision == "bf16"
    assert replace(on_gpu, about="").precision == "unknown"


def test_a_cell_that_cannot_be_made_does_not_keep_others_from_being_made(tmp_path: Path) -> None:
    bad = replace(small("sync-dvw", data={"name": "cifar10", "directory": str(tmp_path)}), row="x")
    good, told = small("sync-fedavg"), list[str]()

    with pytest.raises(RunError, match=r"1 cells failed; the first: .*/x/sync-dvw: cifar10 is"):
        make([bad, good], Setting(tmp_path), told.append, unwatched)

    assert finished(good, tmp_path)


def test_side_by_side_cells_say_why_they_failed_in_a_log(tmp_path: Path) -> None:
    bad = replace(small("sync-dvw", data={"name": "cifar10", "directory": str(tmp_path)}), row="x")
    good, told = small("sync-fedavg"), list[str]()

    with pytest.raises(RunError, match="exit status 2"):
        make([bad, good], Setting(tmp_path, jobs=2), told.append, unwatched)

    assert finished(good, tmp_path)
    assert "cifar10 is not prepared" in (bad.directory(tmp_path) / "log.txt").read_text()


def test_time_that_is_over_leaves_cells_that_can_be_taken_up_again(tmp_path: Path) -> None:
    cell = small("async-fedavg", output={"checkpoint_seconds": 0.0})
    cell = replace(
        cell, config=replace(cell.config, horizon=replace(cell.config.horizon, seconds=1e6))
    )

    with pytest.raises(Interrupted, match="1 of 1 cells are left"):
        make([cell], Setting(tmp_path, stop_after=1.5), list[str]().append, unwatched)

    directory = cell.directory(tmp_path)
    assert (directory / "checkpoint.safetensors").exists()
    assert not (directory / "cell.json").exists()


@pytest.mark.parametrize("stop_after", [0.05, 0.25, 0.45])  # Python starts; imports; imports
def test_processes_that_are_stopped_before_they_have_begun_have_not_failed(
    stop_after: float, tmp_path: Path
) -> None:
    cells = [small("sync-fedavg"), small("async-fedavg")]

    with pytest.raises(Interrupted, match="2 of 2 cells are left"):
        make(cells, Setting(tmp_path, jobs=2, stop_after=stop_after), list[str]().append, unwatched)
