"""Several runs as one: each is what it would have been alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from metis.core.errors import Interrupted
from metis.runtime.assemble import dataset_of, lay_out
from metis.runtime.run import run
from metis.runtime.together import JointRun, run_together
from tests.runtime.test_run import StopAfter, assert_same_run, small, without_wall

POLICIES = ("sync-fedavg", "sync-dvw", "fedasync", "async-dvw-adaptive")


def plans(directory: Path, **values: Any) -> list[JointRun]:
    return [JointRun(small(policy, **values), directory / policy) for policy in POLICIES]


@pytest.mark.parametrize("engine", ["stack", "loop", "processes"])
def test_runs_computed_together_are_the_runs_computed_apart(engine: str, tmp_path: Path) -> None:
    """A linear model: its products come out the same whatever else is in the stack."""
    for plan in plans(tmp_path / "apart", engine=engine, threads=1):
        run(plan.config, plan.out)

    summaries = run_together(plans(tmp_path / "together", engine=engine, threads=1))

    for policy, summary in zip(POLICIES, summaries, strict=True):
        assert_same_run(tmp_path / "apart" / policy, tmp_path / "together" / policy)
        written = json.loads((tmp_path / "together" / policy / "summary.json").read_text())
        assert written == summary


def test_runs_stopped_together_can_all_be_taken_up_again(tmp_path: Path) -> None:
    for plan in plans(tmp_path / "apart", engine="stack"):
        run(plan.config, plan.out)
    cut = plans(tmp_path / "cut", engine="stack")
    cut[1] = JointRun(cut[1].config, cut[1].out, (StopAfter(40),))
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(Interrupted, match="runs left to do"):
        run_together(cut)
    assert signal.getsignal(signal.SIGINT) is before
    run_together(plans(tmp_path / "cut", engine="stack"))

    for policy in POLICIES:
        assert_same_run(tmp_path / "apart" / policy, tmp_path / "cut" / policy)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    first, *rest = plans(tmp_path, engine="stack")
    run(first.config, first.out)
    before = (first.out / "journal.jsonl").read_bytes()

    summaries = run_together([first, *rest])

    assert (first.out / "journal.jsonl").read_bytes() == before
    assert summaries[0] == json.loads((first.out / "summary.json").read_text())
    assert all((plan.out / "summary.json").exists() for plan in rest)


def test_stopping_as_the_last_run_ends_stops_nothing(tmp_path: Path) -> None:
    config = small("sync-fedavg", engine="stack")
    run(config, tmp_path / "apart")
    num_records = len(without_wall(tmp_path / "apart"))

    run_together([JointRun(config, tmp_path / "together", (StopAfter(num_records),))])

    assert_same_run(tmp_path / "apart", tmp_path / "together")


@pytest.mark.parametrize("mistake", ["next", "random"])
def test_runs_are_trained_together_if_their_wrong_labels_are_the_same(
    mistake: str, tmp_path: Path
) -> None:
    wrong = {"partition": {"wrong_labels": {"learner-01": 1.0}, "mistake": mistake}}
    configs = [small(policy, **wrong) for policy in ("sync-fedavg", "async-fedavg")]
    dataset = dataset_of(configs[0])
    first, second = (
        (parts := lay_out(config, loaded=dataset)).bench(parts.module(), parts.shares)
        for config in configs
    )
    parts = lay_out(small("sync-fedavg"), loaded=dataset)
    right = parts.bench(parts.module(), parts.shares)

    assert first.is_kin_of(second)
    assert not first.is_kin_of(right)
