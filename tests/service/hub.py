"""A real controller process for tests that call it over real gRPC, and learners that do no work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from metis.codecs.dense import Dense
from metis.config import load
from metis.core.errors import IdentityError, LineError, ModelError
from metis.core.types import ClassCounts, Layout, LearnerId, Profile, TensorSpec, Vector
from metis.federation.handshake import agreed, digest_of
from metis.service.connection import (
    PROTOCOL,
    Delivery,
    EvaluateOrder,
    Hello,
    Order,
    Receipt,
    TrainOrder,
    pieces,
)
from metis.service.grpc.client import GrpcConnection, channel_credentials
from metis.storage.weights import save_first
from tests.certs.consortium import NOW, Consortium

NUM_CLASSES = 3
LAYOUT = Layout((TensorSpec("weight", (3, 20), "dense", 0), TensorSpec("bias", (3,), "plain", 60)))
FIRST = np.linspace(-1.0, 1.0, LAYOUT.size, dtype=np.float32)
DENSE = Dense(LAYOUT)
COUNTS = ClassCounts(np.eye(NUM_CLASSES, dtype=np.int64))
_START_SECONDS = 60.0


def eventually(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Wait until something holds; return whether it came to that."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def insisting(say: Callable[[], object], seconds: float = 5.0) -> None:
    """Say something until it is heard, as sites do.

    The controller takes a second to see that a learner has hung up. Until then it counts as
    calling, so one that comes and goes ten times a second is put off for a while.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            say()
            return
        except LineError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


@dataclass(slots=True)
class Hub:
    """A controller that runs as a process of its own."""

    process: subprocess.Popen[bytes]
    address: str
    root: Path
    digest: str  # of the config, for a handshake
    sites: Consortium | None  # None: plain text
    known: dict[str, Path] = field(default_factory=dict)  # folders of certificates

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def folder(self, name: str, role: Any = "learner") -> Path:
        """Return a name's folder of certificates; it is admitted at the first time."""
        assert self.sites is not None
        if name not in self.known:
            self.known[name] = self.sites.admit(name, role)
        return self.known[name]

    def credentials(self, name: str, role: Any = "learner") -> grpc.ChannelCredentials | None:
        return None if self.sites is None else credentials_in(self.folder(name, role), name)

    @contextmanager
    def line(self, name: str, role: Any = "learner") -> Iterator[GrpcConnection]:
        line = GrpcConnection(self.address, name, self.credentials(name, role))
        try:
            yield line
        finally:
            line.close()

    @contextmanager
    def bare(self, name: str, role: Any = "learner") -> Iterator[Bare]:
        """Give a bare connection, for messages that no line would send."""
        credentials = self.credentials(name, role)
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            channel = grpc.insecure_channel(self.address, options)
        else:
            channel = grpc.secure_channel(self.address, credentials, options)
        try:
            yield Bare(channel, name)
        finally:
            channel.close()

    @contextmanager
    def member(self, name: str) -> Iterator[Member]:
        """Give a learner that has joined; it leaves in the end."""
        with self.line(name) as line:
            member = Member(name, line, self.hello(name))
            member.join()
            try:
                yield member
            finally:
                insisting(lambda: line.leave(withdraw=False))

    def hello(self, name: str, **other: Any) -> Hello:
        profile = Profile(LearnerId(name), 10, 2, "site")
        said = {"protocol": PROTOCOL, "layout": LAYOUT.digest, "config": self.digest}
        return Hello(**{**said, "profile": profile, "holds": None, **other})

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what the journal holds of these kinds by now."""
        lines = (self.root / "state" / "journal.jsonl").read_bytes().split(b"\n")[:-1]
        return [record for record in map(json.loads, lines) if record["kind"] in kinds]

    def audits(self, whom: str) -> list[str]:
        """Return the audit lines that name somebody; whoever has no name has an address."""
        found = [f"{r['who']}: {r['reason']}" for r in self.records("audit")]
        return [line for line in found if whom in line]

    def said(self) -> str:
        """Return all that the process wrote to its standard error."""
        return (self.root / "stderr").read_text(errors="replace")

    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the controller is gone")

    def num_threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def disk_mib(self) -> float:
        """Return what its state holds; a file that goes while they are counted holds nothing."""
        total = 0
        for folder, _, names in os.walk(self.root / "state"):
            for name in names:
                with suppress(FileNotFoundError):
                    total += os.stat(os.path.join(folder, name)).st_size
        return total / 2**20

    def stop(self) -> int:
        """Ask the process to stop, as a service would be; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@dataclass(frozen=True, slots=True)
class Bare:
    """A channel on which anything may be said: messages, or bytes that are none."""

    channel: grpc.Channel
    name: str

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("metis-name", self.name),)

    def method(
        self, name: str, kind: str, read: Any = None, service: str = "metis.v1.Federation"
    ) -> Any:
        """Return a way to call; with no `read`, both ways are bytes."""
        if read is None:
            return getattr(self.channel, kind)(f"/{service}/{name}")
        return getattr(self.channel, kind)(
            f"/{service}/{name}", lambda message: message.SerializeToString(), read.FromString
        )


@dataclass(slots=True)
class Member:
    """A learner of numpy alone: it trains nothing, and answers what it is told to answer."""

    name: str
    line: GrpcConnection
    hello: Hello
    orders: Iterator[Order | None] | None = None

    def join(self) -> None:
        insisting(lambda: self.line.join(self.hello))
        self.orders = self.line.orders()

    def next(self, kind: type[Any]) -> Any:
        """Return the next order of a kind; others are passed over."""
        assert self.orders is not None
        for order in self.orders:
            if isinstance(order, kind):
                return order
        raise AssertionError(f"no {kind.__name__} came")

    def fetched(self, order: TrainOrder | EvaluateOrder) -> Vector:
        return DENSE.decode(b"".join(self.line.fetch(order.items[-1])))

    def answer(self, order: TrainOrder, packet: bytes | None = None, **other: Any) -> Receipt:
        """Deliver an answer, right but for what is given."""
        if packet is None:
            model = FIRST + np.float32(order.task)
            packet, _ = DENSE.encode(model, model)
        return self.line.deliver(delivery(order, **other), pieces(packet))

    def round(self) -> Receipt:
        """Do one task as it should be done."""
        order = self.next(TrainOrder)
        self.fetched(order)
        self.line.progress(order.task, 1)
        return self.answer(order)


def delivery(order: TrainOrder, **other: Any) -> Delivery:
    said = {"task": order.task, "base_version": order.version, "num_examples": 10}
    return Delivery(**{**said, "num_steps": 2, "seconds": 0.01, "counts": COUNTS, **other})


class Steady:
    """A good learner at work in the background, by which to see that others are not disturbed."""

    def __init__(self, hub: Hub, name: str = "steady") -> None:
        self._hub = hub
        self._name = name
        self._stop = threading.Event()
        self.num_taken = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=20)

    def goes_on(self, rounds: int = 2, seconds: float = 15.0) -> bool:
        """Wait for further rounds; return whether they came."""
        enough = self.num_taken + rounds
        return eventually(lambda: self.num_taken >= enough, seconds)

    def _run(self) -> None:
        try:
            with self._hub.member(self._name) as member:
                while not self._stop.is_set():
                    receipt = member.round()
                    self.num_taken += receipt.taken
                    if not receipt.taken:
                        self.failures.append(receipt.reason)
                    self._stop.wait(0.05)
        except (LineError, IdentityError, ModelError, AssertionError) as error:
            if not self._stop.is_set():
                self.failures.append(repr(error))


def credentials_in(folder: Path, name: str) -> grpc.ChannelCredentials:
    """Return what a name proves itself by, without asking whether it should."""
    files = (folder / f"{name}.key", folder / f"{name}.crt", folder / "ca.crt")
    return channel_credentials(*(file.read_bytes() for file in files))


@contextmanager
def hub(
    root: Path,
    sites: Consortium | None = None,
    num_classes: int = NUM_CLASSES,
    settings: Iterable[str] = (),
) -> Iterator[Hub]:
    """Start a controller; whatever happens, it is gone in the end."""
    root.mkdir(parents=True, exist_ok=True)
    save_first(root / "first.safetensors", FIRST, LAYOUT, num_classes)
    (root / "fed.toml").write_text(_config(settings))
    certs = ["--plain"]
    if sites is not None:
        folder = sites.root / "hub"
        if not folder.exists():
            sites.admit("hub", "controller")
        certs = ["--certs", str(folder)]
    metis = str(Path(sys.executable).with_name("metis"))
    command = [metis, "controller", "--config", str(root / "fed.toml")]
    command += ["--initial", str(root / "first.safetensors"), "--state", str(root / "state")]
    command += ["--listen", "127.0.0.1:0", *certs]
    with open(root / "stdout", "wb") as out, open(root / "stderr", "ab") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
    try:
        address = _address(process, root)
        digest = digest_of(agreed(load(root / "fed.toml")))
        yield Hub(process, address, root, digest, sites)
    finally:
        process.kill()
        process.wait()


def _config(settings: Iterable[str]) -> str:
    tables: dict[str, list[str]] = {"": ['policy = "async-fedavg"', "learners = 8"]}
    tables["train"] = ["lease_seconds = 30.0", "epochs = 1"]
    tables["validation"] = ["deadline_seconds = 20.0"]
    tables["recipe"] = ["min_learners = 1"]
    for setting in settings:
        key, _, value = setting.partition("=")
        table, _, name = key.rpartition(".")
        old = tables.setdefault(table, [])
        tables[table] = [line for line in old if line.split(" ")[0] != name] + [f"{name} = {value}"]
    text = "\n".join(tables.pop("")) + "\n"
    for table, lines in tables.items():
        text += "\n".join([f"[{table}]", *lines]) + "\n"
    return text


def _address(process: subprocess.Popen[bytes], root: Path) -> str:
    def told() -> str:
        text = (root / "stdout").read_text() + (root / "stderr").read_text()
        found = [line for line in text.splitlines() if line.startswith("listening on ")]
        return found[-1].split()[2] if found else ""

    eventually(lambda: bool(told()) or process.poll() is not None, _START_SECONDS)
    address = told()
    assert address, (root / "stderr").read_text()
    return address


__all__ = ["COUNTS", "DENSE", "FIRST", "LAYOUT", "NOW", "Hub", "Member", "Steady", "hub"]
