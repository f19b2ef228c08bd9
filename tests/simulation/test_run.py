"""Whole runs on real data: repeatable, resumable, replayable to the byte."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.codecs.choose import codec_of
from metis.config import Config, load
from metis.core.errors import Interrupted, JournalError, RunError
from metis.core.events import Train
from metis.core.types import Model, Snapshot
from metis.federation.build import build_controller
from metis.journal.file import Record, read_journal, record_event
from metis.journal.paths import update_path
from metis.journal.records import ArriveRecord
from metis.replay.verify import replay
from metis.simulation.run import resume, run, run_or_resume
from metis.storage.lock import claimed
from metis.storage.weights import read_safetensors

POLICIES = ("sync-dvw", "async-dvw-adaptive", "fedasync", "fedbuff", "semisync-fedavg", "fedadam")


def small(policy: str, **values: Any) -> Config:
    """Six learners, real digits, a linear model: a second a run."""
    settings: dict[str, Any] = {
        "policy": policy,
        "learners": 6,
        "model": {"name": "linear"},
        "groups": {"fast": {"seconds_per_step": 0.05}, "slow": {"seconds_per_step": 0.15}},
        "horizon": {"seconds": 12.0, "test_every": 3},
        "output": {"keep_updates": True},
        "train": {"epochs": 2, "keep_momentum": True},
    }
    return load(None, **{**settings, **values})


def without_wall(path: Path) -> list[Record]:
    return [
        {name: value for name, value in record.items() if "wall" not in name}
        for record in read_journal(path / "journal.jsonl")
    ]


def digests(path: Path) -> list[str]:
    return [r["digest"] for r in read_journal(path / "journal.jsonl") if r["kind"] == "version"]


def assert_same_run(one: Path, other: Path) -> None:
    assert without_wall(one) == without_wall(other)
    for name in ("model.safetensors", "best.safetensors", "config.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    summaries = [json.loads((path / "summary.json").read_text()) for path in (one, other)]
    for summary in summaries:
        for name in [name for name in summary if "wall" in name]:
            del summary[name]
    assert summaries[0] == summaries[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_same_bytes_in_two_runs(policy: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(small(policy), tmp_path / name)

    assert len(digests(tmp_path / "one")) > 1
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    for seed in (1, 2):
        run(small("sync-fedavg", seed=seed), tmp_path / str(seed))

    assert digests(tmp_path / "1") != digests(tmp_path / "2")


@pytest.mark.parametrize("policy", ["sync-fedavg", "async-dvw-adaptive"])
def test_same_seed_same_bytes_across_processes(policy: str, tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text(
        f'policy = "{policy}"\nlearners = 4\nmodel.name = "linear"\nhorizon.seconds = 6.0\n'
    )
    for name, hash_seed in (("one", "1"), ("two", "2")):
        command = [sys.executable, "-m", "metis", "run", "fed.toml", "--out", name, "--quiet"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_gives_the_digest_of_every_version(policy: str, tmp_path: Path) -> None:
    run(small(policy), tmp_path / "run")

    found = replay(tmp_path / "run")

    assert found.num_versions == len(digests(tmp_path / "run"))
    assert found.last_digest == digests(tmp_path / "run")[-1]


def test_a_replay_notices_a_changed_weight(tmp_path: Path) -> None:
    run(small("async-dvw"), tmp_path / "run")
    journal = tmp_path / "run" / "journal.jsonl"
    text = journal.read_text()
    changed = re.sub(r'"weight":0\.\d', '"weight":0.0', text, count=1)
    assert changed != text
    journal.write_text(changed)

    with pytest.raises(JournalError, match="weight of"):
        replay(tmp_path / "run")


def test_a_replay_notices_a_changed_update(tmp_path: Path) -> None:
    run(small("async-fedavg"), tmp_path / "run")
    path = next(iter(sorted((tmp_path / "run" / "updates").iterdir())))
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)

    with pytest.raises(JournalError, match=r"task-\d+\.packet is damaged"):
        replay(tmp_path / "run")


class StopAfter:
    """A listener that does what Ctrl-C does, after so many records."""

    def __init__(self, num_records: int) -> None:
        self._left = num_records

    def __call__(self, record: Record) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("policy", "engine", "model"),
    [
        *((policy, "stack", "linear") for policy in POLICIES),
        ("async-dvw-adaptive", "loop", "digits_cnn"),
        ("async-dvw-adaptive", "processes", "digits_cnn"),
        ("sync-dvw", "processes", "digits_cnn"),
        ("fedasync", "stack", "digits_cnn"),
    ],
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    policy: str, engine: str, model: str, tmp_path: Path
) -> None:
    chosen: dict[str, Any] = {"engine": engine, "threads": 2, "model": {"name": model}}
    if model != "linear":
        chosen["horizon"] = {"seconds": 6.0, "test_every": 3}
    run(small(policy, **chosen), tmp_path / "whole")
    records = without_wall(tmp_path / "whole")
    assert records[0]["engine"] == engine

    cut = tmp_path / "cut"
    with pytest.raises(Interrupted, match="metis run --resume"):
        run(small(policy, **chosen), cut, listeners=(StopAfter(len(records) // 3),))
    with pytest.raises(Interrupted):
        resume(cut, listeners=(StopAfter(2 * len(records) // 3),))
    resume(cut)

    assert_same_run(tmp_path / "whole", cut)
    assert not (cut / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("num_records", range(1, 12))
def test_a_run_that_is_stopped_while_learners_are_yet_to_join_can_be_resumed(
    num_records: int, tmp_path: Path
) -> None:
    config = small("async-dvw", horizon={"versions": 2})
    run(config, tmp_path / "whole")

    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", listeners=(StopAfter(num_records),))
    resume(tmp_path / "cut")

    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_caller_can_stop_a_run_without_a_signal_also_outside_of_the_main_thread(
    tmp_path: Path,
) -> None:
    config = small("async-dvw")
    run(config, tmp_path / "whole")
    stop = threading.Event()
    ended: list[BaseException] = []

    def go_on(begin: Callable[[threading.Event], object]) -> None:
        stop.clear()
        try:
            begin(stop)
        except Interrupted as interrupted:
            ended.append(interrupted)

    def look(record: Record) -> None:
        if record["kind"] == "version" and record["version"] in (3, 6):
            stop.set()

    cut = tmp_path / "cut"
    for begin in (
        lambda stop: run(config, cut, listeners=(look,), stop=stop),
        lambda stop: run_or_resume(config, cut, (look,), stop),
    ):
        thread = threading.Thread(target=go_on, args=(begin,))
        thread.start()
        thread.join(60)
    assert len(ended) == 2
    assert all("metis run --resume" in str(one) for one in ended)
    resume(cut)

    assert_same_run(tmp_path / "whole", cut)


@pytest.mark.skipif(sys.platform != "linux", reason="processes need Linux")
def test_no_process_is_left_by_runs_that_end_or_never_begin(tmp_path: Path) -> None:
    config = small("sync-fedavg", engine="processes", threads=2, horizon={"versions": 1})

    run(config, tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        run(config, tmp_path / "run")
    run_or_resume(config, tmp_path / "run")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", listeners=(StopAfter(5),))
    with claimed(tmp_path / "cut"), pytest.raises(RunError, match="in use by another process"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut")

    with pytest.raises(ChildProcessError):  # there is none to wait for
        os.waitpid(-1, os.WNOHANG)


def plateau(policy: str, **values: Any) -> Config:
    """A short run in which the rate falls a few times."""
    train = {
        "epochs": 1,
        "schedule": "plateau",
        "schedule_versions": 1,
        "schedule_factor": 0.5,
        "schedule_improvement": 1.0,
    }
    horizon = {"versions": 6 if policy == "sync-dvw" else 24, "test_every": 3}
    return small(policy, train=train, horizon=horizon, **values)


NORMED = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)]
    return nn.Sequential(*head)
"""


def factors(path: Path) -> list[float]:
    return [r["rate_factor"] for r in read_journal(path / "journal.jsonl") if r["kind"] == "task"]


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw"])
@pytest.mark.parametrize("engine", ["loop", "stack", "processes"])
def test_a_rate_that_follows_scores_is_the_same_in_a_run_that_was_interrupted(
    engine: str, policy: str, tmp_path: Path
) -> None:
    config = plateau(policy, engine=engine, threads=2 if engine == "processes" else 1)
    run(config, tmp_path / "whole")
    fallen = [n for n, factor in enumerate(factors(tmp_path / "whole")) if factor < 1.0]
    assert len(set(factors(tmp_path / "whole"))) >= 3
    records = without_wall(tmp_path / "whole")
    positions = [n for n, record in enumerate(records) if record["kind"] == "task"]

    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(config, cut, listeners=(StopAfter(positions[fallen[0]] + 3),))
    resume(cut)

    assert_same_run(tmp_path / "whole", cut)


def released(policy: str, **values: Any) -> Config:
    """Held-out examples are trained on in the last versions."""
    versions, last = (6, 2) if policy != "async-dvw-adaptive" else (24, 10)
    return small(
        policy,
        **{
            "horizon": {"versions": versions, "test_every": 3},
            "validation": {"fraction": 0.2, "release_last": last},
            "train": {"epochs": 3},
            **values,
        },
    )


def by_task(path: Path, kind: str) -> dict[int, Record]:
    return {r["task"]: r for r in read_journal(path / "journal.jsonl") if r["kind"] == kind}


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive", "semisync-dvw"])
@pytest.mark.parametrize("engine", ["loop", "stack", "processes"])
def test_a_run_that_releases_its_validation_sets_can_be_interrupted_and_replayed(
    engine: str, policy: str, tmp_path: Path
) -> None:
    config = released(policy, engine=engine, threads=2 if engine == "processes" else 1)
    result = run(config, tmp_path / "whole")
    given = by_task(tmp_path / "whole", "task")
    answered = by_task(tmp_path / "whole", "arrive")
    begun = {
        r["learner"]: r
        for r in result.records or read_journal(tmp_path / "whole/journal.jsonl")
        if r["kind"] == "join"
    }
    since = (config.horizon.versions or 0) - (config.validation.release_last or 0)
    asked = {r["task"] for r in by_task(tmp_path / "whole", "evaluate").values()}

    for number, record in answered.items():
        full, learner = given[number]["all_examples"], begun[record["learner"]]
        assert full == (given[number]["version"] >= since)
        assert (number in asked) == (not full) == (record["counts"] is not None)
        if full:
            assert record["num_examples"] == learner["num_examples"] + learner["num_held_out"]
            if policy != "semisync-dvw":  # an adaptive learner, too, does just these epochs
                assert record["num_steps"] == 3 * learner["steps_per_full_epoch"]
    assert {given[number]["all_examples"] for number in answered} == {True, False}

    cut = tmp_path / "cut"
    records = without_wall(tmp_path / "whole")
    tasks = [n for n, r in enumerate(records) if r["kind"] == "task" and r["all_examples"]]
    with pytest.raises(Interrupted):
        run(config, cut, listeners=(StopAfter(tasks[0] + 4),))
    resume(cut)
    assert_same_run(tmp_path / "whole", cut)
    assert replay(cut).num_versions >= 6


@pytest.mark.parametrize("engine", ["loop", "stack", "processes"])
def test_local_statistics_are_the_same_in_a_run_that_was_interrupted(
    engine: str, tmp_path: Path
) -> None:
    (tmp_path / "normed.py").write_text(NORMED)
    values: dict[str, Any] = {"engine": engine, "threads": 2 if engine == "processes" else 1}
    values["model"] = {"name": f"{tmp_path}/normed.py:make"}
    values["train"] = {"epochs": 1, "batch_norm_statistics": "local"}
    config = small("async-dvw", horizon={"versions": 20, "test_every": 3}, **values)
    run(config, tmp_path / "whole")
    records = without_wall(tmp_path / "whole")
    assert records[0]["engine"] == engine

    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(config, cut, listeners=(StopAfter(len(records) // 2),))
    resume(cut)

    assert_same_run(tmp_path / "whole", cut)
    assert replay(cut).num_versions >= 20


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw"])
def test_a_controller_told_the_events_again_gives_each_task_the_rate_it_had(
    policy: str, tmp_path: Path
) -> None:
    result = run(plateau(policy), tmp_path)
    told = factors(tmp_path)
    layout = result.layout
    start = Snapshot(0, read_safetensors(tmp_path / "initial.safetensors", layout))
    controller = build_controller(result.config, start, layout, 10)
    upload = codec_of(result.config.upload, layout)

    def model(record: ArriveRecord) -> Model:
        packet = update_path(tmp_path, record.task).read_bytes()
        return upload.decode(packet, controller.tasks[record.task].start.weights)

    found = []
    for record in read_journal(tmp_path / "journal.jsonl"):
        event = record_event(record, model)
        if event is not None:
            commands = controller.handle(event)
            found += [c.task.rate_factor for c in commands if isinstance(c, Train)]

    assert found == told
    assert len(set(found)) >= 3
    assert replay(tmp_path).num_versions == controller.current.version


def test_an_interrupted_run_leaves_a_readable_journal(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small("async-dvw"), tmp_path / "cut", listeners=(StopAfter(50),))

    assert len(without_wall(tmp_path / "cut")) >= 50


def test_a_killed_run_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    run(small("async-dvw"), tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(small("async-dvw"), cut, listeners=(StopAfter(50),))
    (cut / "checkpoint.safetensors").unlink()
    with open(cut / "journal.jsonl", "ab") as file:
        file.write(b'{"kind": "half a li')

    resume(cut)

    assert_same_run(tmp_path / "whole", cut)


def test_a_run_killed_by_force_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    settings = "output.checkpoint_seconds=0.2", "horizon.seconds=60", "model.name=linear"
    command = [sys.executable, "-m", "metis", "run", "--quiet", "--out"]
    sets = [word for setting in settings for word in ("--set", setting)]
    subprocess.run(
        [*command, "whole", *sets], cwd=tmp_path, check=True, capture_output=True, timeout=200
    )
    process = subprocess.Popen(
        [*command, "cut", *sets], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    deadline = time.monotonic() + 100
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)  # there is no event to wait for: another process writes the file
    process.kill()
    process.wait()
    assert checkpoint.exists(), "the run was over before it could be killed"

    resume(tmp_path / "cut")

    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    run(small("sync-fedavg"), tmp_path / "run")
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()

    with pytest.raises(RunError, match="already holds a run"):
        run(small("sync-fedavg"), tmp_path / "run")

    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == before


def test_sampling_gives_each_round_its_roster() -> None:
    config = small("sync-dvw", learners=12, recipe={"sample": 4}, horizon={"versions": 5})
    result = run(config)

    versions = [r for r in result.records if r["kind"] == "version"]
    rosters = [tuple(f["learner"] for f in sorted(v["folds"], key=str)) for v in versions]
    assert [len(set(roster)) for roster in rosters] == [4] * 5
    assert len({frozenset(roster) for roster in rosters}) > 1
    assert all(fold["judges"] == 4 for v in versions for fold in v["folds"])


def test_a_regression_runs_by_every_kind_of_policy() -> None:
    for policy in ("sync-fedavg", "async-dvw-adaptive"):
        config = load(
            None,
            policy=policy,
            learners=4,
            data={"name": "diabetes"},
            partition={"sizes": "skewed", "classes": "iid"},
            horizon={"seconds": 20.0},
        )
        result = run(config)

        assert result.summary["final_accuracy"] is None
        assert result.summary["best_score"] > 0.2
        assert np.isfinite(result.weights).all()


def test_a_run_is_not_resumed_with_another_model(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small("sync-fedavg"), tmp_path / "cut", listeners=(StopAfter(30),))
    path = tmp_path / "cut" / "config.toml"
    path.write_text(path.read_text().replace('name = "linear"', 'name = "mlp"'))

    with pytest.raises(RunError, match="pass the same model, data and recipe"):
        resume(tmp_path / "cut")


def test_a_learner_given_the_same_version_twice_does_not_train_the_same_batches_again(
    tmp_path: Path,
) -> None:
    run(small("fedbuff"), tmp_path / "run")

    records = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    starts = [(r["learner"], r["version"]) for r in records if r["kind"] == "task"]
    assert len(set(starts)) < len(starts)  # some were given a version again
    updates = [r["digest"] for r in records if r["kind"] == "arrive"]
    assert len(set(updates)) == len(updates)


def test_a_learner_with_wrong_labels_weighs_least_by_the_validation_of_all(tmp_path: Path) -> None:
    wrong = {"sizes": "uniform", "classes": "iid", "wrong_labels": {"learner-02": 1.0}}

    run(small("sync-dvw", partition=wrong, horizon={"versions": 3}), tmp_path)

    header, *records = read_journal(tmp_path / "journal.jsonl")
    assert "100 % of the labels of learner-02 wrong (next)" in header["partition"]
    versions = [record for record in records if record["kind"] == "version"]
    for version in versions[1:]:  # the first is what all start from
        weights = {fold["learner"]: fold["weight"] for fold in version["folds"]}
        mistaken = weights.pop("learner-02")
        assert len(weights) == 5
        assert 0 < mistaken < 0.5 * min(weights.values())  # its own examples say that it is right
