"""A line without a network: calls the service. For tests, and for a federation in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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


class MemoryLine:
    """The line of one learner."""

    def __init__(self, service: Service, learner: LearnerId) -> None:
        self._service = service
        self._learner = learner

    def join(self, hello: Hello) -> Welcome:
        return self._service.join(self._learner, hello)

    def orders(self) -> Iterator[Order]:
        for order in self._service.orders(self._learner, wait_seconds=0.1):
            if order is not None:
                yield order

    def fetch(self, item: Item) -> Iterator[bytes]:
        return self._service.fetch(self._learner, item)

    def progress(self, task: int, num_steps: int) -> Standing:
        return self._service.progress(self._learner, task, num_steps)

    def deliver(self, delivery: Delivery, packet: Iterable[bytes]) -> Receipt:
        return self._service.deliver(self._learner, delivery, packet)

    def fail(self, task: int, reason: str) -> None:
        self._service.fail(self._learner, task, reason)

    def score(self, evaluation: int, counts: Counts | None) -> None:
        self._service.score(self._learner, evaluation, counts)

    def leave(self, withdraw: bool) -> None:
        self._service.leave(self._learner, withdraw)
