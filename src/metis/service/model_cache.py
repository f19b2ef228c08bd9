"""The models that a site's orders speak of: those it has or can make, the others fetched."""

from __future__ import annotations

import contextlib
import threading

from metis.core.codec import Codec
from metis.core.errors import ModelError
from metis.core.types import Vector, as_vector
from metis.service.connection import (
    Connection,
    EvaluateOrder,
    ModelOf,
    ModelRef,
    PacketOf,
    SnapshotOf,
    TrainOrder,
    UpdateOf,
)
from metis.service.downloads import SLACK_BYTES
from metis.service.mirror import Mirror
from metis.storage.packets import Gathered, Piece


class Library:
    """Trainer and judge share one. Raises LineError, or ModelError for what is not to be had."""

    def __init__(self, line: Connection, mirror: Mirror, upload: Codec) -> None:
        self._line = line
        self._mirror = mirror
        self._upload = upload
        self._turn = threading.Lock()

    @property
    def layout(self) -> str:
        return self._mirror.snapshot.layout.digest

    def holds(self) -> tuple[int, int] | None:
        """Return the oldest and the newest version that can be made without asking."""
        with self._turn:
            return self._mirror.holds

    def start_of(self, order: TrainOrder) -> Vector:
        """Return the model that a task starts from."""
        with self._turn:
            if SnapshotOf(order.version) in order.items:
                self._take_snapshot(order.version)
            return self._version(order.version)

    def candidate(self, order: EvaluateOrder) -> Vector:
        """Return the model to be judged: of its packet if its base can be had, else as a whole."""
        if UpdateOf(order.task) in order.items:
            with contextlib.suppress(ModelError):
                with self._turn:
                    base = self._version(order.base_version)
                return as_vector(self._upload.decode(self._fetched(UpdateOf(order.task)), base))
        return self._mirror.snapshot.decode(self._fetched(ModelOf(order.task)))

    def _version(self, version: int) -> Vector:
        """Return a version, fetching what it takes: also what is yet to be fetched for training."""
        held = self._mirror.holds
        if held is None:
            self._take_snapshot(version)
        else:
            for number in range(held[1] + 1, version + 1):
                self._mirror.take_packet(number, self._fetched(PacketOf(number)))
        return self._mirror.make(version)

    def _take_snapshot(self, version: int) -> None:
        self._mirror.take_snapshot(version, self._fetched(SnapshotOf(version)))

    def _fetched(self, item: ModelRef) -> Piece:
        """Return a packet. ModelError if it is longer than a whole model can be."""
        gathered = Gathered(self._mirror.snapshot.num_bytes + SLACK_BYTES)
        for _ in gathered.passing(self._line.fetch(item)):
            pass
        # What was compressed is short, and may be kept: not with all that room behind it.
        whole = isinstance(item, SnapshotOf | ModelOf)
        return gathered.content if whole else bytes(gathered.content)
