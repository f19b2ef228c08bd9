"""Killing a run again and again, by force, at random moments: `make soak`."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulation.test_run import assert_same_run

SETTINGS = (
    *("--set", "horizon.seconds=150", "--set", "model.name=linear"),
    *("--set", "output.checkpoint_seconds=0.05", "--set", "output.keep_updates=true"),
)


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw-adaptive", "fedbuff"])
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(policy: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "metis", "run", "--quiet"]
    start = ["--policy", policy, *SETTINGS]
    began = time.monotonic()
    subprocess.run([*command, "--out", "whole", *start], cwd=tmp_path, check=True)
    whole_seconds = time.monotonic() - began
    rng = random.Random(policy)
    kills = 0
    arguments = ["--out", "cut", *start]
    while not (tmp_path / "cut" / "summary.json").exists():
        process = subprocess.Popen([*command, *arguments], cwd=tmp_path)
        try:
            assert process.wait(timeout=rng.uniform(0.3, 0.7) * whole_seconds) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        if (tmp_path / "cut" / "config.toml").exists():
            arguments = ["--resume", "cut"]

    print(f"{policy}: killed {kills} times")
    assert kills > 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
