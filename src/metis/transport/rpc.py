"""gRPC: a service that sites dial, and the line they dial it by.

Models travel as streams of chunks, so no message is large and neither end holds more than it must.
Who calls is what the certificate says; without certificates only this very machine may call, and a
name is taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from metis.core.errors import (
    ConfigError,
    HandshakeError,
    JournalError,
    LineError,
    MetisError,
    ModelError,
)
from metis.core.types import Counts, LearnerId
from metis.live.line import (
    Delivery,
    Hello,
    Item,
    Order,
    Receipt,
    Standing,
    Welcome,
)
from metis.live.service import Service
from metis.transport import convert
from metis.transport import wire_pb2 as wire

SERVICE = "metis.v1.Federation"
NAME = "metis-name"  # metadata of a caller without a certificate

#: A connection that says nothing for so long is asked whether it is still there.
_KEEPALIVE_MS = 20_000
_CALL_SECONDS = 60.0
_OPTIONS = [
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
]
_CODES = {
    HandshakeError: grpc.StatusCode.FAILED_PRECONDITION,
    ModelError: grpc.StatusCode.INVALID_ARGUMENT,
    JournalError: grpc.StatusCode.NOT_FOUND,
}
_GONE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

#: Returns who calls. Raises a MetisError for strangers.
Identify = Callable[[grpc.ServicerContext], LearnerId]


# ---- the controller's end ---------------------------------------------------------------------


class Endpoint:
    """Turns calls into calls of the service."""

    def __init__(self, service: Service, identify: Identify) -> None:
        self._service = service
        self._identify = identify

    def join(self, request: wire.Hello, context: grpc.ServicerContext) -> wire.Welcome:
        with self._caller(context) as learner:
            welcome = self._service.join(learner, convert.hello_of(request, learner))
            return wire.Welcome(
                lease_seconds=welcome.lease_seconds, committed_steps=welcome.committed_steps
            )
        raise AssertionError

    def orders(self, request: wire.Nothing, context: grpc.ServicerContext) -> Iterator[wire.Order]:
        with self._caller(context) as learner:
            for order in self._service.orders(learner):
                if not context.is_active():
                    return
                yield convert.order_message(order)

    def fetch(self, request: wire.Item, context: grpc.ServicerContext) -> Iterator[wire.Chunk]:
        with self._caller(context) as learner:
            for piece in self._service.fetch(learner, convert.item_of(request)):
                yield wire.Chunk(content=piece)

    def progress(
        self, request: wire.ProgressReport, context: grpc.ServicerContext
    ) -> wire.Standing:
        with self._caller(context) as learner:
            standing = self._service.progress(learner, request.task, request.num_steps)
            return wire.Standing(committed_steps=standing.committed_steps, is_open=standing.is_open)
        raise AssertionError

    def deliver(
        self, request: Iterator[wire.DeliveryPart], context: grpc.ServicerContext
    ) -> wire.Receipt:
        with self._caller(context) as learner:
            first = next(request, None)
            if first is None or first.WhichOneof("what") != "delivery":
                raise ModelError("a delivery begins with what it is an answer to")
            delivery = convert.delivery_of(first.delivery)
            receipt = self._service.deliver(learner, delivery, _contents(request))
            return wire.Receipt(taken=receipt.taken, reason=receipt.reason)
        raise AssertionError

    def fail(self, request: wire.Failure, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context) as learner:
            self._service.fail(learner, request.task, request.reason[:2000])
        return wire.Nothing()

    def score(self, request: wire.ScoreReport, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context) as learner:
            counts = convert.counts_of(request.counts) if request.HasField("counts") else None
            self._service.score(learner, request.evaluation, counts)
        return wire.Nothing()

    def leave(self, request: wire.Leaving, context: grpc.ServicerContext) -> wire.Nothing:
        with self._caller(context) as learner:
            self._service.leave(learner, request.withdraw)
        return wire.Nothing()

    @contextmanager
    def _caller(self, context: grpc.ServicerContext) -> Iterator[LearnerId]:
        """Give who calls; what goes wrong becomes a status with the reason in words."""
        try:
            yield self._identify(context)
        except MetisError as error:
            code = _CODES.get(type(error), grpc.StatusCode.PERMISSION_DENIED)
            context.abort(code, str(error))

    def rpc_methods(self) -> dict[str, Any]:
        """Return every method by its name on the wire."""
        unary, out, into = (
            grpc.unary_unary_rpc_method_handler,
            grpc.unary_stream_rpc_method_handler,
            grpc.stream_unary_rpc_method_handler,
        )
        table = {
            "Join": (unary, self.join, wire.Hello),
            "Orders": (out, self.orders, wire.Nothing),
            "Fetch": (out, self.fetch, wire.Item),
            "Progress": (unary, self.progress, wire.ProgressReport),
            "Deliver": (into, self.deliver, wire.DeliveryPart),
            "Fail": (unary, self.fail, wire.Failure),
            "Score": (unary, self.score, wire.ScoreReport),
            "Leave": (unary, self.leave, wire.Leaving),
        }
        return {
            name: kind(method, message.FromString, lambda reply: reply.SerializeToString())
            for name, (kind, method, message) in table.items()
        }


def _contents(parts: Iterator[wire.DeliveryPart]) -> Iterator[bytes]:
    try:
        for part in parts:
            yield part.content
    except grpc.RpcError:
        raise ModelError("the line went down in the middle of a packet") from None


def by_name(context: grpc.ServicerContext) -> LearnerId:
    """Believe what a caller on this machine says its name is."""
    names = [value for key, value in context.invocation_metadata() if key == NAME]
    if not names or not isinstance(names[0], str):
        raise HandshakeError("a caller without a certificate must say its name")
    return LearnerId(names[0])


def serve(
    service: Service,
    address: str,
    num_learners: int,
    credentials: grpc.ServerCredentials | None = None,
    identify: Identify = by_name,
) -> tuple[grpc.Server, int]:
    """Start to listen; return the server and its port. Without credentials on this machine only."""
    # Every site that listens for orders takes a thread, and every model on its way another one.
    server = grpc.server(
        ThreadPoolExecutor(2 * num_learners + 16, thread_name_prefix="rpc"), options=_OPTIONS
    )
    methods = Endpoint(service, identify).rpc_methods()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        if credentials is not None:
            port = server.add_secure_port(address, credentials)
        elif host in ("127.0.0.1", "localhost", "::1"):
            port = server.add_insecure_port(address)
        else:
            raise ConfigError(
                f"{address}: without certificates only this machine may be listened to; "
                "use 127.0.0.1, or see `metis certs`"
            )
    except RuntimeError:
        port = 0
    if port == 0:
        raise ConfigError(f"cannot listen on {address}: it is taken, or not an address of ours")
    server.start()
    return server, port


# ---- a site's end -----------------------------------------------------------------------------


class RpcLine:
    """A line over gRPC. A lost connection is a LineError; it comes back by itself if it can."""

    def __init__(
        self, address: str, name: str, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._metadata = ((NAME, name),)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)

    def join(self, hello: Hello) -> Welcome:
        reply = self._ask("Join", convert.hello_message(hello), wire.Welcome)
        return Welcome(reply.lease_seconds, reply.committed_steps)

    def orders(self) -> Iterator[Order]:
        call = self._method("Orders", "unary_stream", wire.Order)
        with _as_our_errors():
            for message in call(wire.Nothing(), metadata=self._metadata):
                order = convert.order_of(message)
                if order is not None:
                    yield order

    def fetch(self, item: Item) -> Iterator[bytes]:
        call = self._method("Fetch", "unary_stream", wire.Chunk)
        with _as_our_errors():
            for chunk in call(convert.item_message(item), metadata=self._metadata):
                yield chunk.content

    def progress(self, task: int, num_steps: int) -> Standing:
        report = wire.ProgressReport(task=task, num_steps=num_steps)
        reply = self._ask("Progress", report, wire.Standing)
        return Standing(reply.committed_steps, reply.is_open)

    def deliver(self, delivery: Delivery, packet: Iterable[bytes]) -> Receipt:
        def parts() -> Iterator[wire.DeliveryPart]:
            yield wire.DeliveryPart(delivery=convert.delivery_message(delivery))
            for piece in packet:
                yield wire.DeliveryPart(content=piece)

        call = self._method("Deliver", "stream_unary", wire.Receipt)
        with _as_our_errors():
            reply = call(parts(), metadata=self._metadata)
        return Receipt(reply.taken, reply.reason)

    def fail(self, task: int, reason: str) -> None:
        self._ask("Fail", wire.Failure(task=task, reason=reason), wire.Nothing)

    def score(self, evaluation: int, counts: Counts | None) -> None:
        report = wire.ScoreReport(evaluation=evaluation)
        if counts is not None:
            report.counts.CopyFrom(convert.counts_message(counts))
        self._ask("Score", report, wire.Nothing)

    def leave(self, withdraw: bool) -> None:
        self._ask("Leave", wire.Leaving(withdraw=withdraw), wire.Nothing)

    def close(self) -> None:
        self._channel.close()

    def _ask(self, name: str, request: Any, reply: Any) -> Any:
        call = self._method(name, "unary_unary", reply)
        with _as_our_errors():
            return call(request, metadata=self._metadata, timeout=_CALL_SECONDS)

    def _method(self, name: str, kind: str, reply: Any) -> Any:
        make = getattr(self._channel, kind)
        return make(
            f"/{SERVICE}/{name}", lambda message: message.SerializeToString(), reply.FromString
        )


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or "no reason given"
        if code in _GONE:
            raise LineError(f"the controller cannot be reached: {details}") from None
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
            raise ModelError(details) from None
        raise HandshakeError(details) from None
