"""A federation in this process for tests of the network: real gRPC, learners that only pretend.

What they "train" follows from their name and the number of their task alone, so two runs in which
nothing was lost come to the same bytes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.config import load
from metis.core.errors import LineError
from metis.core.local_run import TestResult
from metis.core.triggers import AfterEpochs
from metis.core.types import (
    ClassCounts,
    Counts,
    Layout,
    LearnerId,
    Profile,
    Snapshot,
    Task,
    Tensor,
    Vector,
)
from metis.live.desk import Terms
from metis.live.host import Clockwork
from metis.live.ledger import Ledger
from metis.live.line import (
    PROTOCOL,
    Delivery,
    Farewell,
    Hello,
    Line,
    Order,
    Receipt,
    TrainOrder,
    pieces,
)
from metis.live.mirror import Mirror
from metis.live.service import Service
from metis.live.settings import CallLimits
from metis.live.site import Equipment, Memory, Pulse, Site
from metis.runtime.compose import controller_of
from metis.runtime.journal import Journal, Record
from metis.security.credentials import Credentials
from metis.store.packets import InMemory
from metis.transport import dial, rpc
from metis.transport.dial import RpcLine, channel_credentials
from metis.transport.gate import Gate, by_certificate
from metis.transport.rpc import Opening, serve, server_credentials
from tests.live.proxy import Proxy
from tests.security.consortium import NOW, Consortium

STEPS = 4  # of an epoch
LOOK_SECONDS = 0.2  # between two looks of the clockwork
CONFIG = "toy"
_STOP_SECONDS = 45.0  # a line that is half-open is given up after 30


def eventually(holds: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Wait until something holds; return whether it came to that."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def layout_of(size: int) -> Layout:
    return Layout((Tensor("weight", (size,), "dense", 0),))


class Toy:
    """Pretends to train and to judge, for one learner."""

    def __init__(
        self,
        name: str,
        step_seconds: float = 0.0,
        on_step: Callable[[Task, int], None] = lambda task, step: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_step` and `on_answer` are called in the middle of it, and may wait or raise."""
        self.name = LearnerId(name)
        self.step_seconds = step_seconds
        self.pulse = Pulse()
        self.ordinals: list[int] = []  # of the tasks that were begun
        self._on_step = on_step
        self._on_answer = on_answer
        self._task: Task | None = None
        self._num_steps = 0
        self._asked: Vector | None = None

    def profiles(self) -> Sequence[Profile]:
        return [Profile(self.name, 10 + len(self.name), STEPS)]

    def begin(self, task: Task, with_loss: bool) -> None:
        self._task, self._num_steps = task, 0
        self.ordinals.append(task.ordinal)

    def expect(self, learner: LearnerId, num_steps: int) -> None:
        pass

    def advance(self, learner: LearnerId, num_steps: int) -> tuple[float, ...]:
        assert self._task is not None
        for _ in range(num_steps):
            self._on_step(self._task, self._num_steps)
            time.sleep(self.step_seconds)
            self._num_steps += 1
            self.pulse.beat(self._num_steps)
        return ()

    def is_computed(self, learner: LearnerId, num_steps: int) -> bool:
        return True

    def finish(self, learner: LearnerId) -> Vector:
        assert self._task is not None
        task, self._task = self._task, None
        chance = np.random.default_rng([zlib.crc32(self.name.encode()), task.ordinal])
        start = task.start.weights
        trained: Vector = start + 0.1 * chance.standard_normal(start.size, dtype=np.float32)
        return trained

    def abandon(self, learner: LearnerId) -> None:
        self._task = None

    def depart(self, learner: LearnerId) -> None:
        self.abandon(learner)

    def ask(self, weights: Vector, judges: Sequence[LearnerId]) -> list[int]:
        self._asked = weights
        return [1]

    def answer(self, question: int) -> Counts | None:
        assert self._asked is not None
        self._on_answer()
        right = zlib.crc32(self._asked.tobytes()) % 50 + 25
        return ClassCounts(np.array([[right, 100 - right], [3, 4]], dtype=np.int64))

    def test(self, weights: Vector) -> TestResult:
        return TestResult(0.0, 0.0)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass

    def close(self) -> None:
        pass


def equipment_of(toy: Toy, layout: Layout, judge: Toy | None = None) -> Equipment:
    (profile,) = toy.profiles()
    return Equipment(
        name=toy.name,
        profile=profile,
        config=CONFIG,
        trigger=AfterEpochs(1),
        trainer=toy,
        judge=judge or Toy(toy.name),
        upload=Dense(layout),
        is_judged=True,
        pulse=toy.pulse,
    )


@dataclass(slots=True, eq=False)
class Attending:
    """A site at work in a thread."""

    site: Site
    line: Line
    thread: threading.Thread
    news: list[str]
    ended: list[Farewell | BaseException | None] = field(default_factory=list)

    def ends(self, seconds: float = 10.0) -> bool:
        """Wait for it to end by itself; return whether it did."""
        self.thread.join(seconds)
        return not self.thread.is_alive()


@dataclass(slots=True)
class Federation:
    """A service that listens, its records, and the sites that were made for it."""

    service: Service
    port: int
    records: list[Record]
    layout: Layout
    sites: Consortium | None
    stack: ExitStack
    attending: list[Attending] = field(default_factory=list)

    def proxy(self) -> Proxy:
        return self.stack.enter_context(Proxy(self.port))

    def line(self, name: str, port: int | None = None) -> RpcLine:
        address = f"localhost:{port or self.port}"
        line = RpcLine(address, name, self._credentials(name))
        self.stack.callback(line.close)
        return line

    def site(
        self, toy: Toy, line: Line, judge: Toy | None = None, memory: Memory | None = None
    ) -> Attending:
        """Make a site and let it attend."""
        codec = Dense(self.layout)
        equipment = equipment_of(toy, self.layout, judge)
        news: list[str] = []
        site = Site(equipment, line, Mirror(codec, codec), memory or Memory(), news=news.append)
        ended: list[Farewell | BaseException | None] = []

        def attend() -> None:
            try:
                ended.append(site.attend())
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=attend, daemon=True)
        made = Attending(site, line, thread, news, ended)
        self.attending.append(made)
        thread.start()
        return made

    def hello(self, name: str) -> Hello:
        (profile,) = Toy(name).profiles()
        return Hello(PROTOCOL, self.layout.digest, CONFIG, profile, None)

    def of(self, *kinds: str, **fields: Any) -> list[Record]:
        """Return the records of these kinds whose fields have these values."""
        return [
            record
            for record in list(self.records)
            if record["kind"] in kinds and fields.items() <= record.items()
        ]

    def finishes(self, seconds: float = 20.0) -> bool:
        """Wait until it is over and everybody has gone home; return whether that came to be."""
        return eventually(lambda: self.service.over is not None, seconds) and all(
            one.ends(seconds) for one in self.attending
        )

    def versions(self) -> list[str]:
        return [record["digest"] for record in self.of("version")]

    def _credentials(self, name: str) -> Any:
        if self.sites is None:
            return None
        found = credentials_of(self.sites, name)
        return channel_credentials(found.key_pem, found.certificate_pem, found.ca_pem)


def credentials_of(sites: Consortium, name: str) -> Credentials:
    folder: Path = sites.root / name
    if not folder.exists():
        sites.admit(name, "controller" if name == "hub" else "learner")
    return Credentials(folder, NOW, name=name)


@contextmanager
def federation(
    policy: str = "sync-dvw",
    learners: int = 3,
    versions: int | None = 3,
    lease_seconds: float = 60.0,
    deadline_seconds: float = 60.0,
    size: int = 50_000,
    sites: Consortium | None = None,
) -> Iterator[Federation]:
    """Start a controller in this process; whatever was made for it is gone in the end."""
    records: list[Record] = []
    config = load(None, policy=policy, learners=learners)
    layout = layout_of(size)
    start = Snapshot(0, np.zeros(size, dtype=np.float32))
    terms = Terms(
        layout=layout,
        config=CONFIG,
        upload=Dense(layout),
        lease_seconds=lease_seconds,
        deadline_seconds=deadline_seconds,
        latest_models="memory",
        max_versions=versions,
        num_classes=2,
    )
    ledger = Ledger(controller_of(config, start, layout, num_classes=2))
    journal = Journal(None, (records.append,))
    service = Service(terms, ledger, InMemory(), journal, time.monotonic)
    with ExitStack() as stack:
        opening, gate = Opening("127.0.0.1:0", 2 * learners), None
        if sites is not None:
            own = credentials_of(sites, "hub")
            made = server_credentials(own.key_pem, own.certificate_pem, own.ca_pem)
            opening = Opening("127.0.0.1:0", 2 * learners, made)
            gate = Gate(by_certificate(own.identity_of), CallLimits(), service.audit)
        server, port = serve(service, opening, gate)
        stack.callback(lambda: server.stop(grace=None).wait())
        stack.callback(Clockwork(service).stop)
        found = Federation(service, port, records, layout, sites, stack)
        try:
            yield found
        finally:
            service.end("the test is over", over=True)
            for one in found.attending:
                one.site.stop()
            for one in found.attending:
                if not one.ends(_STOP_SECONDS):
                    faulthandler.dump_traceback()
                    raise AssertionError(f"a site does not stop: {one.news[-20:]}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice a dead connection within a second, and come back a tenth as late as in earnest."""
    quick = {
        "grpc.keepalive_time_ms": 400,
        "grpc.keepalive_timeout_ms": 400,
        "grpc.http2.ping_timeout_ms": 400,  # without it nothing is noticed for a minute
        "grpc.http2.min_ping_interval_without_data_ms": 200,
        "grpc.http2.min_recv_ping_interval_without_data_ms": 200,
    }
    options = [*((n, value) for n, value in rpc.OPTIONS if n not in quick), *quick.items()]
    monkeypatch.setattr(rpc, "OPTIONS", options)
    monkeypatch.setattr(dial, "OPTIONS", options)
    monkeypatch.setattr(dial, "SILENT_SECONDS", 5.0)
    monkeypatch.setattr(dial, "_STORING_SECONDS", 5.0)
    monkeypatch.setattr("metis.live.site.random.uniform", lambda low, high: 0.1 * high)


@dataclass(slots=True)
class Bare:
    """A learner without a site: it says what a test makes it say, and nothing by itself."""

    found: Federation
    name: str
    line: RpcLine
    heard: list[Order] = field(default_factory=list)  # since it listened last

    def join(self) -> None:
        self.line.join(self.found.hello(self.name))

    def listen(self) -> None:
        """Hear orders from now on."""
        self.heard = heard = list[Order]()

        def hear() -> None:
            with contextlib.suppress(LineError):  # the test is over
                for order in self.line.orders():
                    if order is not None:
                        heard.append(order)

        threading.Thread(target=hear, daemon=True).start()

    def next(self, kind: type[Any], seconds: float = 5.0) -> Any:
        """Return the next order of a kind; those before it are passed over."""
        came = eventually(lambda: any(isinstance(order, kind) for order in self.heard), seconds)
        assert came, f"no {kind.__name__} came to {self.name}, only {self.heard}"
        while not isinstance(order := self.heard.pop(0), kind):
            pass
        return order

    def answer(self, order: TrainOrder, value: float = 1.0) -> Receipt:
        """Deliver a model that is the same value everywhere."""
        model = np.full(self.found.layout.size, value, dtype=np.float32)
        packet, _ = Dense(self.found.layout).encode(model, model)
        counts = ClassCounts(np.eye(2, dtype=np.int64))
        delivery = Delivery(order.task, order.version, 10, STEPS, 0.1, counts)
        return self.line.deliver(delivery, pieces(packet))


def bare(found: Federation, name: str) -> Bare:
    """Return a learner that has joined and listens."""
    made = Bare(found, name, found.line(name))
    made.join()
    made.listen()
    return made


def attend_alone(port: int, name: str, step_seconds: float, size: int) -> None:
    """Be a learner in a process of its own."""
    with ExitStack() as stack:
        line = RpcLine(f"localhost:{port}", name)
        site = Site(
            equipment_of(Toy(name, step_seconds), layout_of(size)),
            line,
            Mirror(Dense(layout_of(size)), Dense(layout_of(size))),
            Memory(),
        )
        stack.callback(line.close)
        site.attend()


if __name__ == "__main__":
    attend_alone(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
