"""Outcomes of cells that were never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metis_papers.cells import Horizon, Row, Setting, rows
from metis_papers.numerics import numerics_of
from metis_papers.results import Result, as_text


def result(policy: str, score: float, **values: Any) -> Result:
    """A finished cell of Table I's heterogeneous half, unless told otherwise."""
    settings: dict[str, Any] = {
        "study": "table1",
        "cluster": "heterogeneous",
        "row": "powerlaw-3",
        "policy": policy,
        "variant": "",
        "seed": 1990,
        "scale": "full",
        "horizon": "14,000 s",
        "network": "cifar_cnn",
        "precision": "tf32",
        "device_kind": "cuda",
        "about": "in words",
        "dataset": "cifar10",
        "partition": "",
        "parameters": 10,
        "ended": "seconds",
        "virtual_seconds": 14_000.0,
        "rounds": 2,
        "requests": 20,
        "models_exchanged": 220,
        "evaluation_models": 180,
        "bytes_up": 800,
        "bytes_down": 8000,
        "samples": 5_000_000,
        "final_score": score,
        "best_score": score,
        "curve": [[0.0, 0, 0.1], [7_000.0, 1, score - 0.01], [14_000.0, 2, score]],
        "traffic": [[0, 0, 40, 0], [10, 400, 440, 2_500_000], [20, 800, 840, 5_000_000]],
        "snapshot_bytes": 40,
        "wall_seconds": 100.0,
        "samples_per_second": 50_000.0,
        "commit": "abc",
        "device": "a machine",
        "learners": [
            {
                "learner": name,
                "group": group,
                "examples": 9,
                "validation_examples": 1,
                "mean_weight": 1.0,
                "holdings": [5, 5],
            }
            for name, group in (("learner-01", "fast"), ("learner-02", "slow"))
        ],
        "staleness": {},
        "trigger_staleness": {},
        "config": "",
        "cycles": {},
        "numerics": numerics_of(policy, "cifar_cnn"),
    }
    if "curve" in values:
        settings["traffic"] = []  # of these tests nothing is known
    settings |= values
    settings["row"] = row(settings["row"])
    settings["horizon"] = until(settings["horizon"])
    return Result(**settings)


def row(name: str) -> Row:
    """Return a row of a table, or of SSTC, whose rows are datasets."""
    return rows(name)[0] if "-" in name else Row("uniform", "natural", name)


def until(words: str) -> Horizon:
    """Return a horizon such as 200 rounds, or 1,400 s."""
    number = float(words.split()[0].replace(",", ""))
    return Horizon(rounds=int(number)) if "rounds" in words else Horizon(seconds=number)


def put(out: Path, *results: Result) -> Setting:
    """Have these cells lie in a folder."""
    for number, one in enumerate(results):
        path = out / one.study / one.cluster / str(one.row) / f"{one.policy}-{number}" / "cell.json"
        path.parent.mkdir(parents=True)
        path.write_text(as_text(one))
    return Setting(out)
