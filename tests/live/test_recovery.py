"""A controller that dies comes back with all that it ever acknowledged."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from metis.codecs.choose import codec_of
from metis.config import Config
from metis.core.errors import LineError, RunError
from metis.core.types import LearnerId, Snapshot, digest
from metis.learn.threads import num_threads
from metis.live.equip import agreement, equip
from metis.live.host import begin_or_go_on
from metis.live.line import Order
from metis.live.memory import MemoryLine
from metis.live.service import EVENTS, Service, Terms
from metis.live.site import Memory, Site
from metis.runtime.assemble import Parts, lay_out
from metis.runtime.compose import controller_of
from metis.runtime.journal import Record, read_journal
from tests.live.test_twin import CODECS, federation, versions


class Killed(BaseException):
    """What a process notices of `kill -9`: nothing. Raised where it would have been killed."""


class Host:
    """A controller that is killed when it has written so many records, and started again."""

    def __init__(self, parts: Parts, directory: Path, kill_at: int | None) -> None:
        self._parts = parts
        self._directory = directory
        self._kill_at = kill_at
        self._num_written = 0
        self._turn = threading.Lock()
        self.num_kills = 0
        # Made once: torch's generator is shared with the threads that train meanwhile.
        bench = parts.bench(parts.module(), parts.shares)
        self._layout = bench.layout
        self._initial = Snapshot(0, bench.flat.to_vector())
        self.service = self._start()

    def _start(self) -> Service:
        config = self._parts.config
        start, layout = self._initial, self._layout
        terms = Terms(
            layout=layout,
            config=agreement(config),
            upload=codec_of(config.upload, layout),
            lease_seconds=60.0,
            deadline_seconds=60.0,
            max_versions=config.horizon.versions,
        )
        controller = controller_of(config, start, layout, self._parts.dataset.num_classes)
        header = {"initial": digest(start.weights), "layout": layout.digest}
        life = self.num_kills

        def written(record: Record) -> None:
            self._num_written += life == self.num_kills
            if life < self.num_kills or self._num_written == self._kill_at:
                raise Killed  # the dead write nothing, whoever calls them

        return begin_or_go_on(self._directory, terms, controller, header, (written,))

    def call(self, name: str, *arguments: Any) -> Any:
        service = self.service
        try:
            answer = getattr(service, name)(*arguments)
        except Killed:
            with self._turn:
                if service is self.service:
                    self.num_kills += 1
                    service.journal.close()  # what it had written is in the file
                    self.service = self._start()
            raise LineError("the controller was killed") from None
        except RunError:
            if self._is_dead(service):  # its files were cleared away by the next one
                raise LineError("the controller was killed") from None
            raise
        if self._is_dead(service):
            raise LineError("the controller was killed")  # nobody heard its answer
        return answer

    def _is_dead(self, service: Service) -> bool:
        with self._turn:  # not while the next one is being started
            return service is not self.service


class BrokenLine(MemoryLine):
    """A line that goes down with the controller, and comes back with it."""

    def __init__(self, host: Host, learner: LearnerId) -> None:
        self._host = host
        self._me = learner

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "orders":
            return object.__getattribute__(self, name)
        host, me = self._host, self._me
        if name == "fetch":
            return lambda item: iter(list(host.call("fetch", me, item)))
        return lambda *arguments: host.call(name, me, *arguments)

    def orders(self) -> Any:
        service = self._host.service
        for order in service.orders(self._me, wait_seconds=0.02):
            if self._host.service is not service:
                raise LineError("the controller was killed")
            if order is not None:
                yield order


def lived(config: Config, directory: Path, kill_at: int | None) -> Host:
    parts = lay_out(config)
    host = Host(parts, directory, kill_at)
    sites = []
    for learner in parts.shares:
        equipment, mirror = equip(parts, learner)
        sites.append(Site(equipment, BrokenLine(host, learner), mirror, Memory()))
    threads = [threading.Thread(target=site.attend, daemon=True) for site in sites]
    with num_threads(1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    host.service.journal.close()
    return host


def journal_of(directory: Path) -> list[Record]:
    return list(read_journal(directory / "journal.jsonl"))


def small(policy: str) -> Config:
    return federation(policy, learners=3, horizon={"versions": 2}, **CODECS["packed"])


def test_a_controller_killed_at_every_third_record_comes_to_the_same_models(tmp_path: Path) -> None:
    config = small("sync-dvw")
    whole = lived(config, tmp_path / "whole", kill_at=None)
    records = journal_of(tmp_path / "whole")
    right = versions(records)
    assert len(right) == 2

    for kill_at in range(2, len(records) + 1, 3):
        directory = tmp_path / f"killed-{kill_at}"
        host = lived(config, directory, kill_at)

        found = journal_of(directory)
        assert host.num_kills == 1
        assert versions(found) == right, f"killed at record {kill_at}"
        weights = host.service.controller.current.weights
        assert weights.tobytes() == whole.service.controller.current.weights.tobytes()
        arrived = [r["task"] for r in found if r["kind"] == "arrive"]
        assert len(arrived) == len(set(arrived)), "an update was counted twice"


def test_an_asynchronous_controller_goes_on_after_a_kill(tmp_path: Path) -> None:
    config = federation("async-dvw", learners=3, horizon={"versions": 6})
    length = len(journal_of_run(config, tmp_path / "whole"))

    for kill_at in range(3, length, length // 4):
        host = lived(config, tmp_path / f"killed-{kill_at}", kill_at)

        assert host.num_kills == 1
        assert host.service.controller.current.version >= 6
        records = journal_of(tmp_path / f"killed-{kill_at}")
        folded = [f["task"] for r in records if r["kind"] == "version" for f in r["folds"]]
        assert len(folded) == len(set(folded))


def journal_of_run(config: Config, directory: Path) -> list[Record]:
    lived(config, directory, kill_at=None)
    return journal_of(directory)


def test_half_a_line_and_what_follows_the_last_event_are_written_anew(tmp_path: Path) -> None:
    config = small("sync-fedavg")
    lived(config, tmp_path / "run", kill_at=None)
    path = tmp_path / "run" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(n for n, r in enumerate(journal_of(tmp_path / "run")) if r["kind"] in EVENTS)
    path.write_bytes(b"".join(lines[: last + 2]) + lines[-1][:7])

    host = Host(lay_out(config), tmp_path / "run", kill_at=None)
    host.service.journal.close()

    again = [
        {k: v for k, v in record.items() if k not in ("at", "wall_seconds")}
        for record in journal_of(tmp_path / "run")
    ]
    before = [
        {k: v for k, v in record.items() if k not in ("at", "wall_seconds")}
        for record in map(json.loads, lines)
    ]
    assert again == before
    assert host.service.over == "versions"


def test_a_directory_of_another_federation_is_refused(tmp_path: Path) -> None:
    lived(small("sync-fedavg"), tmp_path / "run", kill_at=None)
    other = federation("sync-fedavg", learners=3, seed=7, model={"name": "mlp"})

    with pytest.raises(RunError, match="was begun with another"):
        Host(lay_out(other), tmp_path / "run", kill_at=None)


def test_orders_end_when_a_site_listens_anew(tmp_path: Path) -> None:
    service = Host(lay_out(small("sync-fedavg")), tmp_path, None).service
    first = service.orders(LearnerId("learner-01"), wait_seconds=0.01)
    assert next(first) is None

    second = service.orders(LearnerId("learner-01"), wait_seconds=0.01)
    assert next(second) is None

    rest: list[Order | None] = list(first)
    assert rest == []
    service.journal.close()
