"""What it costs to carry models: a federation that does not train, beside bare sockets.

    python benchmarks/wire.py [--out FILE.json] [--learners 4] [--parameters 1000000 25000000]
        [--rounds N] [--repeats N] [--folder DIR] [--flower VENV]

A host and its learners, a process each, on loopback. In a synchronous round everybody is sent the
community model and sends one back, and the host averages them when all are there; asynchronously
each model sent back makes a new version at once. Seconds are per round, and per update.

tcp     plain sockets, as many connections and as many bytes each way, read with `recv_into`
grpc    bare grpcio: streams of 1 MiB chunks of bytes, no protobuf, put together and nothing else;
        with the settings for memory that Metis has, without which it takes twice the time
metis   a service, and learners with its real line and packets (dense), that return what they got

Each with and without TLS, both ends showing certificates. Durable means that a model sent back is
on disk before it is acknowledged: for tcp written to a file as it comes and fsynced, for metis the
store on disk and the journal. All cases take turns, `--repeats` times. A case's figure of a turn
is the median of its rounds, or the time of all its updates by their number, after a warm-up; given
are the median, least and most over the turns. A ratio is made within a turn, of neighbours in time:
above 1 is faster than the sockets. `to_tcp` is to sockets without TLS, `to_like` to sockets with
TLS if metis has it; both to durable ones if metis is.

`--flower` names an environment with Flower in it (`python -m venv V; V/bin/pip install flwr`). Its
server of one process is used, `start_server`, which is deprecated and much faster than what is to
replace it; a NumPyClient returns its parameters unchanged. A round's end is when FedAvg is done.
`--folder` must be on a disk: where fsync costs nothing, durable figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeAlias

import grpc
import numpy as np

from machine import machine
from metis.codecs.dense import Dense
from metis.core.controller import Controller
from metis.core.errors import LineError
from metis.core.policies import recipe
from metis.core.settings import Choices
from metis.core.types import Layout, LearnerId, Profile, Snapshot, Tensor, frozen
from metis.deploy.allocator import keep_freed_memory
from metis.live.desk import Terms
from metis.live.ledger import Ledger
from metis.live.library import Library
from metis.live.line import PROTOCOL, Delivery, Farewell, Hello, TrainOrder, pieces
from metis.live.mirror import Mirror
from metis.live.service import Service
from metis.runtime.journal import Journal, Record
from metis.security import authority
from metis.security.certs import Role
from metis.security.credentials import Credentials
from metis.store.packets import Gathered, InMemory, OnDisk
from metis.transport.dial import RpcLine, channel_credentials
from metis.transport.gate import Gate, by_certificate
from metis.transport.rpc import Opening, serve, server_credentials

Pace: TypeAlias = Literal["sync", "async"]
PACES: tuple[Pace, ...] = ("sync", "async")
HOST = "hub"
CHUNK = 1 << 20  # bytes
WARM_UP = 2  # rounds; in the second one the last of the averaging is compiled
TARGETS = {False: 0.3, True: 0.5}  # of tcp, by whether both are durable


@dataclass(frozen=True, slots=True)
class Case:
    """A way to carry models."""

    way: Literal["tcp", "grpc", "metis"]
    tls: bool = False
    durable: bool = False

    @property
    def name(self) -> str:
        return self.way + ("-tls" if self.tls else "") + ("-durable" if self.durable else "")


CASES = (
    *(Case("tcp", tls, durable) for durable in (False, True) for tls in (False, True)),
    Case("grpc"),
    Case("grpc", tls=True),
    *(Case("metis", tls, durable) for durable in (False, True) for tls in (False, True)),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all processes of a case must know."""

    case: Case
    num_parameters: int
    num_learners: int
    num_rounds: int
    folder: Path

    @property
    def num_bytes(self) -> int:
        return Dense(self.layout).num_bytes

    @property
    def layout(self) -> Layout:
        return Layout((Tensor("weights", (self.num_parameters,), "plain", 0),))

    def num_marks(self, pace: Pace) -> int:
        """How many rounds or updates there are, those for warming up included."""
        return (self.num_rounds + WARM_UP) * self.marks_in(pace)

    def marks_in(self, pace: Pace) -> int:
        """How many marks a round makes: one when it is over, or one for each update."""
        return 1 if pace == "sync" else self.num_learners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 25_000_000])
    parser.add_argument("--rounds", type=int, default=6, help="in a turn, after two to warm up")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every case")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on a real disk")
    parser.add_argument("--flower", type=Path, help="an environment that has Flower")
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    load_average = os.getloadavg()[0]
    cases = [case for case in CASES if not options.cases or case.name in options.cases]
    with tempfile.TemporaryDirectory(prefix="wire-", dir=options.folder) as name:
        names = [learner_name(i) for i in range(options.learners)]
        found = []
        admit(Path(name), names)
        for size in options.parameters:
            plans = [
                Plan(case, size, options.learners, options.rounds, Path(name)) for case in cases
            ]
            found.append(compared(plans, options.repeats, options.flower))
    about = machine(load_average) | {
        package: version(package) for package in ("grpcio", "protobuf")
    }
    if options.flower:
        about["flwr"] = flower_version(options.flower)
    text = json.dumps({"machine": about, "targets": targets(found), "sizes": found}, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def learner_name(number: int) -> str:
    return f"site-{number}"


# ---- figures ----------------------------------------------------------------------------------


def compared(plans: Sequence[Plan], repeats: int, flower: Path | None) -> dict[str, Any]:
    """Return the figures of all cases with models of one size."""
    turns: list[dict[str, dict[Pace, float]]] = []
    for _ in range(repeats):
        turn = {plan.case.name: seconds(plan) for plan in plans}
        if flower:
            turn["flower"] = {"sync": per_round(flower_marks(plans[0], flower)[WARM_UP - 1 :])}
        turns.append(turn)
    first = plans[0]
    rows = []
    for plan in plans:
        for pace in PACES:
            row = {"name": plan.case.name, **asdict(plan.case), "pace": pace}
            rows.append(row | figures(plan.case, pace, turns))
    if flower:
        spread = spread_of([turn["flower"]["sync"] for turn in turns])
        ratio = ratios("flower", "tcp", "sync", turns)
        rows.append({"name": "flower", "way": "flower", "pace": "sync", "seconds": spread} | ratio)
    return {
        "num_parameters": first.num_parameters,
        "num_bytes": first.num_bytes,
        "num_learners": first.num_learners,
        "num_rounds": first.num_rounds,
        "num_turns": repeats,
        "cases": rows,
    }


def figures(case: Case, pace: Pace, turns: Sequence[dict[str, dict[Pace, float]]]) -> Record:
    found: Record = {"seconds": spread_of([turn[case.name][pace] for turn in turns])}
    if case == Case("tcp", case.tls, case.durable):
        return found
    found |= ratios(case.name, Case("tcp", False, case.durable).name, pace, turns)
    like = ratios(case.name, Case("tcp", case.tls, case.durable).name, pace, turns)
    return found | {key.replace("to_tcp", "to_like"): value for key, value in like.items()}


def ratios(
    name: str, yardstick: str, pace: Pace, turns: Sequence[dict[str, dict[Pace, float]]]
) -> Record:
    """Return how fast a case is beside another one; nothing if that one was left out."""
    if yardstick not in turns[0]:
        return {}
    return {"to_tcp": spread_of([turn[yardstick][pace] / turn[name][pace] for turn in turns])}


def targets(found: Sequence[dict[str, Any]]) -> list[Record]:
    """Return whether metis without TLS is as fast as it should be."""
    return [
        {
            "num_parameters": size["num_parameters"],
            "name": row["name"],
            "pace": row["pace"],
            "to_tcp": row["to_tcp"]["median"],
            "at_least": TARGETS[row["durable"]],
            "met": row["to_tcp"]["median"] >= TARGETS[row["durable"]],
        }
        for size in found
        for row in size["cases"]
        if row["way"] == "metis" and not row["tls"] and "to_tcp" in row
    ]


def spread_of(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 5),
        "least": round(min(values), 5),
        "most": round(max(values), 5),
    }


def per_round(marks: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(marks))


def seconds(plan: Plan) -> dict[Pace, float]:
    """Run one case in processes of its own; return seconds per round and per update."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        lines: list[Connection] = []
        host = HOSTS[plan.case.way]
        names: list[str | None] = [None, *map(learner_name, range(plan.num_learners))]
        for name in names:
            ours, theirs = spawn.Pipe()
            arguments = (plan, theirs, host) if name is None else (plan, theirs, name)
            process = spawn.Process(target=host_all if name is None else attend_all, args=arguments)
            process.start()
            theirs.close()
            stack.callback(_ended, process)
            lines.append(stack.enter_context(ours))
        found: dict[Pace, float] = {}
        for pace in PACES:
            port = lines[0].recv()
            for line in lines[1:]:
                line.send(port)
            marks = lines[0].recv()[WARM_UP * plan.marks_in(pace) - 1 :]
            whole = (marks[-1] - marks[0]) / (len(marks) - 1)
            found[pace] = per_round(marks) if pace == "sync" else whole
        return found


def _ended(process: Any) -> None:
    process.join(timeout=20)
    if process.is_alive():
        process.kill()
        process.join()


# ---- processes --------------------------------------------------------------------------------

#: Serves one pace: tells its port, and returns when each round or update was done.
Serving: TypeAlias = Callable[[Plan, Pace, Callable[[int], None]], list[float]]


def host_all(plan: Plan, line: Connection, host: Serving) -> None:
    for pace in PACES:
        line.send(host(plan, pace, line.send))
        for left in plan.folder.glob("state-*"):
            shutil.rmtree(left)


def attend_all(plan: Plan, line: Connection, name: str) -> None:
    for _ in PACES:
        LEARNERS[plan.case.way](plan, name, line.recv())


class Rounds:
    """Notes when rounds or updates are done, and lets nobody into the next round too early."""

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self.marks: list[float] = []
        self._wanted = plan.num_marks(pace)
        self._barrier = None
        if pace == "sync":
            self._barrier = threading.Barrier(plan.num_learners, self._note)

    def done(self) -> bool:
        """Note that a model has come back; return whether that was all."""
        if self._barrier is not None:
            self._barrier.wait()
        else:
            self._note()
        return len(self.marks) >= self._wanted

    def _note(self) -> None:
        if len(self.marks) < self._wanted:
            self.marks.append(time.perf_counter())


# ---- plain sockets ----------------------------------------------------------------------------


def host_tcp(plan: Plan, pace: Pace, tell: Callable[[int], None]) -> list[float]:
    rounds = Rounds(plan, pace)
    model = bytes(plan.num_bytes)
    state = plan.folder / f"state-{pace}"
    state.mkdir()

    def talk(plain: socket.socket, number: int) -> None:
        line = tls_context(plan, HOST).wrap_socket(plain, server_side=True) if tls else plain
        back = memoryview(bytearray(plan.num_bytes))
        with line:
            for count in range(plan.num_marks(pace)):
                line.sendall(model)
                if plan.case.durable:
                    with open(state / f"{number}-{count}", "wb", buffering=0) as file:
                        receive(line, back, file.write)
                        os.fsync(file.fileno())
                else:
                    receive(line, back)
                if rounds.done():
                    return

    tls = plan.case.tls
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        tell(listener.getsockname()[1])
        lines = [listener.accept()[0] for _ in range(plan.num_learners)]
        for _ in pool.map(talk, lines, range(plan.num_learners)):
            pass
    return rounds.marks


def attend_tcp(plan: Plan, name: str, port: int) -> None:
    model = memoryview(bytearray(plan.num_bytes))
    with socket.create_connection(("127.0.0.1", port)) as plain:
        line = plain
        if plan.case.tls:
            line = tls_context(plan, name).wrap_socket(plain, server_hostname="localhost")
        with line:
            try:
                while receive(line, model):
                    line.sendall(model)
            except (ConnectionError, ssl.SSLError):
                return  # the last update was somebody else's


def receive(
    line: socket.socket, into: memoryview, tell: Callable[[memoryview], object] | None = None
) -> bool:
    """Fill a buffer, and tell of each part that has come; False if the line was closed."""
    start = 0
    while start < len(into):
        count = line.recv_into(into[start : start + CHUNK])
        if not count:
            return False
        if tell:
            tell(into[start : start + count])
        start += count
    return True


# ---- bare grpcio ------------------------------------------------------------------------------


def host_grpc(plan: Plan, pace: Pace, tell: Callable[[int], None]) -> list[float]:
    keep_freed_memory()
    rounds = Rounds(plan, pace)
    model = bytes(plan.num_bytes)
    over = threading.Event()

    def fetch(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return chunks_of(memoryview(model))

    def deliver(chunks: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        gathered(chunks, plan)
        if rounds.done():
            over.set()
        return b"over" if over.is_set() else b"more"

    methods = {
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch),
        "Deliver": grpc.stream_unary_rpc_method_handler(deliver),
    }
    server = grpc.server(ThreadPoolExecutor(2 * plan.num_learners))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", methods),))
    if plan.case.tls:
        port = server.add_secure_port("127.0.0.1:0", server_credentials(*pem(plan, HOST)))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tell(port)
    over.wait()
    server.stop(grace=5.0).wait()
    return rounds.marks


def chunks_of(model: memoryview) -> Iterator[bytes]:
    for start in range(0, len(model), CHUNK):
        yield bytes(model[start : start + CHUNK])


def gathered(chunks: Iterator[bytes], plan: Plan) -> memoryview:
    whole = Gathered(plan.num_bytes)
    for _ in whole.passing(chunks):
        pass
    return whole.content


def attend_grpc(plan: Plan, name: str, port: int) -> None:
    keep_freed_memory()
    address = f"127.0.0.1:{port}"
    credentials = shown(plan, name)
    with (
        grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    ) as channel:
        fetch, deliver = channel.unary_stream("/bare/Fetch"), channel.stream_unary("/bare/Deliver")
        try:
            while deliver(chunks_of(gathered(fetch(b""), plan))) == b"more":
                pass
        except grpc.RpcError:
            return  # the last update was somebody else's


# ---- metis ------------------------------------------------------------------------------------


def host_metis(plan: Plan, pace: Pace, tell: Callable[[int], None]) -> list[float]:
    keep_freed_memory()
    marks: list[float] = []
    over = threading.Event()

    def note(record: Record) -> None:
        if record["kind"] == "version":
            marks.append(time.perf_counter())
        elif record["kind"] == "end":
            over.set()

    state = plan.folder / f"state-{pace}"
    state.mkdir()
    journal = Journal(state / "journal.jsonl" if plan.case.durable else None, (note,))
    chosen = recipe(f"{pace}-fedavg", Choices())
    values = np.random.default_rng(1990).standard_normal(plan.num_parameters, dtype=np.float32)
    controller = Controller(
        chosen.community,
        chosen.weighting,
        chosen.pacing,
        Snapshot(0, frozen(values)),
        min_learners=plan.num_learners,
    )
    terms = Terms(
        layout=plan.layout,
        config="wire",
        upload=Dense(plan.layout),
        lease_seconds=600.0,
        deadline_seconds=600.0,
        latest_models="memory",
        max_versions=plan.num_marks(pace),
        keep_updates=False,
    )
    packets = OnDisk(state / "packets") if plan.case.durable else InMemory()
    service = Service(terms, Ledger(controller), packets, journal, time.monotonic)
    opening, gate = Opening("127.0.0.1:0", plan.num_learners), None
    if plan.case.tls:
        ours = Credentials(plan.folder / HOST, datetime.now(UTC))
        gate = Gate(by_certificate(ours.identity_of))
        opening = replace(opening, credentials=server_credentials(*pem(plan, HOST)))
    server, port = serve(service, opening, gate)
    tell(port)
    over.wait()
    server.stop(grace=5.0).wait()
    journal.close()
    return marks


def attend_metis(plan: Plan, name: str, port: int) -> None:
    keep_freed_memory()
    codec = Dense(plan.layout)
    line = RpcLine(f"127.0.0.1:{port}", name, shown(plan, name))
    library = Library(line, Mirror(codec, codec), codec)
    profile = Profile(LearnerId(name), num_examples=1, steps_per_epoch=1)
    try:
        line.join(Hello(PROTOCOL, plan.layout.digest, "wire", profile, None))
        for order in line.orders():
            if isinstance(order, Farewell):
                return
            if isinstance(order, TrainOrder):
                trained = library.start_of(order)
                line.progress(order.task, 1)
                packet = pieces(*codec.parts(trained))  # as a site does
                line.deliver(Delivery(order.task, order.version, 1, 1, 0.0, None), packet)
    except LineError:
        return  # the last update was somebody else's
    finally:
        line.close()


HOSTS: dict[str, Serving] = {"tcp": host_tcp, "grpc": host_grpc, "metis": host_metis}
LEARNERS = {"tcp": attend_tcp, "grpc": attend_grpc, "metis": attend_metis}


# ---- certificates -----------------------------------------------------------------------------


def admit(root: Path, learners: Sequence[str]) -> None:
    """Make an authority, and a folder with key and certificate for the host and each learner."""
    now = datetime.now(UTC).replace(microsecond=0)
    authority.create(root / "ca", "Wire", now)
    roles: dict[str, Role] = {HOST: "controller", **dict.fromkeys(learners, "learner")}
    for name, role in roles.items():
        folder = root / name
        authority.request(folder, name, ("localhost", "127.0.0.1") if name == HOST else ())
        issued = authority.issue(root / "ca", name, folder / f"{name}.csr", now, role=role)
        (folder / f"{name}.crt").write_bytes(issued.pem)
        for file in ("ca.crt", "crl.pem"):
            shutil.copy(root / "ca" / file, folder)


def tls_context(plan: Plan, name: str) -> ssl.SSLContext:
    folder = plan.folder / name
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if name == HOST else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(folder / "ca.crt")
    made.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return made


def pem(plan: Plan, name: str) -> tuple[bytes, bytes, bytes]:
    """Return somebody's key and certificate, and that of the authority."""
    files = (f"{name}.key", f"{name}.crt", "ca.crt")
    key, certificate, ca = ((plan.folder / name / file).read_bytes() for file in files)
    return key, certificate, ca


def shown(plan: Plan, name: str) -> grpc.ChannelCredentials | None:
    """Return what a learner proves itself by, if it is to."""
    return channel_credentials(*pem(plan, name)) if plan.case.tls else None


# ---- Flower -----------------------------------------------------------------------------------

FLOWER = Path(__file__).parent / "peers" / "wire_flwr.py"


def flower_marks(plan: Plan, venv: Path) -> list[float]:
    """Return when each of Flower's rounds was done."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    numbers = map(str, (plan.num_parameters, plan.num_learners, plan.num_rounds + WARM_UP))
    after = [*numbers, address]
    command = [str(venv / "bin" / "python"), "-W", "ignore", str(FLOWER)]
    learners = []
    host = subprocess.Popen(
        [*command, "host", *after], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        for _ in range(plan.num_learners):
            learners.append(
                subprocess.Popen(
                    [*command, "learner", *after],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        out, errors = host.communicate(timeout=600)
    finally:
        for process in (host, *learners):
            process.kill()
            process.wait()
    if host.returncode:
        raise RuntimeError(f"Flower ended badly: {errors.decode()[-2000:]}")
    marks: list[float] = json.loads(out.splitlines()[-1])
    return marks


def flower_version(venv: Path) -> str:
    script = "from importlib.metadata import version; print(version('flwr'))"
    command = [str(venv / "bin" / "python"), "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
