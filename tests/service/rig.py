"""What the crash tests share: learners that cost nothing, a controller that dies where it is told,
and the real one as a process to be killed.

A toy learner is deterministic and keeps momentum from task to task, so a run that forgets or
repeats anything ends with other bytes.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import Config, dump, load
from metis.core.learners import TestResult
from metis.core.triggers import AfterEpochs
from metis.core.types import (
    ClassCounts,
    Layout,
    LearnerId,
    Profile,
    Task,
    TensorSpec,
    Vector,
    read_only,
)
from metis.federation.build import recipe_of
from metis.federation.handshake import agreed, digest_of
from metis.journal.file import Record, read_journal
from metis.service.connection import Connection
from metis.service.mirror import Mirror
from metis.service.service import Service
from metis.service.site import Equipment, Memory, Pulse, Site
from metis.storage.weights import save_first

LAYOUT = Layout(
    (TensorSpec("layer.weight", (6, 5), "dense", 0), TensorSpec("layer.bias", (5,), "plain", 30))
)
NUM_CLASSES = 5
_STEPS_PER_EPOCH = 2

PACKED: dict[str, dict[str, Any]] = {
    "upload": {"codec": "stc", "sparsity": 0.2, "error_feedback": True},
    "download": {"codec": "int8", "error_feedback": True},
}


# ---- learners that cost nothing -----------------------------------------------------------------


def toy_config(policy: str, versions: int, **values: Any) -> Config:
    """Return a config for three toy learners whose leases do not end while a test lasts."""
    chosen: dict[str, Any] = {
        "policy": policy,
        "learners": 3,
        "train": {"epochs": 2, "lease_seconds": 600.0},
        "validation": {"metric": "micro_f1"},
        "horizon": {"versions": versions},
        "output": {"keep_updates": True, "checkpoint_seconds": 0.0},
    }
    return load(None, **{**chosen, **values})


def names_of(config: Config) -> list[LearnerId]:
    return [LearnerId(f"learner-{number:02}") for number in range(1, config.learners + 1)]


def write_first(path: Path) -> Path:
    """Write the model that toy federations begin with; return where it is."""
    weights = np.random.default_rng(7).normal(size=LAYOUT.size)
    save_first(path, read_only(weights), LAYOUT, NUM_CLASSES)
    return path


class Toy:
    """One learner: each step adds what only its name, the task and the step decide."""

    def __init__(
        self,
        learner: LearnerId,
        step_seconds: float = 0.0,
        beat: Callable[[int], None] = lambda num_steps: None,
    ) -> None:
        self._me = learner
        self._beat = beat
        self._key = zlib.crc32(learner.encode())
        self._step_seconds = step_seconds
        self._task: Task | None = None
        self._weights = np.zeros(0, np.float32)
        self._velocity = np.zeros(0, np.float32)
        self._kept = np.zeros(LAYOUT.size, np.float32)
        self._num_steps = 0
        self._asked: dict[int, Vector] = {}

    def profiles(self) -> Sequence[Profile]:
        return [Profile(self._me, 10 + self._key % 90, _STEPS_PER_EPOCH)]

    def begin(self, task: Task, with_loss: bool) -> None:
        self._task, self._num_steps = task, 0
        self._weights = np.array(task.start.weights)
        self._velocity = self._kept.copy()

    def announce(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        assert self._task is not None
        for _ in range(num_steps):
            time.sleep(self._step_seconds)
            self._num_steps += 1
            self._beat(self._num_steps)
            chance = np.random.default_rng([self._key, self._task.ordinal, self._num_steps])
            slope = chance.normal(size=LAYOUT.size) + 0.1 * self._weights
            self._velocity = (0.9 * self._velocity - 0.1 * slope).astype(np.float32)
            self._weights = self._weights + self._velocity
        return ()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return False

    def finish(self, learner: LearnerId) -> Vector:
        self._task, self._kept = None, self._velocity
        return read_only(self._weights)

    def abandon(self, learner: LearnerId) -> None:
        self._task = None

    def request_counts(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        number = len(self._asked)
        self._asked[number] = weights
        return [number]

    def take_counts(self, request: int) -> ClassCounts:
        model = hashlib.sha256(self._asked[request].tobytes()).digest()
        chance = np.random.default_rng([self._key, *np.frombuffer(model, np.uint32)])
        return ClassCounts(chance.integers(0, 9, size=(NUM_CLASSES, NUM_CLASSES)))

    def forget(self, judge: LearnerId) -> None:
        pass

    def test(self, weights: Vector) -> TestResult:
        return TestResult(0.0, 0.0)

    def state(self) -> object:
        return {"velocity": self._kept}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self._kept = state["velocity"]


def toy_site(
    config: Config,
    name: LearnerId,
    line: Connection,
    memory: Memory | None = None,
    step_seconds: float = 0.0,
    **more: Any,
) -> Site:
    """Return the site of a toy learner with nothing in its mirror."""
    pulse = Pulse()
    trainer = Toy(name, step_seconds, pulse.beat)
    (profile,) = trainer.profiles()
    equipment = Equipment(
        name=name,
        profile=profile,
        config=digest_of(agreed(config)),
        trigger=AfterEpochs(config.train.epochs),
        trainer=trainer,
        own_judge=trainer,
        durable=trainer,
        judge=Toy(name),
        upload=codec_of(config.upload, LAYOUT),
        is_judged=recipe_of(config).weighting.judged_by != "nobody",
        pulse=pulse,
    )
    mirror = Mirror(Dense(LAYOUT), codec_of(config.download, LAYOUT))
    return Site(equipment, line, mirror, memory or Memory(), **more)


def make_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sites knock again after a hundredth of a second: a test dies often."""
    monkeypatch.setattr("metis.service.site._LONGEST_WAIT_SECONDS", 0.01)


class Attends(Protocol):
    """A site, or what starts one again."""

    def attend(self) -> object: ...


def attend(sites: Sequence[Attends], within_seconds: float = 20.0) -> None:
    """Let sites work until the federation is over. Whatever ends one of them is raised."""
    failures: list[BaseException] = []

    def work(site: Attends) -> None:
        try:
            site.attend()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(site,), daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    until = time.monotonic() + within_seconds
    while any(thread.is_alive() for thread in threads):
        if failures:
            raise failures[0]
        assert time.monotonic() < until, "a site is still at it"
        threads[0].join(0.005)
        time.sleep(0.002)
    if failures:
        raise failures[0]


# ---- what a journal tells -----------------------------------------------------------------------


def journal_of(directory: Path) -> list[Record]:
    return list(read_journal(directory / "journal.jsonl"))


def versions_of(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Each version: its number, its digest, and who was folded with which weight."""
    return [
        (r["version"], r["digest"], sorted((f["learner"], f["weight"]) for f in r["folds"]))
        for r in records
        if r["kind"] == "version"
    ]


def assert_each_counts_once(
    records: Sequence[Record], receipts: Sequence[tuple[LearnerId, int]], service: Service
) -> None:
    """Whatever a site was told is taken arrived once, and was folded, refused or waits: once."""
    arrived = Counter((r["learner"], r["task"]) for r in records if r["kind"] == "arrive")
    controller = service.ledger.controller
    ends = Counter(f["task"] for r in records if r["kind"] == "version" for f in r["folds"])
    ends.update(r["task"] for r in records if r["kind"] == "refuse")
    ends.update(ticket.update.task for ticket in controller.queue)
    ends.update(fold.task for fold in controller.folds)
    assert [told for told in receipts if told not in arrived] == [], "acknowledged and lost"
    assert {key: n for key, n in arrived.items() if n != 1} == {}, "arrived twice"
    assert {task: ends[task] for _, task in arrived if ends[task] != 1} == {}, "not counted once"
    numbers = [r["version"] for r in records if r["kind"] == "version"]
    assert numbers == list(range(1, len(numbers) + 1))


# ---- the real controller, as a process ----------------------------------------------------------


class ControllerProcess:
    """`metis controller` on one state directory: started, killed by force, started again."""

    def __init__(self, directory: Path, config: Config) -> None:
        self._config = directory / "fed.toml"
        self._config.write_text(dump(config), encoding="utf-8")
        self._initial = write_first(directory / "first.safetensors")
        self._log = directory / "controller.log"
        self.state = directory / "state"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.seconds_to_listen: list[float] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process; it may not listen yet."""
        command = [
            *(sys.executable, "-m", "metis", "controller", "--plain"),
            *("--config", str(self._config), "--initial", str(self._initial)),
            *("--listen", self.address, "--state", str(self.state), "--linger", "5"),
        ]
        self._began = time.monotonic()
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def wait_until_listening(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.port = int(line.split()[2].rpartition(":")[2])
                self.seconds_to_listen.append(time.monotonic() - self._began)
                return
        raise AssertionError(f"the controller did not start: {self._log.read_text()[-2000:]}")

    def version(self) -> int:
        """Return how many versions its journal tells of by now."""
        journal = (self.state / "journal.jsonl").read_bytes()
        return journal.count(b'"kind":"version"')

    def kill(self) -> None:
        """End it as a power cut would, if it has not ended by itself."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def wait(self, seconds: float = 60.0) -> int:
        assert self.process is not None
        code = self.process.wait(seconds)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
