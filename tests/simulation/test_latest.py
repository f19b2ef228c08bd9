"""Runs whose latest models are on disk come to the bytes of runs that keep them in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.config import Config, load
from metis.core.errors import ConfigError, RunError
from metis.core.types import LearnerId, read_only
from metis.federation.checkpoint import cache_of, place_latest
from metis.journal.file import read_journal
from metis.replay.verify import replay
from metis.simulation.build import build_simulation
from metis.simulation.run import resume, run
from metis.simulation.session import Session
from metis.storage.latest import LatestOnDisk
from metis.training.threads import num_threads


def config(where: str, **values: Any) -> Config:
    settings: dict[str, Any] = {
        "policy": "async-dvw",
        "learners": 6,
        "engine": "loop",
        "threads": 1,
        "model": {"name": "linear"},
        "groups": {"fast": {"seconds_per_step": 0.05}, "slow": {"seconds_per_step": 0.15}},
        "horizon": {"versions": 40, "test_every": 10},
        "recipe": {"repair_every": 11},
        "output": {"latest_models": where, "keep_updates": True, "checkpoint_seconds": 0.0},
    }
    return load(None, **{**settings, **values})


def told(path: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if "wall" not in name}
        for record in read_journal(path / "journal.jsonl")
    ]


@pytest.mark.parametrize("download", [{}, {"codec": "int8"}])
def test_on_disk_a_run_comes_to_the_same_records_and_leaves_nothing(
    download: dict[str, Any], tmp_path: Path
) -> None:
    incident = {"at_seconds": 5.0, "learner": "learner-02", "kind": "withdraw"}
    for where in ("memory", "disk"):
        run(config(where, download=download, incidents=[incident]), tmp_path / where)

    assert told(tmp_path / "disk") == told(tmp_path / "memory")
    models = [(tmp_path / where / "model.safetensors").read_bytes() for where in ("memory", "disk")]
    assert models[0] == models[1]
    assert not (tmp_path / "disk" / "latest").exists()
    assert replay(tmp_path / "disk").num_versions == 40


@pytest.mark.parametrize(("saved", "lost"), [((), 90), ((60,), 100), ((60, 80), 150), ((100,), 0)])
def test_a_run_that_dies_after_a_checkpoint_goes_on_from_its_models(
    saved: tuple[int, ...], lost: int, tmp_path: Path
) -> None:
    run(config("memory"), tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("metis.simulation.run._see_through", lambda session, **_: session)
        session: Any = run(config("disk"), tmp_path / "cut")
    assert isinstance(session, Session)
    with num_threads(1):
        session.open(resumed=False)
        for step in range(max((lost, *saved)) + 1):
            session.step()
            if step in saved:
                session._checkpoint()
    session.close()  # with all that came after the last checkpoint on disk: as a kill leaves it
    (tmp_path / "cut").rename(tmp_path / "moved")

    resume(tmp_path / "moved")

    assert told(tmp_path / "moved") == told(tmp_path / "whole")
    assert not (tmp_path / "moved" / "latest").exists()


def test_a_policy_without_latest_models_cannot_keep_them_on_disk() -> None:
    with pytest.raises(ConfigError, match="'disk': sync-fedavg keeps no latest models"):
        build_simulation(config("disk", policy="sync-fedavg"))


def test_a_run_without_a_directory_cannot_keep_models_on_disk() -> None:
    with pytest.raises(ConfigError, match=r"'disk': the run needs a directory \(--out\)"):
        run(config("disk"))


def test_a_disk_that_is_full_ends_the_run_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, learner: object, weights: object) -> None:
        raise RunError("cannot write 7.latest: No space left on device")

    monkeypatch.setattr("metis.storage.latest.LatestOnDisk.__setitem__", full)
    with pytest.raises(RunError, match="No space left"):
        run(config("disk"), tmp_path / "run")


def test_assembling_touches_no_disk() -> None:
    assert build_simulation(config("disk")).config.output.latest_models == "disk"


def test_a_federation_that_is_started_again_may_keep_its_models_elsewhere(tmp_path: Path) -> None:
    controller = build_simulation(config("memory")).controller
    cache = cache_of(controller.community)
    assert cache is not None
    models = {LearnerId(name): read_only(np.full(3, ord(name))) for name in "abc"}
    cache.latest = dict(models)

    for where, kind in (("disk", LatestOnDisk), ("disk", LatestOnDisk), ("memory", dict)):
        place_latest(controller, where, tmp_path / "latest")
        assert type(cache.latest) is kind
        found = {learner: cache.latest[learner].tolist() for learner in cache.latest}
        assert found == {learner: model.tolist() for learner, model in models.items()}
