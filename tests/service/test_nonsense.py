"""Answers that no good learner would give: refused with a reason, and nobody else is harmed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import Any

import grpc
import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.codecs.packet import seal
from metis.core.errors import GoneError, HandshakeError, LineError, ModelError
from metis.core.types import Layout, TensorSpec
from metis.service.connection import (
    ModelOf,
    PacketOf,
    SnapshotOf,
    TrainOrder,
    UpdateOf,
)
from metis.service.grpc import wire_pb2 as wire
from tests.certs.consortium import consortium
from tests.service.hub import (
    COUNTS,
    FIRST,
    LAYOUT,
    Hub,
    Member,
    Steady,
    delivery,
    eventually,
    hub,
)

_HUGE = 2**64 - 1


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A controller with mutual TLS, whose tasks end early when nothing is heard of them."""
    sites = consortium(tmp_path_factory.mktemp("sites"))
    settings = ["train.lease_seconds=4.0", "output.keep_updates=true"]
    with hub(tmp_path_factory.mktemp("guarded"), sites, settings=settings) as found:
        yield found


@pytest.fixture(scope="module")
def steady(guarded: Hub) -> Iterator[Steady]:
    found = Steady(guarded)
    assert found.goes_on(1)
    yield found
    found.stop()
    assert found.failures == []


@pytest.fixture
def unharmed(guarded: Hub, steady: Steady) -> Iterator[None]:
    """Whatever happens in a test: memory stays bounded, and a good learner's rounds go on."""
    before = guarded.rss_mib()
    yield
    assert guarded.process.poll() is None
    assert steady.goes_on(), steady.failures
    assert guarded.rss_mib() - before < 64


pytestmark = pytest.mark.usefixtures("unharmed")


# ---- packets ----------------------------------------------------------------------------------


def packet_of(model: Any, layout: Layout = LAYOUT) -> bytes:
    vector = np.asarray(model, dtype=np.float32)
    return Dense(layout).encode(vector, vector)[0]


def one_value(value: float) -> bytes:
    model = FIRST.copy()
    model[7] = value
    return packet_of(model)


OTHER_LAYOUT = Layout((TensorSpec("weight", (3, 21), "dense", 0),))
GOOD = packet_of(FIRST)

PACKETS = {
    "nothing": (b"", "shorter than a header"),
    "half": (GOOD[: len(GOOD) // 2], "checksum|not as it was sent|damaged"),
    "one bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum|not as it was sent|damaged"),
    "too long": (GOOD + b"x", "checksum|not as it was sent|damaged"),
    "garbage": (bytes(range(256)), "does not begin with MTIS"),
    "wrong shape": (packet_of(np.zeros(63), OTHER_LAYOUT), "layout|model"),
    "wrong codec": (seal("int8", LAYOUT, [b"\0" * 63]), "int8"),
    "not a number": (one_value(math.nan), "not finite"),
    "infinite": (one_value(math.inf), "not finite"),
    "minus infinite": (one_value(-math.inf), "not finite"),
}


@pytest.mark.parametrize("what", PACKETS)
def test_a_packet_that_is_no_model_is_refused_and_new_work_given(what: str, guarded: Hub) -> None:
    packet, reason = PACKETS[what]
    with guarded.member(f"clumsy-{what.replace(' ', '-')}") as member:
        order = member.next(TrainOrder)

        receipt = member.answer(order, packet)

        assert not receipt.taken
        assert any(word in receipt.reason for word in reason.split("|")), receipt.reason
        assert member.round().taken
    refused = [r for r in guarded.records("refuse") if r["task"] == order.task]
    assert [r["reason"] for r in refused] == [receipt.reason]


FACTS: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"num_steps": 0}, "it reports 0 steps"),
    "no examples": ({"num_examples": 0}, "on 0 examples"),
    "another version": ({"base_version": 10**6}, "it started from version 1000000"),
    "a version beyond all": ({"base_version": _HUGE}, "it started from version"),
}


@pytest.mark.parametrize("what", FACTS)
def test_an_answer_that_says_what_cannot_be_is_refused(what: str, guarded: Hub) -> None:
    said, reason = FACTS[what]
    with guarded.member(f"liar-{what.replace(' ', '-')}") as member:
        receipt = member.answer(member.next(TrainOrder), **said)

        assert not receipt.taken
        assert reason in receipt.reason


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e308])
def test_seconds_that_no_clock_shows_leave_the_journal_readable(
    seconds: float, guarded: Hub
) -> None:
    with guarded.member("timeless") as member:
        order = member.next(TrainOrder)
        member.answer(order, seconds=seconds)

    found = [r for r in guarded.records("arrive") if r["task"] == order.task]
    assert all(math.isfinite(r["seconds"]) for r in found)


# ---- said twice, too late, or of another ------------------------------------------------------


def test_an_answer_sent_twice_is_counted_once(guarded: Hub) -> None:
    with guarded.member("echo") as member:
        order = member.next(TrainOrder)

        receipts = [member.answer(order) for _ in range(3)]

    assert [receipt.taken for receipt in receipts] == [True] * 3  # the last says that it was
    arrived = [r for r in guarded.records("arrive") if r["task"] == order.task]
    assert len(arrived) == 1
    folds = [f for r in guarded.records("version") for f in r["folds"] if f["task"] == order.task]
    assert len(folds) <= 1


def test_an_answer_sent_many_times_at_once_is_counted_once(guarded: Hub) -> None:
    with guarded.member("chorus") as member:
        order = member.next(TrainOrder)

        def answer(_: int) -> bool | str:
            try:
                return member.answer(order).taken
            except LineError as error:
                return str(error)

        with ThreadPoolExecutor(6) as pool:
            told = list(pool.map(answer, range(6)))

    assert True in told
    assert all(one is True or "too many deliveries" in str(one) for one in told)  # two at once
    assert len([r for r in guarded.records("arrive") if r["task"] == order.task]) == 1


def test_an_old_tasks_answer_is_not_taken_again(guarded: Hub) -> None:
    with guarded.member("nostalgic") as member:
        old = member.next(TrainOrder)
        assert member.answer(old).taken
        assert member.round().taken

        receipt = member.answer(old)

    assert not receipt.taken
    assert receipt.reason == "no such task is open for this learner"
    assert len([r for r in guarded.records("arrive") if r["task"] == old.task]) == 1


@pytest.mark.parametrize("task", [0, 10**6, 10**18, _HUGE])
def test_a_task_that_never_was_is_refused(task: int, guarded: Hub) -> None:
    with guarded.member("dreamer") as member:
        order = member.next(TrainOrder)

        receipt = member.answer(replace(order, task=task))
        standing = member.line.progress(task, 1)
        member.line.fail(task, "there was none")
        member.line.score(task, COUNTS)

        assert not receipt.taken
        assert receipt.reason == "no such task is open for this learner"
        assert not standing.is_open
        assert member.answer(order).taken


def test_whoever_has_left_is_told_that_nothing_is_open(guarded: Hub) -> None:
    with guarded.member("gone") as member:
        order = member.next(TrainOrder)
        member.line.leave(withdraw=False)

        receipt = member.answer(order)

    assert not receipt.taken
    assert receipt.reason == "no such task is open for this learner"


# ---- items ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *((kind, 0) for kind in (PacketOf, UpdateOf, ModelOf)),  # snapshot 0 is the first model
        *product((SnapshotOf, PacketOf, UpdateOf, ModelOf), (10**9, 10**18, _HUGE)),
    ],
)
def test_an_item_that_never_was_cannot_be_had(kind: Any, number: int, guarded: Hub) -> None:
    with guarded.line("curious") as line, pytest.raises(ModelError):
        b"".join(line.fetch(kind(number)))


def test_an_item_without_a_kind_cannot_be_had(guarded: Hub) -> None:
    with guarded.bare("curious") as bare:
        call = bare.method("Fetch", "unary_stream", wire.Chunk)

        with pytest.raises(grpc.RpcError) as caught:
            list(call(wire.Item()))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no name that is known here" in caught.value.details()


def test_a_learner_cannot_read_the_update_of_another_that_it_was_not_asked_to_judge(
    guarded: Hub,
) -> None:
    with guarded.member("private") as member:
        order = member.next(TrainOrder)
        assert member.answer(order).taken
    with guarded.line("spy") as line, pytest.raises(GoneError, match="not for spy to judge"):
        b"".join(line.fetch(UpdateOf(order.task)))


# ---- streams ----------------------------------------------------------------------------------


def test_a_stream_longer_than_any_packet_is_refused_early(guarded: Hub) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2000):  # 2 GB, if nobody says stop
            sent += 1
            yield bytes(1 << 20)

    with guarded.member("flood") as member:
        disk = guarded.disk_mib()
        order = member.next(TrainOrder)
        try:
            reason = member.line.deliver(delivery(order), endless()).reason
        except LineError as error:  # it said no and hung up before it was asked
            reason = str(error)
        most = guarded.disk_mib() - disk
        assert member.round().taken

    assert sent < 100
    assert most < 8
    refused = [r["reason"] for r in guarded.records("refuse") if r["task"] == order.task]
    assert refused
    assert "longer than" in refused[0]
    assert "longer than" in reason


def test_a_stream_that_never_ends_does_not_outlive_the_lease_of_its_task(guarded: Hub) -> None:
    """Pieces without a byte are no progress; who sends them for ever must not keep its task."""
    over = threading.Event()

    def nothing_at_all() -> Iterator[bytes]:
        while not over.wait(0.5):
            yield b""

    with guarded.member("dawdler") as member:
        order = member.next(TrainOrder)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(member.line.deliver, delivery(order), nothing_at_all())

            def expired() -> bool:
                return any(r["task"] == order.task for r in guarded.records("task-expired"))

            in_time = eventually(expired, seconds=10)
            over.set()
            sending.exception(timeout=20)

    assert in_time


def test_streams_that_stall_are_few_and_the_next_is_put_off(guarded: Hub) -> None:
    """At most 8 calls of one learner are under way at once, and of these 2 deliveries."""
    over = threading.Event()

    with guarded.bare("stalling") as bare, guarded.line("stalling") as line:
        line.join(guarded.hello("stalling"))
        order = next(iter(line.orders()))
        assert isinstance(order, TrainOrder)

        def slow() -> Iterator[wire.DeliveryPart]:
            yield wire.DeliveryPart(delivery=wire.Delivery(task=order.task))
            over.wait(30)

        call = bare.method("Deliver", "stream_unary", wire.Receipt)
        under_way = [call.future(slow(), metadata=bare.metadata) for _ in range(40)]
        put_off = eventually(lambda: sum(call.done() for call in under_way) >= 32, 20)
        codes = [call.code() for call in under_way if call.done()]
        details = [call.details() for call in under_way if call.done()]
        over.set()
        for one in under_way:
            one.cancel()
        free_again = eventually(lambda: _can_ask(line), 10)
        line.leave(withdraw=False)

    assert put_off
    assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all(
        "which is all it may have; try again later" in detail or "too many deliveries" in detail
        for detail in details
    )
    assert free_again
    # A slow machine may refuse them one by one, as deliveries, before eight are there at once.
    if any("which is all it may have" in detail for detail in details):
        assert any("calls under way" in line for line in guarded.audits("stalling"))


def test_learners_that_stall_together_do_not_keep_the_others_out(
    guarded: Hub, steady: Steady
) -> None:
    """Six of eight learners, each with all the calls that it may have and not a word on them."""
    over = threading.Event()

    def silent() -> Iterator[wire.DeliveryPart]:
        over.wait(30)
        yield wire.DeliveryPart()

    with ExitStack() as stack:
        for number in range(6):
            bare = stack.enter_context(guarded.bare(f"stalling-{number}"))
            call = bare.method("Deliver", "stream_unary", wire.Receipt)
            for _ in range(8):
                stack.callback(call.future(silent(), metadata=bare.metadata).cancel)
        time.sleep(1)

        goes_on = steady.goes_on(seconds=8)
        over.set()

    assert goes_on


def _can_ask(line: Any) -> bool:
    try:
        line.progress(1, 1)
    except LineError:
        return False
    return True


# ---- too much ---------------------------------------------------------------------------------


def test_a_learner_that_calls_thousands_of_times_a_second_is_put_off(
    guarded: Hub, steady: Steady
) -> None:
    rounds, began = steady.num_taken, time.monotonic()
    codes: list[Any] = []
    with guarded.bare("hectic") as bare:
        call = bare.method("Progress", "unary_unary", wire.Standing)
        report = wire.ProgressReport(task=1, num_steps=1)
        while time.monotonic() - began < 3:
            under_way = [call.future(report, metadata=bare.metadata) for _ in range(100)]
            codes += [one.code() for one in under_way]
    took = time.monotonic() - began
    let_in = codes.count(grpc.StatusCode.OK)

    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert let_in <= 400 + 200 * (took + 1)
    assert steady.num_taken - rounds >= 3
    assert guarded.audits("hectic")
    assert len(guarded.audits("hectic")) <= 2 + took / 5  # by rate, and by calls at once


def test_bytes_that_are_no_message_are_refused_like_anything_else(guarded: Hub) -> None:
    """In words, no more often than other calls, and with nothing left of them in memory.

    gRPC for Python keeps some 16 kB for ever of each request that its deserializer could not read.
    """
    codes: list[Any] = []
    with guarded.bare("babbler") as bare:
        call = bare.method("Progress", "unary_unary")
        for number in range(15):
            if number == 5:  # by now it has the threads and buffers that it takes
                before = guarded.rss_mib()
            under_way = [call.future(b"\xff\xff", metadata=bare.metadata) for _ in range(200)]
            codes += [one.code() for one in under_way]
        grown = guarded.rss_mib() - before

    assert set(codes) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert grown < 10


def test_huge_reasons_and_tracebacks_are_cut(guarded: Hub) -> None:
    with guarded.member("wordy") as member:
        order = member.next(TrainOrder)
        disk = guarded.disk_mib()

        member.line.fail(order.task, "r" * 1_500_000, "t" * 1_500_000)
        grown = guarded.disk_mib() - disk

    (found,) = [r for r in guarded.records("fail") if r["task"] == order.task]
    assert len(found["reason"]) <= 2000
    assert len(found["traceback"]) <= 20_000
    assert grown < 1


def test_what_a_site_says_cannot_paint_on_the_operators_terminal(guarded: Hub) -> None:
    with guarded.member("painter") as member:
        order = member.next(TrainOrder)
        member.line.fail(order.task, "\x1b[2J\x1b[31m\nmallory is the operator", "\x1b]0;own\x07\n")

    assert eventually(lambda: "painter" in guarded.said())
    assert "\x1b" not in guarded.said()
    assert not any(line.startswith("mallory") for line in guarded.said().splitlines())


def test_answers_to_nothing_by_the_hundred_fill_neither_disk_nor_memory(guarded: Hub) -> None:
    """Each is within the rate; a learner that sends them for a day must not fill the disk."""
    with guarded.line("mumbler") as line:
        line.join(guarded.hello("mumbler"))
        line.leave(withdraw=False)
        disk = guarded.disk_mib()
        for number in range(200):
            line.fail(10**6 + number, "r" * 2000, "t" * 20_000)
        grown = guarded.disk_mib() - disk

    assert grown < 0.5


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ({"group": "g" * 1_000_000}, "at most 64 characters"),
        ({"group": "two\nlines"}, "at most 64 characters"),
        ({"num_examples": 0}, "it needs at least one"),
        ({"steps_per_epoch": 0}, "it needs at least one"),
    ],
)
def test_a_site_that_says_odd_things_of_itself_is_not_taken_in(
    profile: dict[str, Any], reason: str, guarded: Hub
) -> None:
    hello = guarded.hello("peculiar")
    with guarded.line("peculiar") as line, pytest.raises(HandshakeError, match=reason):
        line.join(replace(hello, profile=replace(hello.profile, **profile)))


@pytest.mark.parametrize("holds", [(5, 1), (_HUGE, _HUGE), (0, _HUGE), (10**6, 10**6)])
def test_versions_that_never_were_do_not_confuse_what_a_site_is_sent(
    holds: tuple[int, int], guarded: Hub
) -> None:
    with guarded.line("prophet") as line:
        member = Member("prophet", line, guarded.hello("prophet", holds=holds))
        member.join()

        order = member.next(TrainOrder)

        assert order.items == (SnapshotOf(order.version),)
        assert member.answer(order).taken
        line.leave(withdraw=False)


def test_a_controller_among_nonsense_says_nothing_unforeseen(guarded: Hub) -> None:
    """Last of those that share a controller."""
    said = guarded.said()

    assert "Traceback" not in said, said[said.index("Traceback") :][:3000]
