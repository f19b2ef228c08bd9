"""Garbage on a controller's port, seeded: what strangers send, and what a certified fool sends.

    python -m tests.service.fuzz_port --inputs 10000 --out docs/results/soak-strangers.md

Half of the inputs never get past TLS; the other half are messages of every method, mutated, over a
connection with a certificate. After every batch a good learner must still be answered.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import random
import socket
import ssl
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from metis.core.errors import LineError
from metis.service.connection import PROTOCOL, TrainOrder
from metis.service.grpc import wire_pb2 as wire
from tests.certs.consortium import consortium
from tests.service.hub import (
    DENSE,
    FIRST,
    LAYOUT,
    Bare,
    Hub,
    Steady,
    eventually,
    hub,
    insisting,
)

FOOL = "fool"  # has a certificate, and no manners
_BATCH = 100
_ANSWER_SECONDS = 0.03  # to wait for what a stranger is told
_OPEN_AT_ONCE = 40
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = ("live.calls_per_second=100000.0", "live.calls_at_once=200")


@dataclass(frozen=True, slots=True)
class Sample:
    """The controller's process at one moment."""

    num_inputs: int
    seconds: float
    rss_mib: float
    num_threads: int
    num_files: int


@dataclass(slots=True)
class Findings:
    """What came of all inputs."""

    seed: int
    asked_for: int  # inputs
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    unforeseen: list[str] = field(default_factory=list)  # statuses that no refusal has
    rounds: int = 0  # that the good learner did meanwhile
    unanswered: int = 0  # batches after which it was not heard
    tracebacks: int = 0
    seconds: float = 0.0
    broken: str = ""  # why no more could be sent: the federation answers nobody any more

    @property
    def num_inputs(self) -> int:
        return sum(self.outcomes.values())


@dataclass(slots=True)
class Port:
    """One controller under fire."""

    hub: Hub
    bare: Bare
    chance: random.Random
    tls: ssl.SSLContext
    strangers: ssl.SSLContext
    open: list[socket.socket] = field(default_factory=list)
    task: int = 0
    version: int = 0

    # ---- what never gets past TLS -------------------------------------------------------------

    def random_bytes(self) -> str:
        return self._sent(self._connected(), self.chance.randbytes(self.chance.randint(1, 4000)))

    def http_1(self) -> str:
        verb = self.chance.choice(["GET", "POST", "OPTIONS", "CONNECT", "X" * 50])
        path = "/" + "a" * self.chance.choice([0, 5, 9000])
        lines = [f"{verb} {path} HTTP/1.1", "Host: hub", f"Content-Length: {2**40}", "", "body"]
        return self._sent(self._connected(), "\r\n".join(lines).encode())

    def half_a_handshake(self) -> str:
        """A true ClientHello, cut somewhere; the connection is left open for a while."""
        hello = _client_hello(self.strangers)
        connection = self._connected()
        told = self._sent(connection, hello[: self.chance.randint(1, len(hello))], close=False)
        self._leave_open(connection)
        return told

    def odd_handshake(self) -> str:
        return self._sent(self._connected(), mutated(_client_hello(self.strangers), self.chance))

    def silence(self) -> str:
        self._leave_open(self._connected())
        return "kept waiting"

    def frames_in_the_clear(self) -> str:
        return self._sent(self._connected(), _PREFACE + self._frames())

    # ---- what a certified fool sends ----------------------------------------------------------

    def frames(self) -> str:
        """HTTP/2 up to its preface, then frames that mean nothing."""
        try:
            wrapped = self.tls.wrap_socket(self._connected(), server_hostname="localhost")
        except OSError as error:
            return f"no handshake ({type(error).__name__})"
        settings = struct.pack(">IBBI", 0, 4, 0, 0)[1:]
        return self._sent(wrapped, _PREFACE + settings + self._frames())

    def message(self) -> str:
        """One call of any method, with bytes that were a message once."""
        name, kind, parts, service = self.chance.choice(calls(self))
        sent = [mutated(part.SerializeToString(), self.chance) for part in parts]
        if self.chance.random() < 0.5:  # or with values that such a message may hold
            sent = [odd(part, self.chance).SerializeToString() for part in parts]
        call = self.bare.method(name, kind, service=service)
        metadata = self.bare.metadata
        seconds = 0.2 if name == "Orders" else 10.0
        try:
            if kind == "stream_unary":
                call(iter(sent), metadata=metadata, timeout=seconds)
            elif kind == "unary_stream":
                for _ in call(sent[0], metadata=metadata, timeout=seconds):
                    pass
            else:
                call(sent[0], metadata=metadata, timeout=seconds)
        except grpc.RpcError as error:
            told = error.code().name
            if told == "UNKNOWN":
                raise Unforeseen(f"{name}: {error.details()}") from None
            return f"{name}: {told}"
        return f"{name}: OK"

    def take_a_task(self) -> None:
        """Join as one should, so that nonsense can be said about a task that is open."""
        with self.hub.line(FOOL) as line:
            insisting(lambda: line.join(self.hub.hello(FOOL)))
            for order in line.orders():
                if isinstance(order, TrainOrder):
                    self.task, self.version = order.task, order.version
                    return
        raise LineError("there was no task for somebody who had joined")

    def hang_up(self) -> None:
        for connection in self.open:
            connection.close()
        self.open.clear()

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.hub.port), timeout=5)

    def _leave_open(self, connection: socket.socket) -> None:
        self.open.append(connection)
        if len(self.open) > _OPEN_AT_ONCE:
            self.open.pop(0).close()

    def _frames(self) -> bytes:
        found = []
        for _ in range(self.chance.randint(1, 12)):
            body = self.chance.randbytes(self.chance.choice([0, 1, 8, 100, 2000]))
            length = self.chance.choice([len(body)] * 8 + [0, 2**24 - 1])
            kind, flags = self.chance.randint(0, 12), self.chance.randint(0, 255)
            stream = self.chance.choice([0, 1, 3, self.chance.getrandbits(32)])
            found.append(struct.pack(">IBBI", length, kind, flags, stream)[1:] + body)
        return b"".join(found)

    def _sent(self, connection: socket.socket, content: bytes, close: bool = True) -> str:
        """Send bytes; return what happened."""
        try:
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(content)
            answer = connection.recv(65536)
            return "told something" if answer else "hung up on"
        except TimeoutError:
            return "kept waiting"
        except OSError:
            return "hung up on"
        finally:
            if close:
                connection.close()


class Unforeseen(Exception):  # noqa: N818 (a finding)
    """The controller raised something that is no refusal."""


#: Every kind of input, and how often it is sent.
KINDS: dict[str, tuple[Callable[[Port], str], int]] = {
    "random bytes": (Port.random_bytes, 8),
    "HTTP/1 request": (Port.http_1, 6),
    "half a TLS handshake": (Port.half_a_handshake, 10),
    "mutated TLS handshake": (Port.odd_handshake, 8),
    "connection without a byte": (Port.silence, 3),
    "HTTP/2 frames without TLS": (Port.frames_in_the_clear, 5),
    "HTTP/2 frames with a certificate": (Port.frames, 10),
    "mutated message with a certificate": (Port.message, 50),
}


def calls(port: Port) -> list[tuple[str, str, list[Any], str]]:
    """Return one good call of each method: its name, kind, messages and service."""
    task, version, chance = port.task, port.version, port.chance
    federation, operations = "metis.v1.Federation", "metis.v1.Operations"
    packet, _ = DENSE.encode(FIRST, FIRST)
    matrix = wire.ClassCounts(num_classes=3, cells=[0, 4, 8], counts=[5, 6, 7])
    counts = wire.Counts(classes=matrix)
    hello = wire.Hello(protocol=PROTOCOL, layout=LAYOUT.digest, config=port.hub.digest, group="g")
    hello.num_examples, hello.steps_per_epoch = 5, 2
    item = wire.Item(update_of_task=task)
    if chance.random() < 0.5:
        item = wire.Item(snapshot_of_version=chance.choice([0, version]))
    head = wire.Delivery(
        task=task, base_version=version, num_examples=9, num_steps=9, counts=counts
    )
    delivery = [wire.DeliveryPart(delivery=head), wire.DeliveryPart(content=packet)]
    unary, nothing = "unary_unary", wire.Nothing()
    found: list[tuple[str, str, list[Any], str]] = [
        ("Charter", unary, [nothing], federation),
        ("Join", unary, [hello], federation),
        ("Progress", unary, [wire.ProgressReport(task=task, num_steps=3)], federation),
        ("Fail", unary, [wire.Failure(task=task, reason="r", traceback="t")], federation),
        ("Score", unary, [wire.ScoreReport(evaluation=1, counts=counts)], federation),
        ("Leave", unary, [wire.Leaving(withdraw=True)], federation),
        ("Status", unary, [nothing], operations),
        ("Stop", unary, [wire.StopOrder(reason="r")], operations),
        ("Fetch", "unary_stream", [item], federation),
        ("Deliver", "stream_unary", delivery, federation),
    ]
    if chance.random() < 0.05:  # each lasts for a while
        found.append(("Orders", "unary_stream", [nothing], federation))
    return found


def odd(message: Any, chance: random.Random) -> Any:
    """Return a message of the same kind in which some values are the strangest it may hold."""
    found = type(message)()
    found.CopyFrom(message)
    for place in message.DESCRIPTOR.fields:
        if chance.random() < 0.6:
            continue
        value = getattr(found, place.name)
        if place.type == place.TYPE_MESSAGE and not place.is_repeated:
            if found.HasField(place.name):
                value.CopyFrom(odd(value, chance))
        elif place.is_repeated:
            del value[:]
            value.extend(_odd_value(place, chance) for _ in range(chance.choice([0, 1, 9, 5000])))
        else:
            setattr(found, place.name, _odd_value(place, chance))
    return found


def _odd_value(place: Any, chance: random.Random) -> Any:
    kind = place.cpp_type
    if kind in (place.CPPTYPE_DOUBLE, place.CPPTYPE_FLOAT):
        return chance.choice([math.nan, math.inf, -math.inf, -1.0, 1e308, 5e-324])
    if kind == place.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind == place.CPPTYPE_UINT32:
        return chance.choice([0, 1, 5000, 2**31, 2**32 - 1, chance.getrandbits(32)])
    if kind == place.CPPTYPE_STRING and place.type == place.TYPE_BYTES:
        return chance.randbytes(chance.choice([0, 1, 100, 100_000]))
    if kind == place.CPPTYPE_STRING:
        return chance.choice(["", "\x00", "\x1b[2J\r\n", "\u202e\U0010ffff", "x" * 100_000])
    return chance.choice([0, 1, 10**6, 2**53, 2**63, 2**64 - 1, chance.getrandbits(64)])


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of them changed, lost, doubled or added; sometimes with none."""
    found = bytearray(content)
    for _ in range(chance.choice([0, 1, 1, 2, 4, 16])):
        at = chance.randint(0, len(found))
        match chance.randint(0, 5):
            case 0 if found:
                found[at % len(found)] ^= 1 << chance.randint(0, 7)
            case 1 if found:
                found[at % len(found)] = chance.choice([0, 1, 127, 128, 255])
            case 2:
                del found[at : at + chance.randint(1, 8)]
            case 3:
                found[at:at] = chance.randbytes(chance.randint(1, 16))
            case 4:
                found[at:at] = found[at : at + chance.randint(1, 64)]
            case 5:
                found[at:at] = b"\xff" * 9 + b"\x01"  # the largest number there is
    return bytes(found)


def _client_hello(context: ssl.SSLContext) -> bytes:
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = context.wrap_bio(into, out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return out.read()


def _tls(folder: Path, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.set_alpn_protocols(["h2"])
    if name is not None:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


@contextlib.contextmanager
def port_of(found: Hub, seed: int) -> Iterator[Port]:
    """Give the port of a hub, to be used under the fool's name."""
    folder = found.folder(FOOL)
    contexts = (_tls(folder, FOOL), _tls(folder, None))
    with found.bare(FOOL) as bare:
        port = Port(found, bare, random.Random(seed), *contexts)
        try:
            yield port
        finally:
            port.hang_up()


def fuzz(found: Hub, steady: Steady, num_inputs: int, seed: int) -> Findings:
    """Send so many inputs; return what came of them."""
    findings = Findings(seed, num_inputs)
    began, rounds = time.monotonic(), steady.num_taken
    names = list(KINDS)
    shares = [share for _, share in KINDS.values()]

    def sample() -> None:
        findings.samples.append(
            Sample(
                findings.num_inputs,
                time.monotonic() - began,
                found.rss_mib(),
                found.num_threads(),
                found.num_files(),
            )
        )

    with port_of(found, seed) as port:
        sample()
        for number in range(num_inputs):
            if number % 10 == 0:
                try:
                    port.take_a_task()
                except LineError as error:
                    findings.broken = str(error)
                    break
            name = port.chance.choices(names, shares)[0]
            try:
                outcome = KINDS[name][0](port)
            except Unforeseen as error:
                outcome = "unforeseen"
                findings.unforeseen.append(str(error))
            findings.outcomes[name, outcome] += 1
            if (number + 1) % _BATCH == 0:
                findings.unanswered += not steady.goes_on(1)
                sample()
    eventually(lambda: found.num_files() <= findings.samples[0].num_files + 4, 10)
    sample()
    findings.seconds = time.monotonic() - began
    findings.rounds = steady.num_taken - rounds
    findings.tracebacks = found.said().count("Traceback")
    return findings


def report(findings: Findings) -> str:
    """Return findings as a page."""
    first, last = findings.samples[0], findings.samples[-1]
    lines = [
        "# Soak: strangers on the port",
        "",
        f"`python -m tests.service.fuzz_port --inputs {findings.asked_for} "
        f"--seed {findings.seed}`, "
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"grpcio {grpc.__version__}, {os.cpu_count()} cores shared with other work.",
        "",
        f"{findings.num_inputs:,} inputs in {findings.seconds:.0f} s against one controller with "
        f"mutual TLS. A good learner did {findings.rounds:,} rounds meanwhile and was not answered "
        f"after {findings.unanswered} of {findings.num_inputs // _BATCH} batches. Tracebacks on "
        f"the controller's standard error: {findings.tracebacks}. Calls that ended in an exception "
        f"that is no refusal (status UNKNOWN): {len(findings.unforeseen)}.",
        "",
        f"Memory: {first.rss_mib:.0f} MiB before, {last.rss_mib:.0f} MiB after; threads "
        f"{first.num_threads} and {last.num_threads}, at most "
        f"{max(s.num_threads for s in findings.samples)}; open files {first.num_files} and "
        f"{last.num_files}, at most {max(s.num_files for s in findings.samples)}.",
        "",
        "## Outcomes",
        "",
        "| input | outcome | times |",
        "|---|---|---|",
    ]
    lines += [f"| {k} | {o} | {n:,} |" for (k, o), n in sorted(findings.outcomes.items())]
    if findings.broken:
        lines[4:4] = [f"**Ended early: {findings.broken}**", ""]
    if findings.unforeseen:
        lines += ["", "## Unforeseen", ""]
        counted = Counter(text[:160] for text in findings.unforeseen)
        lines += [f"- {times} times: `{text}`" for text, times in counted.most_common(20)]
    lines += ["", "## The process over time", ""]
    lines += ["| inputs | seconds | RSS MiB | threads | open files |", "|---|---|---|---|---|"]
    step = max(1, len(findings.samples) // 20)
    chosen = findings.samples[:-1:step] + findings.samples[-1:]
    lines += [
        f"| {s.num_inputs:,} | {s.seconds:.1f} | {s.rss_mib:.1f} | {s.num_threads} "
        f"| {s.num_files} |"
        for s in chosen
    ]
    return "\n".join(lines) + "\n"


def run(root: Path, num_inputs: int, seed: int) -> Findings:
    """Start a controller with mutual TLS and a good learner, and fuzz its port."""
    sites = consortium(root / "sites")
    with hub(root / "hub", sites, settings=SETTINGS) as found:
        steady = Steady(found)
        assert steady.goes_on(1), steady.failures
        findings = fuzz(found, steady, num_inputs, seed)
        steady.stop()
        findings.unanswered += len(steady.failures)
        assert found.process.poll() is None
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(run(Path(folder), chosen.inputs, chosen.seed))
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text)


if __name__ == "__main__":
    main()
