"""gRPC: the controller's end. Sites dial it; it never dials anybody.

Models travel as streams of chunks, so no message is large and neither end holds more than it must.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from metis.core.errors import ConfigError, LineError, MetisError, ModelError, RunError
from metis.core.types import LearnerId
from metis.live.service import Service
from metis.live.settings import CallLimits
from metis.store.packets import Piece
from metis.transport import convert
from metis.transport import wire_pb2 as wire
from metis.transport.chunks import SharedChunks, part_of
from metis.transport.gate import Gate, by_name, reason_code

FEDERATION = "metis.v1.Federation"
OPERATIONS = "metis.v1.Operations"

#: A connection that says nothing for so long is asked whether it is still there.
_KEEPALIVE_MS = 20_000
_MESSAGE_BYTES = 4 << 20  # the largest message: a chunk, or a large confusion matrix
OPTIONS = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # without it a dead connection may stay for long
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
]
_REASON_CHARACTERS = 2000
_FEW = 16  # learners that there is always room for
_TRACEBACK_CHARACTERS = 20_000
_HANDSHAKE_MS = 10_000  # that somebody who has connected may take to show who it is
_MOST_CONNECTIONS = 65_536
_OTHER_FILES = 128  # that a controller has open beside connections and packets on their way


class Endpoint:
    """Turns calls into calls of the service."""

    def __init__(self, service: Service, gate: Gate, stop: Callable[[str], None]) -> None:
        self._service = service
        self._gate = gate
        self._stop = stop

    # ---- what sites call ----------------------------------------------------------------------

    def charter(self, raw: bytes, context: grpc.ServicerContext) -> wire.CharterText:
        with self._caller(context, "learner"):
            return convert.charter_message(self._service.charter())
        raise AssertionError

    def join(self, raw: bytes, context: grpc.ServicerContext) -> wire.Welcome:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.Hello, raw)
            welcome = self._service.join(learner, convert.hello_of(request, learner))
            return wire.Welcome(
                lease_seconds=welcome.lease_seconds,
                committed_steps=welcome.committed_steps,
                federation=welcome.federation,
                session=welcome.session,
            )
        raise AssertionError

    def orders(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[wire.Order]:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.Listener, raw)
            for order in self._service.orders(learner, request.session):
                if not context.is_active():
                    return
                self._gate.check(context, "learner")  # it may have been revoked meanwhile
                yield convert.order_message(order)

    def fetch(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[Piece]:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.Item, raw)
            yield from self._service.fetch(learner, convert.item_of(request))

    def progress(self, raw: bytes, context: grpc.ServicerContext) -> wire.Standing:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.ProgressReport, raw)
            standing = self._service.progress(learner, request.task, request.num_steps)
            return wire.Standing(committed_steps=standing.committed_steps, is_open=standing.is_open)
        raise AssertionError

    def deliver(self, raw: Iterator[bytes], context: grpc.ServicerContext) -> wire.Receipt:
        with self._caller(context, "learner") as learner:
            parts = _parts(raw)
            first = next(parts, None)
            if not isinstance(first, wire.DeliveryPart) or first.WhichOneof("what") != "delivery":
                raise ModelError("a delivery begins with what it is an answer to")
            delivery = convert.delivery_of(first.delivery, self._service.terms.num_classes)
            receipt = self._service.deliver(learner, delivery, _contents(parts))
            return wire.Receipt(taken=receipt.taken, reason=receipt.reason)
        raise AssertionError

    def fail(self, raw: bytes, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.Failure, raw)
            reason = request.reason[:_REASON_CHARACTERS]
            where = request.traceback[-_TRACEBACK_CHARACTERS:]
            self._service.fail(learner, request.task, reason, where)
        return wire.Nothing()

    def score(self, raw: bytes, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.ScoreReport, raw)
            counts = None
            if request.HasField("counts"):
                counts = convert.counts_of(request.counts, self._service.terms.num_classes)
            self._service.score(learner, request.evaluation, counts)
        return wire.Nothing()

    def leave(self, raw: bytes, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context, "learner") as learner:
            request = _parsed(wire.Leaving, raw)
            self._service.leave(learner, request.withdraw)
        return wire.Nothing()

    # ---- what operators call ------------------------------------------------------------------

    def status(self, raw: bytes, context: grpc.ServicerContext) -> wire.Overview:
        with self._caller(context, "operator", "controller", "learner"):
            return convert.overview_message(self._service.overview())
        raise AssertionError

    def stop(self, raw: bytes, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context, "operator") as who:
            request = _parsed(wire.StopOrder, raw)
            reason = request.reason[:_REASON_CHARACTERS] or "no reason given"
            self._service.audit("stop", who, reason)
            self._stop(f"stopped by {who}: {reason}")
        return wire.Nothing()

    @contextmanager
    def _caller(self, context: grpc.ServicerContext, *roles: str) -> Iterator[LearnerId]:
        """Give who calls; what goes wrong becomes a status with the reason in words."""
        who = "somebody"
        try:
            with self._gate.open(context, *roles) as who:
                yield LearnerId(who)
            return
        except RunError:  # not the caller's fault, and nothing to be told of the disk
            status = (grpc.StatusCode.UNAVAILABLE, "the controller cannot go on")
        except MetisError as error:
            status = (reason_code(error), str(error)[:_REASON_CHARACTERS])
        except Exception:  # ours: the operator must see it, the caller need not
            sys.stderr.write(f"a call of {who} failed:\n{traceback.format_exc()}")
            status = (grpc.StatusCode.INTERNAL, "the controller could not answer this")
        context.abort(*status)

    def rpc_methods(self) -> dict[str, dict[str, Any]]:
        """Return every method, by service and by its name on the wire."""
        unary, out, into = (
            grpc.unary_unary_rpc_method_handler,
            grpc.unary_stream_rpc_method_handler,
            grpc.stream_unary_rpc_method_handler,
        )
        table: dict[str, dict[str, tuple[Any, Any]]] = {
            FEDERATION: {
                "Charter": (unary, self.charter),
                "Join": (unary, self.join),
                "Orders": (out, self.orders),
                "Fetch": (out, self.fetch),
                "Progress": (unary, self.progress),
                "Deliver": (into, self.deliver),
                "Fail": (unary, self.fail),
                "Score": (unary, self.score),
                "Leave": (unary, self.leave),
            },
            OPERATIONS: {
                "Status": (unary, self.status),
                "Stop": (unary, self.stop),
            },
        }
        write = {"Fetch": SharedChunks().message}
        return {
            service: {
                # Bytes come as they are: gRPC would keep memory for each that cannot be read.
                name: kind(method, None, write.get(name, as_message))
                for name, (kind, method) in methods.items()
            }
            for service, methods in table.items()
        }


def as_message(message: Any) -> bytes:
    """Return a message as it travels."""
    text: bytes = message.SerializeToString()
    return text


def _parsed(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise ModelError(f"what came is no {kind.DESCRIPTOR.name}") from None


def _parts(raw: Iterator[bytes]) -> Iterator[wire.DeliveryPart | Piece]:
    try:
        for message in raw:
            yield part_of(message)
    except DecodeError:
        raise ModelError("what came is no part of a delivery") from None
    except grpc.RpcError:
        raise LineError("the line went down in the middle of a packet") from None


def _contents(parts: Iterator[wire.DeliveryPart | Piece]) -> Iterator[Piece]:
    """Give the packet that follows a delivery. LineError if its end does not come: a stream that
    breaks looks to a server of gRPC like one that ends."""
    for part in parts:
        if not isinstance(part, wire.DeliveryPart):
            yield part
        elif part.WhichOneof("what") == "end":
            return
        else:
            yield part.content
    raise LineError("the line went down in the middle of a packet")


@dataclass(frozen=True, slots=True)
class Opening:
    """How a controller listens. Without credentials it hears this machine alone."""

    address: str
    num_learners: int
    credentials: grpc.ServerCredentials | None = None
    reflection: bool = False
    calls_at_once: int = CallLimits().calls_at_once


def serve(
    service: Service,
    opening: Opening,
    gate: Gate | None = None,
    stop: Callable[[str], None] = lambda reason: None,
) -> tuple[grpc.Server, int]:
    """Start to listen; return the server and its port."""
    # A call takes a thread for as long as it lasts. There are enough for all that everybody may
    # have under way, so that nobody can keep others out by calls that do not end.
    num_threads = opening.calls_at_once * max(_FEW, 2 * opening.num_learners) + 16
    server = grpc.server(
        ThreadPoolExecutor(num_threads, thread_name_prefix="rpc"),
        options=[
            *OPTIONS,
            ("grpc.so_reuseport", 0),  # one controller for one port
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.max_allowed_incoming_connections", _room_for_connections(opening.num_learners)),
        ],
        maximum_concurrent_rpcs=2 * num_threads,
    )
    gate = gate or Gate(by_name, CallLimits(calls_at_once=opening.calls_at_once), service.audit)
    for name, methods in Endpoint(service, gate, stop).rpc_methods().items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    _add_health(server, None if opening.credentials is None else gate, opening.reflection)
    port = _bind(server, opening)
    server.start()
    return server, port


def _room_for_connections(num_learners: int) -> int:
    """Return how many may connect, so that files can still be opened when so many have.

    Whoever connects takes one of the files that a process may have open, before it has shown who
    it is. As many as the machine allows are asked for first.
    """
    try:
        import resource
    except ImportError:  # no such limit on this system
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    most = min(soft, _MOST_CONNECTIONS) if soft != resource.RLIM_INFINITY else _MOST_CONNECTIONS
    return max(most // 2, most - _OTHER_FILES - 4 * num_learners)


def _add_health(server: grpc.Server, gate: Gate | None, reflection: bool) -> None:
    """Answer the question that load balancers and orchestrators ask; it tells nothing else.

    To watch is not possible: such calls do not end. In plain text a name is not asked for.
    """
    from grpc_health.v1 import health, health_pb2

    answer = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def check(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            if gate is not None:
                with gate.open(context, "operator", "controller", "learner"):
                    pass
        except MetisError as error:
            context.abort(reason_code(error), str(error)[:_REASON_CHARACTERS])
        if request.service not in ("", FEDERATION):
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return answer

    method = grpc.unary_unary_rpc_method_handler(
        check, health_pb2.HealthCheckRequest.FromString, as_message
    )
    handler = grpc.method_handlers_generic_handler(health.SERVICE_NAME, {"Check": method})
    server.add_generic_rpc_handlers((handler,))
    if reflection:
        from grpc_reflection.v1alpha import reflection as reflecting

        names = (FEDERATION, OPERATIONS, health.SERVICE_NAME, reflecting.SERVICE_NAME)
        reflecting.enable_server_reflection(names, server)


def _bind(server: grpc.Server, opening: Opening) -> int:
    address = opening.address
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        if opening.credentials is not None:
            port = server.add_secure_port(address, opening.credentials)
        elif host in ("127.0.0.1", "localhost", "::1"):
            port = server.add_insecure_port(address)
        else:
            raise ConfigError(
                f"{address}: without certificates only this machine may be listened to; "
                "use 127.0.0.1, or see `metis certs`"
            )
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"cannot listen on {address}: it is taken, or not an address of ours")
    return int(port)


def server_credentials(key: bytes, certificate: bytes, ca: bytes) -> grpc.ServerCredentials:
    """Return what a controller proves itself by; whoever calls must do so too."""
    return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
