"""State that is torn, foreign or cannot be written: said so, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.config import Config, load
from metis.core.errors import JournalError, RunError
from metis.core.types import LearnerId, Profile, frozen
from metis.deploy.found import found
from metis.live.agree import agreed, digest_of
from metis.live.host import Clockwork
from metis.live.line import PROTOCOL, Delivery, Farewell, Hello, Receipt, TrainOrder
from metis.live.service import Service
from metis.runtime.journal import EVENTS
from metis.runtime.post import packet_digest
from metis.runtime.replay import replay
from metis.store.claim import claimed
from metis.store.weights import save_first
from tests.live.rig import (
    LAYOUT,
    NUM_CLASSES,
    journal_of,
    names_of,
    toy_config,
    versions_of,
    write_first,
)


@pytest.fixture
def plain(tmp_path: Path) -> Config:
    """A config for learners that are played by hand, and its first model beside it."""
    write_first(tmp_path / "first.safetensors")
    return toy_config("sync-fedavg", 5)


@contextmanager
def kept(config: Config, tmp_path: Path) -> Iterator[Service]:
    service = found(tmp_path / "state", config, tmp_path / "first.safetensors")
    try:
        yield service
    finally:
        with suppress(RunError):
            service.journal.close()


def joined(service: Service, config: Config) -> dict[LearnerId, TrainOrder]:
    """Have everybody join; return the task that each is given."""
    for name in names_of(config):
        profile = Profile(name, 10, 2)
        digest = digest_of(agreed(config))
        service.join(name, Hello(PROTOCOL, LAYOUT.digest, digest, profile, None))
    return orders(service, config)


def orders(service: Service, config: Config) -> dict[LearnerId, TrainOrder]:
    found: dict[LearnerId, TrainOrder] = {}
    for name in names_of(config):
        for order in service.orders(name, wait_seconds=0.0):
            if order is None:
                break
            if isinstance(order, TrainOrder):
                found[name] = order
    return found


def answer(service: Service, name: LearnerId, order: TrainOrder, value: float = 0.5) -> Receipt:
    return service.deliver(name, delivery_for(order), [packet_of(value)])


def delivery_for(order: TrainOrder) -> Delivery:
    return Delivery(order.task, order.version, 10, 4, 0.1, None)


def packet_of(value: float) -> bytes:
    weights = frozen(np.full(LAYOUT.size, value))
    return Dense(LAYOUT).encode(weights, weights)[0]


def model_of(service: Service) -> bytes:
    return service.ledger.controller.current.weights.tobytes()


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_half_a_line_and_what_follows_the_last_event_are_written_anew(
    plain: Config, tmp_path: Path
) -> None:
    with kept(plain, tmp_path) as service:
        for name, order in joined(service, plain).items():
            answer(service, name, order)
        right = model_of(service)
    path = tmp_path / "state" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    records = journal_of(tmp_path / "state")
    last = max(n for n, r in enumerate(records) if r["kind"] in EVENTS)
    path.write_bytes(b"".join(lines[: last + 2]) + lines[-1][:7])
    (tmp_path / "state" / "updates" / "task-9.packet.0123.tmp").write_bytes(b"half of it")

    with kept(plain, tmp_path) as service:
        again = journal_of(tmp_path / "state")

        assert [r["kind"] for r in again] == [*(r["kind"] for r in records), "start"]
        assert versions_of(again) == versions_of(records)
        assert model_of(service) == right
    assert list((tmp_path / "state" / "updates").glob("*.tmp")) == []


def test_a_controller_restarts_with_the_config_file_it_was_founded_with(
    tmp_path: Path,
) -> None:
    config = load(None, policy="sync-dvw", learners=3)
    write_first(tmp_path / "first.safetensors")
    with kept(config, tmp_path):
        pass

    with kept(config, tmp_path) as service:
        assert service.ledger.controller.current.version == 0


@pytest.mark.parametrize("keep", [0.1, 0.9])
def test_a_truncated_checkpoint_is_an_error_that_says_so(
    plain: Config, tmp_path: Path, keep: float
) -> None:
    with kept(plain, tmp_path) as service:
        joined(service, plain)
        service.checkpoint()
    path = tmp_path / "state" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])

    with pytest.raises(JournalError, match=r"checkpoint\.safetensors: not a readable checkpoint"):
        found(tmp_path / "state", plain)


def test_a_journal_shorter_than_its_checkpoint_is_an_error(plain: Config, tmp_path: Path) -> None:
    with kept(plain, tmp_path) as service:
        joined(service, plain)
        service.checkpoint()
    path = tmp_path / "state" / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))

    with pytest.raises(JournalError, match="shorter than its checkpoint says"):
        found(tmp_path / "state", plain)


def test_a_directory_with_a_checkpoint_and_no_journal_is_not_begun_anew(
    plain: Config, tmp_path: Path
) -> None:
    with kept(plain, tmp_path) as service:
        joined(service, plain)
        service.checkpoint()
    (tmp_path / "state" / "journal.jsonl").unlink()

    with pytest.raises(JournalError, match="journal"):
        found(tmp_path / "state", plain)


def test_a_missing_packet_is_an_error_that_names_it(plain: Config, tmp_path: Path) -> None:
    with kept(plain, tmp_path) as service:
        (name, order), *_ = joined(service, plain).items()
        answer(service, name, order)
    (tmp_path / "state" / "updates" / f"task-{order.task}.packet").unlink()

    with pytest.raises(JournalError, match=rf"task-{order.task}\.packet"):
        found(tmp_path / "state", plain)


def test_a_packet_that_is_not_the_one_acknowledged_is_an_error_that_names_it(
    plain: Config, tmp_path: Path
) -> None:
    with kept(plain, tmp_path) as service:
        (name, order), *_ = joined(service, plain).items()
        answer(service, name, order, 0.5)
    (tmp_path / "state" / "updates" / f"task-{order.task}.packet").write_bytes(packet_of(0.25))

    with pytest.raises(JournalError, match=rf"task-{order.task}"):
        found(tmp_path / "state", plain)


def test_the_packet_on_disk_is_the_one_that_was_taken_though_two_came_at_once(
    plain: Config, tmp_path: Path
) -> None:
    """A slow first try is overtaken by a second one with other bytes. One of them arrives."""
    gate = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield packet_of(0.25)[:50]
        gate.wait(10.0)
        yield packet_of(0.25)[50:]

    with kept(plain, tmp_path) as service:
        (name, order), *_ = joined(service, plain).items()
        tries = [
            threading.Thread(target=service.deliver, args=(name, delivery_for(order), packet))
            for packet in (slowly(), iter([packet_of(0.5)]))
        ]
        for one in tries:
            one.start()
            one.join(0.3)
        gate.set()
        for one in tries:
            one.join(10.0)

    (arrived,) = [r for r in journal_of(tmp_path / "state") if r["kind"] == "arrive"]
    on_disk = (tmp_path / "state" / "updates" / f"task-{order.task}.packet").read_bytes()
    assert packet_digest(on_disk) == arrived["digest"]


def test_a_directory_of_another_config_is_refused(plain: Config, tmp_path: Path) -> None:
    with kept(plain, tmp_path):
        pass

    with pytest.raises(RunError, match=r"founded with another config: .*seed is 7 here, 1990 in"):
        found(tmp_path / "state", replace(plain, seed=7))


def test_a_directory_of_another_federation_is_refused(plain: Config, tmp_path: Path) -> None:
    with kept(plain, tmp_path):
        pass
    other = frozen(np.zeros(LAYOUT.size))
    save_first(tmp_path / "state" / "initial.safetensors", other, LAYOUT, NUM_CLASSES)

    with pytest.raises(RunError, match="was begun with another initial"):
        found(tmp_path / "state", plain)


def test_a_directory_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "state"),
        pytest.raises(RunError, match="is in use by another process"),
        claimed(tmp_path / "state"),
    ):
        pytest.fail("both hold it")

    with claimed(tmp_path / "state"):
        pass


def on_files(ending: str, act: Callable[[int], None]) -> Callable[[int], None]:
    """Return an fsync that does something else for one file."""
    sync = os.fsync

    def chosen(descriptor: int) -> None:
        at = os.readlink(f"/proc/self/fd/{descriptor}")
        (act if at.endswith(ending) else sync)(descriptor)

    return chosen


def test_a_controller_whose_journal_finds_the_disk_full_acknowledges_nothing_more(
    plain: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(plain, tmp_path) as service:
        (first, order), (second, other), _ = joined(service, plain).items()
        assert answer(service, first, order).taken
        with monkeypatch.context() as patches:
            patches.setattr(os, "fsync", on_files("journal.jsonl", full))
            with pytest.raises(RunError, match="No space left"):
                answer(service, second, other)

        assert service.broken is not None
        for call in (
            lambda: answer(service, second, other),
            lambda: service.progress(second, other.task, 2),
            lambda: joined(service, plain),
        ):
            with pytest.raises(RunError, match="No space left"):
                call()

    with kept(plain, tmp_path) as service:
        assert answer(service, first, order).taken  # for it was
        assert [r["task"] for r in journal_of(tmp_path / "state") if r["kind"] == "arrive"].count(
            order.task
        ) == 1


def test_a_controller_whose_packets_find_the_disk_full_acknowledges_nothing_more(
    plain: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(plain, tmp_path) as service:
        (first, order), (second, other), _ = joined(service, plain).items()
        assert answer(service, first, order).taken
        with monkeypatch.context() as patches:
            patches.setattr(os, "fsync", on_files(".tmp", full))
            with pytest.raises(RunError, match="No space left"):
                answer(service, second, other)
        arrived = [r["task"] for r in journal_of(tmp_path / "state") if r["kind"] == "arrive"]
        broken = service.broken

    with kept(plain, tmp_path) as service:
        again = [answer(service, first, order), answer(service, second, other)]

    assert arrived == [order.task]
    assert [receipt.taken for receipt in again] == [True, True]
    assert broken is not None, "nobody at the controller would be told"


def test_a_checkpoint_that_finds_the_disk_full_does_not_stop_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the service is broken, so that somebody is told, or leases go on ending."""
    write_first(tmp_path / "first.safetensors")
    config = toy_config(
        "sync-fedavg",
        5,
        train={"lease_seconds": 1.0},
        output={"checkpoint_seconds": 0.01, "keep_updates": True},
    )
    with kept(config, tmp_path) as service:
        joined(service, config)
        died: list[object] = []
        monkeypatch.setattr(threading, "excepthook", died.append)
        monkeypatch.setattr("metis.live.host.write_packed", full_checkpoint)
        clockwork = Clockwork(service)
        time.sleep(2.0)
        clockwork.stop()

        expired = [r for r in journal_of(tmp_path / "state") if r["kind"] == "task-expired"]
        assert died == []
        assert service.broken is not None or len(expired) == 3


def full_checkpoint(path: Path, *what: object) -> NoReturn:
    raise RunError(f"cannot write {path}: No space left on device")


def test_nothing_is_noted_after_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note says that all before it is whole, so a broken controller must not write one."""
    write_first(tmp_path / "first.safetensors")
    config = toy_config("sync-fedavg", 5, download={"codec": "int8"})
    with kept(config, tmp_path) as service:
        given = list(joined(service, config).items())
        for name, order in given[:2]:
            answer(service, name, order)
        with monkeypatch.context() as patches:
            patches.setattr("metis.live.shelf.Shelf.put_version", lambda *_: full_version())
            with pytest.raises(RunError, match="No space left"):
                answer(service, *given[2])
        with suppress(RunError):  # there is space again, and a stranger calls
            service.audit("call refused", "stranger", "no certificate")

    with kept(config, tmp_path) as service:
        assert [v[0] for v in versions_of(journal_of(tmp_path / "state"))] == [1]
        assert service.ledger.controller.current.version == 1
    assert replay(tmp_path / "state").num_versions == 1


def full_version() -> NoReturn:
    raise RunError("cannot write version-1.packet: No space left on device")


def test_orders_end_when_a_site_listens_anew(plain: Config, tmp_path: Path) -> None:
    with kept(plain, tmp_path) as service:
        (name, _), *_ = joined(service, plain).items()
        first = service.orders(name, wait_seconds=0.0)
        assert next(first) is None

        joined(service, plain)

        (last,) = list(first)
        assert isinstance(last, Farewell)
        assert last.over


def test_a_site_that_hangs_up_on_hearing_that_it_is_over_is_not_waited_for(
    plain: Config, tmp_path: Path
) -> None:
    with kept(plain, tmp_path) as service:
        joined(service, plain)
        service.end("versions", over=True)

        for name in names_of(plain):
            heard = service.orders(name, wait_seconds=0.0)
            assert any(isinstance(order, Farewell) for order in heard)
            heard.close()  # type: ignore[attr-defined]

        assert service.everybody_knows()


def test_whatever_ends_an_event_half_way_breaks_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows from it is not in the journal, so no other event may come after it there."""
    write_first(tmp_path / "first.safetensors")
    config = toy_config("sync-fedavg", 5, download={"codec": "int8"})
    with kept(config, tmp_path) as service:
        given = list(joined(service, config).items())
        for name, order in given[:2]:
            answer(service, name, order)

        with monkeypatch.context() as patches:
            patches.setattr("metis.live.shelf.Shelf.put_version", lambda *_: 1 // 0)
            with pytest.raises((ZeroDivisionError, RunError)):
                answer(service, *given[2])

        assert service.broken is not None
