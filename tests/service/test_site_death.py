"""A site that dies goes on where its memory file says, and the models are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metis.config import Config
from metis.core.errors import RunError
from metis.core.types import LearnerId
from metis.service.connection import ModelRef, Order
from metis.service.in_process import InProcessConnection
from metis.service.open_federation import found
from metis.service.recovery import Ticker
from metis.service.service import Service
from metis.service.site import Memory, Site
from metis.service.site_memory import MemoryFile
from tests.service.mortal import Disk, Fuse, Killed
from tests.service.rig import (
    PACKED,
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

MORTAL = LearnerId("learner-02")


class FrailLine(InProcessConnection):
    """The line of a site that may die before it says a thing, or before it hears the answer."""

    def __init__(self, service: Service, fuse: Fuse) -> None:
        self._line = InProcessConnection(service, MORTAL)
        self._service_orders = service.orders
        self._fuse = fuse
        self._life = fuse.life
        self.receipts: list[tuple[LearnerId, int]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in ("orders", "fetch", "keeping", "receipts"):
            return object.__getattribute__(self, name)
        return lambda *arguments: self._said(name, *arguments)

    def _said(self, name: str, *arguments: Any) -> Any:
        self._moment()
        self._fuse.enter(None)  # the controller does not die
        answer = getattr(self._line, name)(*arguments)
        self._moment()
        if name == "deliver" and answer.taken:
            self.receipts.append((MORTAL, arguments[0].task))
        return answer

    def _moment(self) -> None:
        self._fuse.enter(self._life)
        self._fuse.moment()

    def fetch(self, item: ModelRef) -> Any:
        self._moment()
        self._fuse.enter(None)
        content = list(self._line.fetch(item))
        self._moment()
        return iter(content)

    def orders(self) -> Iterator[Order]:
        for order in self._service_orders(MORTAL, wait_seconds=0.005):
            if self._fuse.life != self._life:
                raise Killed
            if order is not None:
                yield order

    def keeping(self, file: MemoryFile) -> Callable[[Memory], None]:
        def keep(memory: Memory) -> None:
            self._moment()
            file.keep(memory)  # itself two renames long
            self._moment()

        return keep


class Mortal:
    """A site that is started again whenever it dies, with what its file remembers."""

    def __init__(self, config: Config, service: Service, directory: Path, fuse: Fuse) -> None:
        self._config = config
        self._service = service
        self._file = MemoryFile(directory, service.federation, MORTAL)
        self._fuse = fuse
        self.receipts: list[tuple[LearnerId, int]] = []

    def attend(self) -> None:
        while True:
            line = FrailLine(self._service, self._fuse)
            keep = line.keeping(self._file)
            site = toy_site(self._config, MORTAL, line, self._file.read(), keep=keep)
            try:
                site.attend()
            except Killed:
                continue
            finally:
                self.receipts += line.receipts
            return


Live = Callable[..., tuple[int, int, list[tuple[Any, ...]]]]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """Run a federation of which one site dies at these moments; return kills, moments, versions."""
    make_impatient(monkeypatch)
    initial = write_first(tmp_path / "first.safetensors")

    def run(*kills: int, packed: bool = True) -> tuple[int, int, list[tuple[Any, ...]]]:
        fuse = Fuse(*kills)
        config = toy_config("sync-dvw", 4, **(PACKED if packed else {}))
        directory = tmp_path / f"run-{packed}-{'-'.join(map(str, kills)) or 'whole'}"
        memory = directory / "site"
        memory.mkdir(parents=True)
        disk = Disk(fuse, directory / "state")
        with monkeypatch.context() as patches:
            disk.watch(patches)
            fuse.at_death = lambda: None  # it is the site that dies, not the controller
            service = found(directory / "state", config, initial)
            mortal = Mortal(config, service, memory, fuse)
            others = [
                toy_site(config, name, InProcessConnection(service, name))
                for name in names_of(config)
                if name != MORTAL
            ]
            attend([mortal, *others])
        disk.close()
        records = journal_of(directory / "state")
        assert_each_counts_once(records, mortal.receipts, service)
        assert [r for r in records if r["kind"] in ("refuse", "fail", "task-expired")] == []
        return fuse.life - 1, fuse.count, versions_of(records)

    return run


def test_a_site_killed_at_every_third_moment_changes_no_model(live: Live) -> None:
    _, total, right = live()
    assert len(right) == 4

    for at in range(1, total + 1, 3):
        num_kills, _, versions = live(at)

        assert num_kills == 1
        assert versions == right, f"killed at moment {at} of {total}"


def test_a_site_that_sends_whole_models_does_not_change_them_either(live: Live) -> None:
    _, total, right = live(packed=False)

    for at in range(2, total + 1, 6):
        num_kills, _, versions = live(at, packed=False)

        assert num_kills == 1
        assert versions == right, f"killed at moment {at} of {total}"


@pytest.mark.soak
def test_a_site_killed_at_every_moment_and_soon_after_changes_no_model(live: Live) -> None:
    _, total, right = live()
    num_kills = 0

    for at in range(1, total + 1):
        for kills in ((at,), (at, at + 1 + at % 11), (at, at + 2, at + 9)):
            died, _, versions = live(*kills)
            num_kills += died
            assert versions == right, f"killed at moments {kills} of {total}"

    print(f"{num_kills} kills of a site")


def ended(site: Site, within_seconds: float) -> BaseException | None:
    """Let a site attend; return what ended it, if it was an error. Fails if nothing does."""
    said: list[BaseException | None] = []

    def work() -> None:
        try:
            site.attend()
            said.append(None)
        except BaseException as error:
            said.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(within_seconds)
    assert said, "the site is still at it"
    return said[0]


def test_a_site_that_cannot_keep_its_memory_says_nothing_and_ends(tmp_path: Path) -> None:
    config = toy_config("sync-fedavg", 2, learners=1)
    service = found(tmp_path, config, write_first(tmp_path / "first.safetensors"))

    def full(memory: Memory) -> None:
        raise RunError("cannot write the memory: No space left on device")

    (name,) = names_of(config)
    site = toy_site(config, name, InProcessConnection(service, name), keep=full)
    error = ended(site, within_seconds=5.0)

    service.journal.close()
    assert isinstance(error, RunError)
    assert [r for r in journal_of(tmp_path) if r["kind"] in ("arrive", "fail")] == []


def test_a_site_that_is_stopped_ends_though_no_order_comes(tmp_path: Path) -> None:
    config = toy_config("sync-fedavg", 2)  # two others are waited for
    service = found(tmp_path, config, write_first(tmp_path / "first.safetensors"))
    (name, *_) = names_of(config)
    site = toy_site(config, name, InProcessConnection(service, name))
    threading.Timer(0.3, site.stop).start()

    error = ended(site, within_seconds=5.0)

    service.journal.close()
    assert error is None


def test_an_epoch_longer_than_the_lease_does_not_cost_a_site_its_task(tmp_path: Path) -> None:
    """Every step is told, also if the order came before the last answer was put away."""
    config = toy_config("async-fedavg", 2, learners=1, train={"epochs": 1, "lease_seconds": 2.0})
    service = found(tmp_path, config, write_first(tmp_path / "first.safetensors"))
    clockwork = Ticker(service)
    (name,) = names_of(config)
    site = toy_site(
        config,
        name,
        InProcessConnection(service, name),
        step_seconds=1.2,
        keep=lambda memory: time.sleep(0.2),
    )
    error = ended(site, within_seconds=12.0)

    clockwork.stop()
    service.journal.close()
    assert error is None
    assert [r["task"] for r in journal_of(tmp_path) if r["kind"] == "task-expired"] == []
