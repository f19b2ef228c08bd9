"""What every store of packets must do."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from metis.core.errors import JournalError, ModelError
from metis.storage.packets import InMemory, OnDisk, Packets, Piece

MANY = 1 << 30


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Packets:
    return InMemory() if request.param == "memory" else OnDisk(tmp_path / "packets")


def put(store: Packets, name: str, chunks: Iterable[Piece], max_bytes: int) -> bytes:
    """Receive a packet and keep it."""
    held = store.take(chunks, max_bytes)
    store.keep(name, held)
    return bytes(held.content)


def test_a_packet_that_is_not_kept_changes_nothing(store: Packets) -> None:
    put(store, "task-1", [b"acknowledged"], MANY)

    held = store.take([b"another"], MANY)
    between = store.get("task-1")
    store.discard(held)

    assert between == store.get("task-1") == b"acknowledged"
    assert store.names() == {"task-1"}


def test_a_packet_comes_back_as_it_came_in(store: Packets) -> None:
    kept = put(store, "task-1", [b"one", b"", memoryview(b"two")], MANY)

    assert kept == b"onetwo"
    assert store.get("task-1") == b"onetwo"
    assert b"".join(store.chunks("task-1")) == b"onetwo"


def test_an_empty_packet_is_a_packet(store: Packets) -> None:
    assert put(store, "task-1", [], MANY) == b""
    assert store.get("task-1") == b""
    assert store.names() == {"task-1"}


def test_a_second_packet_of_one_name_replaces_the_first(store: Packets) -> None:
    put(store, "task-1", [b"first"], MANY)
    put(store, "task-1", [b"second"], MANY)

    assert store.get("task-1") == b"second"


def test_a_packet_that_is_not_there_is_told_by_its_name(store: Packets) -> None:
    with pytest.raises(JournalError, match="task-7"):
        store.get("task-7")
    with pytest.raises(JournalError, match="task-7"):
        next(store.chunks("task-7"))


def test_a_packet_that_is_too_long_leaves_nothing(store: Packets) -> None:
    put(store, "task-1", [b"as it was"], MANY)

    with pytest.raises(ModelError, match="longer than the 5 bytes"):
        put(store, "task-1", [b"123", b"456"], max_bytes=5)

    assert store.get("task-1") == b"as it was"
    assert put(store, "task-2", [b"12345"], max_bytes=5) == b"12345"


def test_a_stream_that_breaks_leaves_nothing(store: Packets) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ModelError("the line went down")

    with pytest.raises(ModelError, match="went down"):
        put(store, "task-1", broken(), MANY)

    assert store.names() == set()
    with pytest.raises(JournalError):
        store.get("task-1")


def test_dropping_forgets_and_may_be_done_twice(store: Packets) -> None:
    put(store, "task-1", [b"x"], MANY)
    put(store, "version-1", [b"y"], MANY)

    store.drop("task-1")
    store.drop("task-1")

    assert store.names() == {"version-1"}


@pytest.mark.parametrize(
    "name", ["", "task", "../task-1", "task-1/x", "Task-1", "task-", "task--1"]
)
def test_a_name_that_is_none_is_refused(store: Packets, name: str) -> None:
    with pytest.raises(ValueError, match="no name"):
        put(store, name, [b"x"], MANY)


def test_a_long_packet_is_read_in_pieces(store: Packets) -> None:
    packet = bytes(range(256)) * 10_000
    put(store, "task-1", [packet], MANY)

    pieces = list(store.chunks("task-1"))

    assert len(pieces) > 1
    assert b"".join(pieces) == packet


def test_a_packet_that_is_sent_again_does_not_meet_its_first_half(store: Packets) -> None:
    def cut_off() -> Iterator[bytes]:
        yield b"first "
        put(store, "task-1", [b"whole"], MANY)
        yield b"half"
        raise ModelError("the line went down")

    with pytest.raises(ModelError):
        put(store, "task-1", cut_off(), MANY)

    assert store.get("task-1") == b"whole"


def test_packets_on_disk_are_there_for_the_next_process(tmp_path: Path) -> None:
    put(OnDisk(tmp_path), "task-3", [b"kept"], MANY)
    (tmp_path / "task-4.packet.tmp").write_bytes(b"half of one")

    again = OnDisk(tmp_path)

    assert again.get("task-3") == b"kept"
    assert again.names() == {"task-3"}
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_packet_is_read_from_disk_piece_by_piece(tmp_path: Path) -> None:
    store = OnDisk(tmp_path)
    put(store, "task-1", (bytes(1 << 20) for _ in range(64)), MANY)
    tracemalloc.start()

    for _ in store.chunks("task-1"):
        pass

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_room_for_the_longest_packet_is_not_taken_before_it_comes(store: Packets) -> None:
    before = resident_bytes()

    kept = [put(store, f"task-{number}", [b"short"], MANY) for number in range(8)]

    assert kept == [b"short"] * 8
    assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
