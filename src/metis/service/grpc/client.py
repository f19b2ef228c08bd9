"""gRPC: the end of those who dial, sites and operators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from metis.core.errors import GoneError, HandshakeError, IdentityError, LineError, ModelError
from metis.core.types import Counts
from metis.service.connection import (
    Delivery,
    FederationInfo,
    Hello,
    ModelRef,
    Order,
    ProgressReply,
    Receipt,
    Welcome,
)
from metis.service.grpc import messages as convert
from metis.service.grpc import wire_pb2 as wire
from metis.service.grpc.access import NAME
from metis.service.grpc.chunks import chunk_content, part_message
from metis.service.grpc.idle import Pending, SilenceError, heard_from
from metis.service.grpc.server import FEDERATION, OPERATIONS, OPTIONS, as_message
from metis.service.status import Overview
from metis.storage.packets import Piece

_CALL_SECONDS = 60.0
SILENT_SECONDS = 120.0  # after which a stream is given up; of orders there is one every second
_STORING_SECONDS = 600.0  # that it may take until a model which was sent is on the other's disk
_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 10_000),
]
#: Plain text is for this machine; a proxy that leads elsewhere could not come back to it.
_NO_PROXY = [("grpc.enable_http_proxy", 0)]
_GONE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def channel_credentials(key: bytes, certificate: bytes, ca: bytes) -> grpc.ChannelCredentials:
    """Return what a caller proves itself by, and knows the controller by."""
    return grpc.ssl_channel_credentials(ca, key, certificate)


class GrpcConnection:
    """A line over gRPC. A lost connection is a LineError; it comes back by itself if it can."""

    def __init__(
        self, address: str, name: str, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._dial = Dial(address, name, credentials)
        self._session = 0

    def charter(self) -> FederationInfo:
        return convert.charter_of(self._dial.ask("Charter", wire.Nothing(), wire.CharterText))

    def join(self, hello: Hello) -> Welcome:
        reply = self._dial.ask("Join", convert.hello_message(hello), wire.Welcome)
        self._session = reply.session
        return Welcome(reply.lease_seconds, reply.committed_steps, reply.federation, reply.session)

    def orders(self) -> Iterator[Order | None]:
        call = self._dial.method("Orders", "unary_stream", wire.Order.FromString)
        with self._dial.errors():
            listener = wire.Listener(session=self._session)
            stream = call(listener, metadata=self._dial.metadata)
            for message in heard_from(stream, SILENT_SECONDS):
                yield convert.order_of(message)

    def fetch(self, item: ModelRef) -> Iterator[Piece]:
        call = self._dial.method("Fetch", "unary_stream", chunk_content)
        with self._dial.errors():
            stream = call(convert.item_message(item), metadata=self._dial.metadata)
            yield from heard_from(stream, SILENT_SECONDS)

    def progress(self, task: int, num_steps: int) -> ProgressReply:
        report = wire.ProgressReport(task=task, num_steps=num_steps)
        reply = self._dial.ask("Progress", report, wire.Standing)
        return ProgressReply(reply.committed_steps, reply.is_open)

    def deliver(self, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        pending = Pending(_STORING_SECONDS)

        def parts() -> Iterator[wire.DeliveryPart | Piece]:
            yield wire.DeliveryPart(delivery=convert.delivery_message(delivery))
            for piece in packet:
                yield piece
                pending.heard()
            yield wire.DeliveryPart(end=wire.Nothing())

        read = wire.Receipt.FromString
        call = self._dial.method("Deliver", "stream_unary", read, write=part_message)
        with self._dial.errors():
            under_way = call.future(parts(), metadata=self._dial.metadata)
            reply = pending.result(under_way)
        return Receipt(reply.taken, reply.reason)

    def fail(self, task: int, reason: str, traceback: str = "") -> None:
        report = wire.Failure(task=task, reason=reason, traceback=traceback)
        self._dial.ask("Fail", report, wire.Nothing)

    def score(self, evaluation: int, counts: Counts | None) -> None:
        report = wire.ScoreReport(evaluation=evaluation)
        if counts is not None:
            report.counts.CopyFrom(convert.counts_message(counts))
        self._dial.ask("Score", report, wire.Nothing)

    def leave(self, withdraw: bool) -> None:
        self._dial.ask("Leave", wire.Leaving(withdraw=withdraw), wire.Nothing)

    def close(self) -> None:
        self._dial.close()


class Operator:
    """Asks how a federation stands, and ends it."""

    def __init__(
        self, address: str, name: str, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._dial = Dial(address, name, credentials)

    def status(self) -> Overview:
        reply = self._dial.ask("Status", wire.Nothing(), wire.Overview, OPERATIONS)
        return convert.overview_of(reply)

    def stop(self, reason: str) -> None:
        self._dial.ask("Stop", wire.StopOrder(reason=reason), wire.Nothing, OPERATIONS)

    def close(self) -> None:
        self._dial.close()


class Dial:
    """A connection; it comes back by itself if it can."""

    def __init__(
        self, address: str, name: str, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self.metadata = ((NAME, name),)
        self._address = address
        self._credentials = credentials
        self._channel = self._opened()

    def _opened(self) -> grpc.Channel:
        options = OPTIONS + _RECONNECT
        if self._credentials is None:
            return grpc.insecure_channel(self._address, options + _NO_PROXY)
        return grpc.secure_channel(self._address, self._credentials, options)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what goes wrong into our errors; after a long silence, connect anew."""
        channel = self._channel
        try:
            with _as_our_errors():
                yield
        except SilenceError:
            if self._channel is channel:
                self._channel = self._opened()
                # What hangs may never be closed: that is not waited for.
                threading.Thread(target=channel.close, daemon=True).start()
            raise

    def ask(self, name: str, request: Any, reply: Any, service: str = FEDERATION) -> Any:
        call = self.method(name, "unary_unary", reply.FromString, service)
        with self.errors():
            return call(request, metadata=self.metadata, timeout=_CALL_SECONDS)

    def method(
        self,
        name: str,
        kind: str,
        read: Callable[[bytes], Any],
        service: str = FEDERATION,
        write: Callable[[Any], bytes] = as_message,
    ) -> Any:
        return getattr(self._channel, kind)(f"/{service}/{name}", write, read)

    def close(self) -> None:
        self._channel.close()


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or "no reason given"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise SilenceError(f"the controller cannot be reached: {details}") from None
        if code in _GONE:
            raise LineError(f"the controller cannot be reached: {details}") from None
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            raise ModelError(details) from None
        if code is grpc.StatusCode.NOT_FOUND:
            raise GoneError(details) from None
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise IdentityError(f"the controller refuses: {details}") from None
        raise HandshakeError(details) from None
