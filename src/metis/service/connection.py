"""What a learner's site and the controller say to each other. A transport carries just this.

Only sites open connections. A site joins, then listens for orders; whatever an order needs it
fetches, and what comes of it is delivered. Everything may be said twice: a task is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from metis.core.types import Counts, Profile
from metis.storage.packets import Piece

#: Goes up with every change that older sites or controllers would not understand.
PROTOCOL = 2

_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class FederationInfo:
    """What a federation is, told to a site before it makes its learner."""

    protocol: int
    config: str  # as TOML: what every site must agree on
    layout: str  # digest
    num_classes: int
    federation: str  # tells this one from an earlier one in the same place


@dataclass(frozen=True, slots=True)
class Hello:
    """How a site introduces itself. Its name is not in here: that is its certificate's."""

    protocol: int
    layout: str  # digest
    config: str  # digest of what both sides must agree on
    profile: Profile
    holds: tuple[int, int] | None  # oldest and newest version it has or can make
    instance: str = ""  # tells one process of this name from the next


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a site is told when it has joined."""

    lease_seconds: float  # without progress for so long, a task is given up
    committed_steps: int
    federation: str
    session: int = 0  # tells one joining of a name from the next


@dataclass(frozen=True, slots=True)
class SnapshotOf:
    """A community model, as a dense packet."""

    version: int


@dataclass(frozen=True, slots=True)
class PacketOf:
    """What tells a version from the one before, as a packet of the download codec."""

    version: int


@dataclass(frozen=True, slots=True)
class UpdateOf:
    """The packet in which the answer to a task came."""

    task: int


@dataclass(frozen=True, slots=True)
class ModelOf:
    """The model that the answer to a task was decoded to, as a dense packet."""

    task: int


ModelRef: TypeAlias = SnapshotOf | PacketOf | UpdateOf | ModelOf


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """Train from a version. Fetch these items first, in this order."""

    task: int
    version: int
    committed_steps: int
    max_steps: int | None
    ordinal: int
    rate_factor: float  # what the learning rate is multiplied by
    all_examples: bool  # train on those held out, too
    items: tuple[ModelRef, ...]


@dataclass(frozen=True, slots=True)
class EvaluateOrder:
    """Score an update. The last item is the update, or its model; the others make its base."""

    evaluation: int
    task: int
    base_version: int
    items: tuple[ModelRef, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer was not taken, for this reason. There will be other work."""

    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndOfOrders:
    """No more orders. If it is over for this site there will never be any; else it comes back."""

    reason: str
    over: bool


Order: TypeAlias = TrainOrder | EvaluateOrder | Refusal | EndOfOrders


@dataclass(frozen=True, slots=True)
class ProgressReply:
    """What a site is told when it reports progress."""

    committed_steps: int
    is_open: bool  # the task is still its own


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer to a task, but for the packet itself."""

    task: int
    base_version: int
    num_examples: int
    num_steps: int
    seconds: float
    counts: Counts | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """An answer is on the controller's disk, or it was not taken."""

    taken: bool
    reason: str = ""


class Connection(Protocol):
    """A site's connection to the controller. `UnreachableError` when there is none."""

    def charter(self) -> FederationInfo: ...

    def join(self, hello: Hello) -> Welcome: ...

    def orders(self) -> Iterator[Order | None]:
        """Give orders as they come, for as long as the connection lasts; None now and then."""
        ...

    def fetch(self, item: ModelRef) -> Iterator[Piece]: ...

    def progress(self, task: int, num_steps: int) -> ProgressReply: ...

    def deliver(self, delivery: Delivery, packet: Iterable[Piece]) -> Receipt: ...

    def fail(self, task: int, reason: str, traceback: str = "") -> None: ...

    def score(self, evaluation: int, counts: Counts | None) -> None: ...

    def leave(self, withdraw: bool) -> None: ...


def pieces(*parts: Piece) -> Iterator[Piece]:
    """Give a packet, or its parts one after the other, in chunks that a transport can carry.

    They are views: nothing is copied before the transport does.
    """
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _CHUNK):
            yield view[start : start + _CHUNK]
