"""What one learner, or somebody who is none, can make a controller do: little, and not for long."""

from __future__ import annotations

import resource
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from metis.codecs.dense import Dense
from metis.core.errors import HandshakeError, LineError, ModelError
from metis.core.types import LearnerId
from metis.service.connection import Delivery, Receipt, SnapshotOf, TrainOrder
from metis.service.grpc import messages as convert
from metis.service.grpc import wire_pb2 as wire
from metis.service.grpc.client import GrpcConnection
from metis.service.in_process import InProcessConnection
from metis.service.mirror import Mirror
from metis.service.site import Memory, Site
from metis.storage.packets import OnDisk, Piece
from tests.certs.consortium import consortium
from tests.service.hub import DENSE, FIRST, Hub, delivery, hub
from tests.service.toy import Toy, equipment_of, eventually, federation

A = LearnerId("a")


# ---- one process, or two of one name ------------------------------------------------------------


def test_a_call_to_join_that_comes_late_does_not_send_its_own_site_home() -> None:
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        attending = found.site(Toy("a", 0.01), found.line("a"))
        assert eventually(lambda: found.of("version"))
        hello = found.hello("a")

        found.service.join(A, replace(hello, instance=attending.site._instance))
        before = len(found.of("version"))

        assert eventually(lambda: len(found.of("version")) > before + 3)
        assert attending.ended == []


def test_a_call_to_join_of_a_former_process_that_comes_late_does_not_send_the_newer_home() -> None:
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        former = replace(found.hello("a"), instance="former")
        found.service.join(A, former)
        newer = found.site(Toy("a", 0.01), found.line("a"))
        assert eventually(lambda: found.of("version"))

        with pytest.raises(HandshakeError, match="has joined from somewhere else"):
            found.service.join(A, former)

        before = len(found.of("version"))
        assert eventually(lambda: len(found.of("version")) > before + 3)
        assert newer.ended == []
        assert len(found.of("join")) == 2
        (audit,) = found.of("audit")
        assert "has joined from somewhere else" in audit["reason"]


# ---- memory -------------------------------------------------------------------------------------


def test_a_few_bytes_that_speak_of_a_large_matrix_take_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(ModelError, match="5000 classes came to a federation that has 10"):
        convert.counts_of(wire.Counts(classes=wire.ClassCounts(num_classes=5000)), 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 1 << 20


def test_orders_that_nobody_reads_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metis.service.coordinator._MOST_ORDERS", 50)
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        service = found.service
        service.join(A, found.hello("a"))
        for _ in range(200):
            service.fail(A, service.ledger.controller.task_of[A], "no")
        waiting = service._desk.site(A).orders.qsize()
        service.join(A, found.hello("a"))
        order = next(iter(service.orders(A)))

    assert waiting <= 50
    assert isinstance(order, TrainOrder)


# ---- the disk -----------------------------------------------------------------------------------


def test_whatever_a_learner_is_turned_away_for_a_few_lines_are_written() -> None:
    with federation("async-fedavg", learners=2, versions=None, size=1000) as found:
        service, hello = found.service, found.hello("a")
        service.join(A, hello)
        for number in range(300):
            answer = Delivery(1000 + number, 0, 1, 1, 0.0, None)
            assert not service.deliver(A, answer, iter([b"x"])).taken
            with pytest.raises(HandshakeError):
                service.join(A, replace(hello, config=f"config {number}"))
            service.leave(LearnerId("nobody"), withdraw=False)

        assert len(found.of("audit", what="answer refused")) == 1
        assert len(found.of("audit", what="handshake refused")) == 1
        assert len(found.of("leave")) == 1


# ---- leases -------------------------------------------------------------------------------------


def test_to_fetch_the_same_model_again_and_again_is_no_progress() -> None:
    with federation(
        "async-fedavg", learners=1, versions=None, size=1000, lease_seconds=0.6
    ) as found:
        found.service.join(A, found.hello("a"))

        def fetch_and_look() -> bool:
            for _ in found.service.fetch(A, SnapshotOf(0)):
                pass
            return bool(found.of("task-expired"))

        assert eventually(fetch_and_look, 5.0)


# ---- connections --------------------------------------------------------------------------------


def test_silent_connections_leave_room_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 256))
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        found.site(Toy("a", 0.01), found.line("a"))
        assert eventually(lambda: found.of("version"))
        silent = [socket.create_connection(("127.0.0.1", found.port)) for _ in range(200)]
        try:
            for one in silent:
                one.setblocking(False)
            few = eventually(lambda: sum(map(_is_open, silent)) <= 128)
            before = len(found.of("version"))

            assert few
            assert eventually(lambda: len(found.of("version")) > before + 3)
        finally:
            for one in silent:
                one.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16) != b""  # what a server says first may lie there
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_when_no_more_files_can_be_opened_a_packet_is_put_off_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OnDisk(tmp_path)

    def none_left(*arguments: Any, **more: Any) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patches:
        patches.setattr("builtins.open", none_left)
        with pytest.raises(LineError, match="too many connections"):
            store.take([b"x"], 100)

    store.keep("task-1", store.take([b"x"], 100))
    assert store.get("task-1") == b"x"


def test_plain_text_does_not_go_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with federation(learners=1, size=1000) as found:
        line = GrpcConnection(f"127.0.0.1:{found.port}", "a")
        try:
            assert line.charter().layout == found.layout.digest
        finally:
            line.close()


# ---- health and reflection ----------------------------------------------------------------------

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("limits")
    with hub(root, consortium(root / "sites")) as found:
        yield found


def check(found: Hub, name: str, service: str = "") -> Any:
    with found.bare(name) as bare:
        ask = bare.method("Check", "unary_unary", health_pb2.HealthCheckResponse, HEALTH)
        return ask(health_pb2.HealthCheckRequest(service=service), timeout=10)


def test_a_controller_says_that_it_serves(guarded: Hub) -> None:
    for service in ("", "metis.v1.Federation"):
        assert check(guarded, "watchman", service).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check(guarded, "watchman", "metis.v1.Nothing")

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("service", "method", "kind"),
    [(HEALTH, "Watch", "unary_stream"), (REFLECTION, "ServerReflectionInfo", "stream_stream")],
)
def test_what_is_not_offered_cannot_be_called(
    guarded: Hub, service: str, method: str, kind: str
) -> None:
    with guarded.bare("watchman") as bare:
        call = bare.method(method, kind, None, service)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b""]) if kind == "stream_stream" else b"", timeout=10))

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


class Picky(InProcessConnection):
    """A line on which the first answer is no good, whatever it is."""

    num_refused = 0

    def deliver(self, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        if self.num_refused == 0:
            self.num_refused += 1
            raise ModelError("what came is no delivery")
        return super().deliver(delivery, packet)


def test_an_answer_of_an_earlier_life_that_is_no_good_is_given_up() -> None:
    """Its site would else end by it at every start."""
    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        memory = Memory(answer=(Delivery(99, 0, 1, 1, 0.0, None), b"x"), last_task=99)
        attending = found.site(Toy("a", 0.01), Picky(found.service, A), memory=memory)

        assert eventually(lambda: found.of("version"))
        assert "task 99 failed: what came is no delivery" in attending.news
        assert attending.ended == []


# ---- tracebacks, and an end in the middle of a delivery -----------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_where_a_trainer_failed_is_told_if_its_site_shares_that(shared: bool) -> None:
    def fall(task: Any, step: int) -> None:
        raise ValueError("a secret of this hospital")

    with federation("async-fedavg", learners=1, versions=None, size=1000) as found:
        codec = Dense(found.layout)
        equipment = equipment_of(Toy("a", on_step=fall), found.layout)
        line = found.line("a")
        site = Site(equipment, line, Mirror(codec, codec), Memory(), share_tracebacks=shared)
        thread = threading.Thread(target=site.attend, daemon=True)
        thread.start()
        assert eventually(lambda: found.of("fail"))
        site.stop()
        thread.join(10)
        (failure, *_) = found.of("fail")

    assert failure["reason"] == "ValueError: a secret of this hospital"
    assert ("in fall" in failure.get("traceback", "")) == shared


def test_a_delivery_under_way_is_taken_before_a_controller_stops(tmp_path: Path) -> None:
    with hub(tmp_path, consortium(tmp_path / "sites")) as found, found.line("last") as line:
        line.join(found.hello("last"))
        order = next(order for order in line.orders() if isinstance(order, TrainOrder))
        packet, _ = DENSE.encode(FIRST, FIRST)
        half_way = threading.Event()
        codes: list[int] = []

        def slowly() -> Iterator[bytes]:
            yield packet[:100]
            half_way.set()
            time.sleep(1.0)
            yield packet[100:]

        def stop() -> None:
            half_way.wait(10)
            codes.append(found.stop())

        thread = threading.Thread(target=stop)
        thread.start()
        receipt = line.deliver(delivery(order), slowly())
        thread.join(60)

    assert receipt == Receipt(True)
    assert codes == [0]
