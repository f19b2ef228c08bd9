"""A controller's process: how long it waits, what it remembers, what it tells of its disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.config import load
from metis.core.types import Layout, LearnerId, Profile, TensorSpec, read_only
from metis.journal.records import AuditRecord
from metis.service import controller_process as process
from metis.service.connection import PROTOCOL, Hello
from metis.service.controller_process import Front, run_controller
from metis.service.open_federation import found
from metis.service.service import Service
from metis.storage.weights import save_first
from tests.command import Metis

LAYOUT = Layout((TensorSpec("weight", (3, 2), "dense", 0),))
CONFIG = load(None, policy="sync-fedavg", learners=1, groups={"site": {}})


@pytest.fixture
def founded(tmp_path: Path) -> Callable[[], Service]:
    save_first(tmp_path / "first.safetensors", read_only(np.zeros(6, np.float32)), LAYOUT, 2)
    return lambda: found(tmp_path / "state", CONFIG, tmp_path / "first.safetensors")


def seconds_to_end(service: Service, directory: Path, linger: float) -> float:
    began = time.monotonic()
    front = Front("127.0.0.1:0", None, linger_seconds=linger)
    reason = run_controller(directory / "state", service, CONFIG, front, threading.Event())
    assert reason == "versions"
    return time.monotonic() - began


@pytest.mark.parametrize(("linger", "at_most"), [(0.0, 1.5), (2.0, 4.0)])
def test_when_it_is_over_it_waits_so_long_for_members_that_are_away(
    founded: Callable[[], Service], tmp_path: Path, linger: float, at_most: float
) -> None:
    service = founded()
    profile = Profile(LearnerId("away"), 5, 1, "site")
    hello = Hello(PROTOCOL, LAYOUT.digest, service.terms.config, profile, None)
    service.join(profile.learner, hello)
    service.end("versions", over=True)

    assert linger <= seconds_to_end(service, tmp_path, linger) < at_most


def test_when_nobody_is_away_it_does_not_wait(
    founded: Callable[[], Service], tmp_path: Path
) -> None:
    service = founded()
    service.end("versions", over=True)

    assert seconds_to_end(service, tmp_path, linger=30.0) < 5.0


def test_what_the_command_line_says_of_lingering_is_what_is_done(
    metis: Metis, monkeypatch: pytest.MonkeyPatch, founded: Callable[[], Service], tmp_path: Path
) -> None:
    fronts: list[Front] = []

    def listens(directory: Path, service: Service, config: Any, front: Front, *rest: Any) -> str:
        fronts.append(front)
        service.journal.close()
        return "noted"

    monkeypatch.setattr(process, "run_controller", listens)
    first = str(tmp_path / "first.safetensors")
    founded().journal.close()

    line = "controller --plain --listen 127.0.0.1:0 --state other --linger 7 --reflection"
    outcome = metis(*line.split(), "--initial", first)

    assert outcome.code == 0, outcome.err
    assert fronts == [Front("127.0.0.1:0", None, True, 7.0)]


def test_the_number_of_a_revocation_list_outlives_a_kill_without_a_checkpoint(
    founded: Callable[[], Service],
) -> None:
    killed = founded()
    killed.note(
        AuditRecord(what="revocation list taken", who="controller", reason="", crl_number=7)
    )
    killed.journal.close()

    again = founded()
    after_kill = again.ledger.crl_number
    again.checkpoint()
    again.journal.close()
    last = founded()
    last.journal.close()

    assert (after_kill, last.ledger.crl_number) == (7, 7)


def test_each_sync_of_the_journal_is_told_with_its_seconds(founded: Callable[[], Service]) -> None:
    service = founded()
    told: list[float] = []
    service.journal.on_sync = told.append

    service.audit("a test", "nobody", "none")
    service.journal.close()

    assert len(told) == 1
    assert 0.0 <= told[0] < 10.0
