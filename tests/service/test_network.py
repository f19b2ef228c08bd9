"""A bad network costs time and nothing else: what is lost is said again, and counts once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from metis.core.types import Counts
from metis.service.connection import Connection, Delivery, Hello, ProgressReply, Receipt, Welcome
from metis.service.grpc import server as rpc
from metis.service.in_process import InProcessConnection
from tests.certs.consortium import consortium
from tests.service.proxy import Proxy, Storm
from tests.service.toy import Attending, Federation, Toy, eventually, federation, impatient

NAMES = ("learner-01", "learner-02", "learner-03")
STEP_SECONDS = 0.03
WRONG = ("fail", "refuse", "task-expired", "evaluation-expired")
PACKET_BYTES = 200_000  # about: a model of 50,000 weights

__all__ = ["impatient"]


@pytest.fixture(scope="module")
def calm() -> list[str]:
    """The versions of a federation without a network."""
    with federation() as found:
        for name in NAMES:
            found.site(Toy(name), InProcessConnection(found.service, Toy(name).name))
        assert found.finishes()
        return found.versions()


def begun(found: Federation, step_seconds: float = STEP_SECONDS) -> list[Proxy]:
    """Let everybody attend, each through a proxy of its own."""
    proxies = [found.proxy() for _ in NAMES]
    for name, proxy in zip(NAMES, proxies, strict=True):
        found.site(Toy(name, step_seconds), found.line(name, proxy.port))
    return proxies


def unanswered(found: Federation) -> list[str]:
    """Return what went wrong for good: a synchronous run without it is the same as any other."""
    return [str(record) for record in found.of(*WRONG)]


def num_joins(found: Federation) -> int:
    return len(found.of("join"))


def fail_report(sites: Iterable[Attending]) -> str:
    return "\n".join(f"{one.ended} {one.news[-5:]}" for one in sites)


# ---- one fault at a time ------------------------------------------------------------------------


def drop(proxy: Proxy) -> None:
    proxy.drop()


def delay(proxy: Proxy) -> None:
    proxy.delay_seconds = 0.01


def throttle(proxy: Proxy) -> None:
    proxy.bytes_per_second = 2e6


def cut_upwards(proxy: Proxy) -> None:
    proxy.cut_after(PACKET_BYTES // 2, "up")


def cut_downwards(proxy: Proxy) -> None:
    proxy.cut_after(PACKET_BYTES // 2, "down")


def half_open(proxy: Proxy) -> None:
    proxy.freeze()


def nobody_home(proxy: Proxy) -> None:
    proxy.refuses = True
    proxy.drop()
    threading.Timer(0.5, proxy.calm).start()


@pytest.mark.parametrize(
    ("fault", "sign", "breaks"),
    [
        (drop, "drop", True),
        (delay, "delay", False),
        (throttle, "delay", False),
        (cut_upwards, "cut", True),
        (cut_downwards, "cut", True),
        (half_open, "freeze", True),
        (nobody_home, "refuse", True),
    ],
)
def test_a_fault_of_the_network_changes_no_byte(
    fault: Callable[[Proxy], None], sign: str, breaks: bool, calm: list[str], impatient: None
) -> None:
    with federation() as found:
        proxies = begun(found)
        assert eventually(lambda: all("training" in str(one.news) for one in found.attending))
        for proxy in proxies:
            fault(proxy)
        finished = found.finishes()

        assert finished, fail_report(found.attending)
        assert [sign in proxy.happened for proxy in proxies] == [True] * len(NAMES)
        assert unanswered(found) == []
        assert found.versions() == calm
        assert num_joins(found) >= len(NAMES) + breaks * len(NAMES)


def test_a_packet_cut_in_the_middle_is_delivered_again(impatient: None) -> None:
    with federation("async-fedavg", learners=1, versions=None) as found:
        proxy = found.proxy()
        found.site(Toy(NAMES[0], 0.02), found.line(NAMES[0], proxy.port))
        for num_arrived in range(8):
            proxy.cut_after(PACKET_BYTES // 2, "up")
            again = eventually(lambda n=num_arrived: len(found.of("arrive")) > n)  # type: ignore[misc]
            assert again, fail_report(found.attending)

        assert proxy.happened.count("cut") >= 8
        assert unanswered(found) == []
        tasks = [record["task"] for record in found.of("arrive")]
        assert len(tasks) == len(set(tasks))


def test_a_half_open_connection_is_noticed(impatient: None) -> None:
    with federation(versions=None) as found:
        (proxy, *_) = begun(found)
        assert eventually(lambda: found.of("version"))
        before = len(found.of("join", learner=NAMES[0]))

        proxy.freeze()
        began = time.monotonic()
        noticed = eventually(lambda: len(found.of("join", learner=NAMES[0])) > before)

        assert noticed
        assert time.monotonic() - began < 3.0  # two times 0.4 s, and then it dials again


def test_in_earnest_a_dead_connection_is_given_up_within_a_minute() -> None:
    options = dict(rpc.OPTIONS)

    # Measured with grpcio 1.85: with keepalive time and timeout of 0.4 s each, a frozen
    # connection was still open after 60 s; with this option set as well, it was given up in 1.2 s.
    waits = (options["grpc.keepalive_time_ms"], options.get("grpc.http2.ping_timeout_ms", 60_000))

    assert sum(int(wait) for wait in waits) <= 60_000


# ---- bytes that were never sent -----------------------------------------------------------------


def test_bytes_said_twice_break_a_connection_with_tls_and_change_nothing(
    tmp_path: Path, calm: list[str], impatient: None
) -> None:
    with federation(sites=consortium(tmp_path)) as found:
        proxies = begun(found)
        assert eventually(lambda: len(found.of("task")) == len(NAMES))
        for proxy in proxies:
            proxy.double_after(PACKET_BYTES // 2, "up")
            proxy.double_after(PACKET_BYTES // 2, "down")
        finished = found.finishes()

        assert finished, fail_report(found.attending)
        assert all(proxy.happened.count("double") == 2 for proxy in proxies)
        assert all(proxy.num_connections > 1 for proxy in proxies)
        assert num_joins(found) >= 2 * len(NAMES)
        assert unanswered(found) == []
        assert found.versions() == calm


@pytest.mark.parametrize("num_bytes", [3_000, PACKET_BYTES // 2, PACKET_BYTES])
def test_bytes_said_twice_in_plain_text_do_not_end_a_federation(
    num_bytes: int, impatient: None
) -> None:
    with federation() as found:
        proxies = begun(found)
        assert eventually(lambda: len(found.of("task")) == len(NAMES))
        for proxy in proxies:
            proxy.double_after(num_bytes, "up")
            proxy.double_after(num_bytes, "down")
        finished = found.finishes()

        assert finished, fail_report(found.attending)
        assert len(found.versions()) == 3
        assert all("double" in proxy.happened for proxy in proxies)


# ---- calls that are made twice ------------------------------------------------------------------


class Twice:
    """A line on which everything that can change something is said twice."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.charter, self.orders, self.fetch = line.charter, line.orders, line.fetch

    def join(self, hello: Hello) -> Welcome:
        self._line.join(hello)
        return self._line.join(hello)

    def progress(self, task: int, num_steps: int) -> ProgressReply:
        self._line.progress(task, num_steps)
        return self._line.progress(task, num_steps)

    def deliver(self, delivery: Delivery, packet: Iterable[bytes | memoryview]) -> Receipt:
        chunks = list(packet)
        first = self._line.deliver(delivery, iter(chunks))
        second = self._line.deliver(delivery, iter(chunks))
        assert first == second
        return second

    def fail(self, task: int, reason: str, traceback: str = "") -> None:
        self._line.fail(task, reason, traceback)
        self._line.fail(task, reason, traceback)

    def score(self, evaluation: int, counts: Counts | None) -> None:
        self._line.score(evaluation, counts)
        self._line.score(evaluation, counts)

    def leave(self, withdraw: bool) -> None:
        self._line.leave(withdraw)
        self._line.leave(withdraw)


def test_what_is_said_twice_counts_once(calm: list[str]) -> None:
    with federation() as found:
        for name in NAMES:
            found.site(Toy(name), Twice(found.line(name)))
        finished = found.finishes()

        assert finished, fail_report(found.attending)
        assert unanswered(found) == []
        assert found.versions() == calm
        assert num_joins(found) == 2 * len(NAMES)
        for kind, key in (("arrive", "task"), ("score", "evaluation")):
            numbers = [record[key] for record in found.of(kind)]
            assert len(numbers) == len(set(numbers))


def failing_once(found: Federation, said: Callable[[Connection], Connection]) -> list[str]:
    """Return the versions of a federation in which one learner fails at its second task."""

    def fall(task: Any, step: int) -> None:
        if task.ordinal == 2:
            raise RuntimeError("out of memory")

    for name in NAMES:
        on_step = fall if name == NAMES[0] else lambda task, step: None
        found.site(Toy(name, on_step=on_step), said(found.line(name)))
    assert found.finishes(), fail_report(found.attending)
    return found.versions()


def test_a_failure_said_twice_counts_once() -> None:
    with federation() as found:
        once = failing_once(found, lambda line: line)
    with federation() as found:
        twice = failing_once(found, Twice)

        reasons = {record["reason"] for record in found.of("refuse", learner=NAMES[0])}
        assert twice == once
        assert "RuntimeError: out of memory" in reasons


def test_an_answer_sent_again_long_after_is_acknowledged_again(impatient: None) -> None:
    with federation(learners=1, versions=None) as found:
        delivered: list[tuple[Delivery, list[bytes | memoryview]]] = []

        class Recorded(Twice):
            def deliver(self, delivery: Delivery, packet: Iterable[bytes | memoryview]) -> Receipt:
                chunks = list(packet)
                delivered.append((delivery, chunks))
                return self._line.deliver(delivery, iter(chunks))

        line = found.line(NAMES[0])
        found.site(Toy(NAMES[0], STEP_SECONDS), Recorded(line))
        assert eventually(lambda: len(delivered) > 2)
        delivery, chunks = delivered[0]

        receipt = line.deliver(delivery, iter(chunks))

        assert not receipt.taken  # it was, but two tasks ago; nothing may be counted twice
        assert "no such task is open" in receipt.reason
        assert len(found.of("arrive", task=delivery.task)) == 1


# ---- all of it ----------------------------------------------------------------------------------


def weathered(found: Federation, seed: int, seconds: float, every_seconds: float) -> list[Proxy]:
    """Let a storm go over a federation for so long, then let it finish in peace."""
    proxies = begun(found)
    storm = Storm(proxies, seed, every_seconds)
    time.sleep(seconds)
    storm.end()
    return proxies


@pytest.mark.parametrize("seed", [1, 2])
def test_a_federation_comes_through_a_storm_as_if_there_had_been_none(
    seed: int, tmp_path: Path, calm: list[str], impatient: None
) -> None:
    with federation(sites=consortium(tmp_path)) as found:
        proxies = weathered(found, seed, seconds=2.0, every_seconds=0.15)
        finished = found.finishes()

        assert finished, fail_report(found.attending)
        assert sum(len(set(proxy.happened)) for proxy in proxies) >= 3
        assert unanswered(found) == []
        assert found.versions() == calm


def test_an_asynchronous_federation_comes_through_a_storm(tmp_path: Path, impatient: None) -> None:
    with federation("async-dvw", versions=None, sites=consortium(tmp_path)) as found:
        weathered(found, seed=3, seconds=2.0, every_seconds=0.15)
        so_far = len(found.versions())

        goes_on = eventually(lambda: len(found.versions()) >= so_far + 6)

        assert goes_on, fail_report(found.attending)
        folded = [fold["task"] for record in found.of("version") for fold in record["folds"]]
        assert len(folded) == len(set(folded))
        assert {
            fold["learner"] for r in found.of("version")[so_far:] for fold in r["folds"]
        } == set(NAMES)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_a_long_storm_with_short_leases_ends_with_everybody_at_work(
    seed: int, tmp_path: Path, impatient: None
) -> None:
    """Here leases do run out, so bytes differ; but nothing is counted twice and nobody is lost."""
    with federation(
        "sync-dvw",
        versions=None,
        lease_seconds=1.5,
        deadline_seconds=1.5,
        sites=consortium(tmp_path),
    ) as found:
        weathered(found, seed, seconds=120.0, every_seconds=0.3)
        so_far = len(found.versions())

        def is_whole() -> bool:  # the last to come back may have waited for half a minute
            last = found.of("version")[-1]
            everybody = {fold["learner"] for fold in last["folds"]} == set(NAMES)
            return everybody and len(found.versions()) >= so_far + 5

        assert eventually(is_whole, seconds=60.0), fail_report(found.attending)
        folded = [fold["task"] for record in found.of("version") for fold in record["folds"]]
        assert len(folded) == len(set(folded))
        assert all(one.ended == [] for one in found.attending)
