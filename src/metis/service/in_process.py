"""A line without a network: calls the service. For tests, and for a federation in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metis.core.types import Counts, LearnerId
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
from metis.service.service import Service
from metis.storage.packets import Piece


class InProcessConnection:
    """The line of one learner."""

    def __init__(self, service: Service, learner: LearnerId) -> None:
        self._service = service
        self._learner = learner
        self._session = 0

    def charter(self) -> FederationInfo:
        return self._service.charter()

    def join(self, hello: Hello) -> Welcome:
        welcome = self._service.join(self._learner, hello)
        self._session = welcome.session
        return welcome

    def orders(self) -> Iterator[Order | None]:
        return self._service.orders(self._learner, self._session, wait_seconds=0.1)

    def fetch(self, item: ModelRef) -> Iterator[Piece]:
        return self._service.fetch(self._learner, item)

    def progress(self, task: int, num_steps: int) -> ProgressReply:
        return self._service.progress(self._learner, task, num_steps)

    def deliver(self, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        return self._service.deliver(self._learner, delivery, packet)

    def fail(self, task: int, reason: str, traceback: str = "") -> None:
        self._service.fail(self._learner, task, reason, traceback)

    def score(self, evaluation: int, counts: Counts | None) -> None:
        self._service.score(self._learner, evaluation, counts)

    def leave(self, withdraw: bool) -> None:
        self._service.leave(self._learner, withdraw)
