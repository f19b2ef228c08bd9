"""`kill -9` for real: of the controller and of learners, at random moments, over real gRPC."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metis.config import Config, dump, load
from metis.core.types import LearnerId
from metis.federation.handshake import agreed, digest_of
from metis.journal.file import Record
from metis.replay.verify import replay
from metis.service.connection import Delivery, Receipt
from metis.service.grpc.client import GrpcConnection
from metis.service.grpc.server import Opening, serve
from metis.service.in_process import InProcessConnection
from metis.service.open_federation import found
from metis.service.site import Memory, Site
from metis.service.site_setup import equip
from metis.simulation.build import lay_out
from metis.simulation.run import run
from metis.storage.packets import Piece
from metis.training.threads import num_threads
from tests.service.rig import (
    PACKED,
    ControllerProcess,
    assert_each_counts_once,
    attend,
    journal_of,
    make_impatient,
    names_of,
    toy_config,
    toy_site,
    versions_of,
    write_first,
)


class NotingLine(GrpcConnection):
    """A line that remembers what it was told is taken."""

    def __init__(self, address: str, name: LearnerId) -> None:
        super().__init__(address, name)
        self._me = name
        self.receipts: list[tuple[LearnerId, int]] = []

    def deliver(self, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        receipt = super().deliver(delivery, packet)
        if receipt.taken:
            self.receipts.append((self._me, delivery.task))
        return receipt


@dataclass(frozen=True, slots=True)
class Survived:
    """A federation whose controller was killed again and again."""

    num_kills: int
    records: list[Record]
    state: Path
    receipts: list[tuple[LearnerId, int]]
    seconds_to_listen: list[float]

    def in_words(self) -> str:
        starts = [r for r in self.records if r["kind"] == "start"]
        took = [r["wall_recovery_seconds"] for r in starts]
        events = [r["recovered_events"] for r in starts]
        listen = self.seconds_to_listen
        return (
            f"{self.num_kills} kills, {len(starts)} starts noted; "
            f"recovery median {statistics.median(took):.3f} s, worst {max(took):.3f} s, "
            f"up to {max(events)} events; "
            f"to listening median {statistics.median(listen):.2f} s, worst {max(listen):.2f} s; "
            f"{len(self.receipts)} receipts, {len(self.records)} records"
        )


def killed(
    config: Config, directory: Path, num_kills: int, alive_seconds: float, step_seconds: float
) -> Survived:
    """Run a federation to its end while its controller is killed so many times.

    A life lasts up to `alive_seconds`, less where the machine is so quick that the federation would
    be over before the last kill.
    """
    rng = random.Random(f"{config.policy} {num_kills}")
    assert config.horizon.versions is not None
    a_share = config.horizon.versions / (num_kills + 1)
    controller = ControllerProcess(directory, config)
    controller.launch()
    controller.wait_until_listening()
    with ExitStack() as stack:
        stack.callback(controller.kill)
        lines = [NotingLine(controller.address, name) for name in names_of(config)]
        for line in lines:
            stack.callback(line.close)
        sites = [
            toy_site(config, name, line, step_seconds=step_seconds)
            for name, line in zip(names_of(config), lines, strict=True)
        ]
        work = threading.Thread(target=attend, args=(sites, 900.0), daemon=True)
        work.start()
        for number in range(num_kills):
            if number % 4 == 3:  # in the middle of starting, perhaps of recovering
                time.sleep(rng.uniform(0.5, 1.0) * statistics.median(controller.seconds_to_listen))
            else:
                if number:
                    controller.wait_until_listening()
                until = time.monotonic() + rng.uniform(0.0, alive_seconds)
                while time.monotonic() < until and controller.version() < (number + 1) * a_share:
                    time.sleep(0.01)
            assert work.is_alive(), f"the federation was over after {number} kills"
            controller.kill()
            controller.launch()
        controller.wait_until_listening()
        work.join(120.0)
        assert not work.is_alive(), "the federation did not come to its end"
        assert controller.wait() == 0
    receipts = [receipt for line in lines for receipt in line.receipts]
    records = journal_of(controller.state)
    return Survived(num_kills, records, controller.state, receipts, controller.seconds_to_listen)


def versions_of_whole_run(config: Config, directory: Path) -> list[tuple[Any, ...]]:
    """Return the versions of the same federation with nobody killed, in this process."""
    initial = write_first(directory / "whole.safetensors")
    service = found(directory / "whole", config, initial)
    attend(
        [toy_site(config, name, InProcessConnection(service, name)) for name in names_of(config)]
    )
    service.journal.close()
    return versions_of(journal_of(directory / "whole"))


def check(config: Config, found_: Survived, tmp_path: Path) -> None:
    service = found(found_.state, config)  # as a start after the end would find it
    service.journal.close()
    assert service.over == "versions"
    assert_each_counts_once(found_.records, found_.receipts, service)
    if config.policy.startswith("sync"):
        assert versions_of(found_.records) == versions_of_whole_run(config, tmp_path)
    command = [sys.executable, "-m", "metis", "replay", str(found_.state)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert replay(found_.state).last_digest == versions_of(found_.records)[-1][1]


FEDERATIONS: dict[str, dict[str, Any]] = {
    "sync-dvw": {**PACKED, "output": {"keep_updates": True, "checkpoint_seconds": 0.0}},
    "async-dvw": {
        "upload": PACKED["upload"],
        "output": {"keep_updates": True, "checkpoint_seconds": 0.2},
    },
}


@pytest.mark.parametrize(("policy", "versions"), [("sync-dvw", 20), ("async-dvw", 60)])
def test_a_controller_killed_by_force_goes_on_as_if_nothing_was(
    policy: str, versions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_impatient(monkeypatch)
    config = toy_config(policy, versions, **FEDERATIONS[policy])

    survived = killed(config, tmp_path, 4, alive_seconds=0.6, step_seconds=0.005)

    print(f"{policy}: {survived.in_words()}")
    check(config, survived, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("policy", "versions"), [("sync-dvw", 300), ("async-dvw", 1500)])
def test_a_controller_killed_fifty_times_goes_on_as_if_nothing_was(
    policy: str, versions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_impatient(monkeypatch)
    config = toy_config(policy, versions, **FEDERATIONS[policy])

    survived = killed(config, tmp_path, 50, alive_seconds=1.0, step_seconds=0.005)

    print(f"{policy}: {survived.in_words()}")
    check(config, survived, tmp_path)


def test_a_second_controller_on_the_same_state_is_refused(tmp_path: Path) -> None:
    first = ControllerProcess(tmp_path, toy_config("sync-dvw", 3))
    first.launch()
    first.wait_until_listening()
    second = ControllerProcess(tmp_path, toy_config("sync-dvw", 3))
    second.launch()

    code = second.wait()

    first.kill()
    assert code == 2
    assert "in use by another process" in (tmp_path / "controller.log").read_text()


# ---- learners -----------------------------------------------------------------------------------

MORTAL = LearnerId("learner-01")


def real_config(versions: int) -> Config:
    """Learners that really train, and whose next packet depends on all that came before."""
    packed: dict[str, Any] = PACKED
    return load(
        None,
        policy="sync-dvw",
        learners=3,
        threads=1,
        engine="loop",
        model={"name": "linear"},
        train={"epochs": 1, "keep_momentum": True, "lease_seconds": 600.0},
        validation={"metric": "micro_f1"},
        horizon={"versions": versions},
        **packed,
    )


class LearnerProcess:
    """`metis learner` with one state directory: started, killed by force, started again."""

    def __init__(self, directory: Path, config: Config, address: str) -> None:
        self._config = directory / "fed.toml"
        self._config.write_text(dump(config), encoding="utf-8")
        self._state = directory / "site"
        self._log = directory / "learner.log"
        self._address = address
        self.launch()

    def launch(self) -> None:
        command = [
            *(sys.executable, "-m", "metis", "learner", "--plain", "--name", MORTAL),
            *("--controller", self._address, "--config", str(self._config)),
            *("--state", str(self._state)),
        ]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> tuple[int, str]:
        return self._process.wait(60.0), self._log.read_text(encoding="utf-8")


def versions_with_killed_learner(
    config: Config, directory: Path, num_kills: int
) -> list[tuple[Any, ...]]:
    """Run a federation in which one learner is a process that is killed so many times."""
    rng = random.Random(num_kills)
    parts = lay_out(config)
    service = found(directory / "state", config)
    server, port = serve(service, Opening("127.0.0.1:0", config.learners))
    others = [name for name in parts.shares if name != MORTAL]
    with ExitStack() as stack:
        stack.callback(service.journal.close)
        stack.callback(lambda: server.stop(grace=None).wait())
        stack.enter_context(num_threads(1))
        sites = []
        for name in others:
            equipment, mirror = equip(parts, name, digest_of(agreed(config)))
            sites.append(Site(equipment, InProcessConnection(service, name), mirror, Memory()))
        work = threading.Thread(target=attend, args=(sites, 900.0), daemon=True)
        work.start()
        learner = LearnerProcess(directory, config, f"127.0.0.1:{port}")
        stack.callback(learner.kill)
        for number in range(num_kills):
            num_answers = service_updates(directory)
            while service_updates(directory) == num_answers:  # it is up and has answered
                assert not learner.has_ended()
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.3))
            assert service.over is None, f"the federation was over after {number} kills"
            learner.kill()
            learner.launch()
        work.join(120.0)
        assert not work.is_alive(), "the federation did not come to its end"
        code, said = learner.wait()
    records = journal_of(directory / "state")
    assert code == 0, said
    assert [r for r in records if r["kind"] in ("refuse", "fail", "task-expired")] == []
    arrived = [r["task"] for r in records if r["kind"] == "arrive"]
    assert len(arrived) == len(set(arrived))
    return versions_of(records)


def service_updates(directory: Path) -> int:
    records = journal_of(directory / "state")
    return sum(r["kind"] == "arrive" and r["learner"] == MORTAL for r in records)


def check_learner_kills(directory: Path, versions: int, num_kills: int) -> None:
    config = real_config(versions)
    right = run(config)

    survived = versions_with_killed_learner(config, directory, num_kills)

    print(f"{num_kills} kills of a learner, {versions} versions")
    assert survived == versions_of(right.records)


def test_a_learner_killed_by_force_goes_on_as_if_nothing_was(tmp_path: Path) -> None:
    check_learner_kills(tmp_path, versions=12, num_kills=1)


@pytest.mark.soak
def test_a_learner_killed_twenty_times_goes_on_as_if_nothing_was(tmp_path: Path) -> None:
    check_learner_kills(tmp_path, versions=150, num_kills=20)
