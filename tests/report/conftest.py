"""Small federations written down as journals, by hand rather than by the simulator."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.journal.file import Record
from metis.report.runs import Run, read_run

STEP_SECONDS = {"fast": 0.05, "slow": 0.5}
MODEL_BYTES = 40_000


def records_of(
    policy: str = "async-dvw-adaptive",
    *,
    seed: int = 1990,
    seconds: float = 120.0,
    num_learners: int = 6,
    num_classes: int = 10,
    refusal: str | None = None,
    ended: bool = True,
    dataset: str = "digits",
    **of_run: Any,
) -> list[Record]:
    """Return the journal of an asynchronous federation whose accuracy grows with its versions."""
    random = np.random.default_rng([seed, *policy.encode()])
    judged, losses = "dvw" in policy, "adaptive" in policy
    speed = random.uniform(0.5, 1.5)
    names = [f"learner-{i:02d}" for i in range(1, num_learners + 1)]
    groups = {name: ("fast", "slow")[i % 2] for i, name in enumerate(names)}
    examples = {name: int(400 / (i + 1)) + 20 for i, name in enumerate(names)}
    steps_per_epoch = {name: -(-n // 20) for name, n in examples.items()}
    out: list[Record] = []

    def write(kind: str, at: float, **fields: Any) -> None:
        out.append({"kind": kind, "at": at, **fields, "wall_seconds": round(at / 20, 3)})

    def test(at: float, version: int) -> None:
        score = 0.1 + 0.85 * (1 - np.exp(-speed * version / 20)) + random.normal(0, 0.004)
        write("test", at, version=version, score=min(float(score), 1.0), loss=1.0)

    def holdings(i: int, name: str) -> list[int]:
        held = [c for c in range(num_classes) if (c - i) % num_classes < 4]
        return [examples[name] // len(held) * (c in held) for c in range(num_classes)]

    write(
        "run",
        0.0,
        **{
            "policy": policy,
            "dataset": dataset,
            "partition": "power law (exponent 1.5), 4 classes each",
            "upload": "dense",
            "download": "dense",
            "seed": seed,
            "num_classes": num_classes,
            "test_metric": "accuracy" if num_classes else "r2",
            "parameters": 9_930,
            "layout": "1c57",
            "initial": "e1",
            "unplaced": 0,
            "judged": judged,
            "learners": [
                {
                    "learner": name,
                    "group": groups[name],
                    "examples": examples[name],
                    "validation_examples": examples[name] // 20 if judged else 0,
                    "holdings": holdings(i, name),
                }
                for i, name in enumerate(names)
            ],
            **of_run,
        },
    )
    test(0.0, 0)
    version = committed = tasks = evaluations = 0
    task_of: dict[str, tuple[int, int, int]] = {}
    loss_of = dict.fromkeys(names, 2.0)
    agenda: list[tuple[float, int, str, int]] = []

    def hand_out(at: float, name: str) -> None:
        nonlocal tasks
        tasks += 1
        task_of[name] = (tasks, version, committed)
        write(
            "task",
            at,
            task=tasks,
            learner=name,
            version=version,
            committed_steps=committed,
            max_steps=None,
            rate_factor=1.0,
            all_examples=False,
            bytes_down=MODEL_BYTES,
        )
        epoch_seconds = steps_per_epoch[name] * STEP_SECONDS[groups[name]]
        heapq.heappush(agenda, (at + epoch_seconds, len(out), name, 1))

    for name in names:
        write(
            "join",
            0.0,
            learner=name,
            num_examples=examples[name],
            steps_per_epoch=steps_per_epoch[name],
            group=groups[name],
        )
        hand_out(0.0, name)
    while agenda and agenda[0][0] <= seconds:
        at, _, name, epoch = heapq.heappop(agenda)
        task, base, committed_then = task_of[name]
        loss_of[name] *= 1 + random.normal(-0.02, 0.06)
        write(
            "steps",
            at,
            learner=name,
            task=task,
            epoch=epoch,
            num_steps=steps_per_epoch[name],
            samples=examples[name],
            loss=loss_of[name] if losses else None,
            steps_behind=committed - committed_then + epoch * steps_per_epoch[name],
        )
        if epoch < (3 + int(random.integers(6)) if losses else 4):
            epoch_seconds = steps_per_epoch[name] * STEP_SECONDS[groups[name]]
            heapq.heappush(agenda, (at + epoch_seconds, len(out), name, epoch + 1))
            continue
        num_steps = epoch * steps_per_epoch[name]
        write(
            "arrive",
            at,
            learner=name,
            task=task,
            base_version=base,
            num_examples=examples[name],
            num_steps=num_steps,
            seconds=1.0,
            counts=None,
            bytes_up=MODEL_BYTES,
        )
        for judge in names:
            if judged and judge != name:
                evaluations += 1
                write(
                    "evaluate",
                    at,
                    evaluation=evaluations,
                    judge=judge,
                    learner=name,
                    task=task,
                    bytes_down=MODEL_BYTES,
                )
                write("score", at, evaluation=evaluations, counts=None)
        if refusal is not None and name == names[-1]:
            write("refuse", at, learner=name, task=task, reason=refusal)
            hand_out(at, name)
            continue
        version += 1
        weight = (
            float(min(0.9, 0.2 + version / 200) + random.normal(0, 0.02))
            if judged
            else float(examples[name])
        )
        fold = {
            "learner": name,
            "task": task,
            "weight": weight,
            "score": weight if judged else None,
            "num_steps": num_steps,
            "versions_behind": version - 1 - base,
            "steps_behind": committed - committed_then + num_steps,
            "judges": num_learners if judged else 0,
            "missing": [],
        }
        committed += num_steps
        write(
            "version",
            at,
            version=version,
            digest=f"{version:064x}",
            committed_steps=committed,
            drift=None,
            folds=[fold],
        )
        if version % 3 == 0:
            test(at, version)
        hand_out(at, name)
    if ended:
        test(seconds, version)
        write("end", seconds, reason="seconds")
    return out


RunOf = Callable[..., Run]


@pytest.fixture
def run_of(tmp_path: Path) -> RunOf:
    """Write a federation's journal into a directory of its own and read it back as a run."""

    def make(policy: str = "async-dvw-adaptive", *, name: str = "", **settings: Any) -> Run:
        directory = tmp_path / (name or f"{policy}-{settings.get('seed', 1990)}")
        directory.mkdir()
        records = records_of(policy, **settings)
        lines = (json.dumps(record) + "\n" for record in records)
        (directory / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
        return read_run(directory)

    return make


@pytest.fixture
def journal_of() -> Callable[..., list[Record]]:
    """Return the records of a federation, for whoever listens to a journal."""
    return records_of
