"""What a controller has ready for its sites: updates as they came, versions, whole models."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from metis.codecs.dense import Dense
from metis.core.controller import Controller
from metis.core.errors import ModelError
from metis.core.types import Layout, LearnerId, Model, dense
from metis.live.line import Item, ModelOf, PacketOf, SnapshotOf, UpdateOf, pieces
from metis.store.packets import Held, Packets, Piece

SLACK_BYTES = 4096  # that a packet may be longer than the model as it is


@dataclass(frozen=True, slots=True)
class Found:
    """What somebody may fetch: an item, and the models it may be made of."""

    item: Item
    models: Mapping[int, Model]  # by version; of a ModelOf, one by the number 0


def found_for(controller: Controller, learner: LearnerId, item: Item) -> Found:
    """Return what a learner asks for; ModelError if it is not there, or not for it to see."""
    match item:
        case UpdateOf(task) | ModelOf(task):
            for number, ticket in controller.evaluations.items():
                if ticket.update.task == task and ticket.waiting_for[number] == learner:
                    return Found(item, {0: ticket.update.weights})
            raise ModelError(
                f"the update of task {task} is not, or no more, for {learner} to judge"
            )
        case SnapshotOf(version):
            starts = [controller.current, *(task.start for task in controller.tasks.values())]
            models = {start.version: start.weights for start in starts}
            if version not in models:
                raise ModelError(f"version {version} is not handed out any more")
            return Found(item, models)
    return Found(item, {})


class Shelf:
    """Packets by what they are. Any thread may ask."""

    def __init__(self, packets: Packets, layout: Layout) -> None:
        self._packets = packets
        self._dense = Dense(layout)
        self._making = threading.Lock()
        self._snapshots: dict[int, Sequence[Piece]] = {}

    @property
    def snapshot_bytes(self) -> int:
        return self._dense.num_bytes

    # ---- updates ------------------------------------------------------------------------------

    def take(self, chunks: Iterable[Piece]) -> Held:
        """Receive a packet, and have it safe. ModelError if it is longer than any can be."""
        return self._packets.take(chunks, self.snapshot_bytes + SLACK_BYTES)

    def discard(self, held: Held) -> None:
        self._packets.discard(held)

    def keep_update(self, task: int, held: Held) -> None:
        """Make a packet the answer to a task."""
        self._packets.keep(f"task-{task}", held)

    def update(self, task: int) -> Piece:
        return self._packets.get(f"task-{task}")

    def update_pieces(self, task: int) -> Iterator[Piece]:
        return self._packets.chunks(f"task-{task}")

    def drop_update(self, task: int) -> None:
        self._packets.drop(f"task-{task}")

    def settled(self, task: int) -> None:
        """An update was folded or refused: only a recovery, or a replay, can want it again."""
        if not self._packets.durable:
            self.drop_update(task)

    def keep_updates(self, tasks: Collection[int]) -> None:
        """Drop the updates of all other tasks."""
        self._keep("task", tasks)

    # ---- versions -----------------------------------------------------------------------------

    def put_version(self, version: int, packet: bytes, keep: Collection[int]) -> None:
        """Keep what tells a version from the one before; of the others, keep these alone."""
        self._packets.keep(f"version-{version}", self._packets.take([packet], len(packet)))
        self._keep("version", {version, *keep})

    def version_pieces(self, version: int) -> Iterator[Piece]:
        return self._packets.chunks(f"version-{version}")

    def snapshot_pieces(self, version: int, model: Model, keep: Collection[int]) -> Iterator[Piece]:
        """Give a version as a packet, made once for all who start from it."""
        with self._making:
            if version not in self._snapshots:
                self._snapshots = {n: p for n, p in self._snapshots.items() if n in keep}
                self._snapshots[version] = self._packed(model)
            parts = self._snapshots[version]
        return pieces(*parts)

    def model_pieces(self, model: Model) -> Iterator[Piece]:
        return pieces(*self._packed(model))

    def pieces_of(self, found: Found) -> Iterator[Piece]:
        """Give what `found_for` found."""
        match found.item:
            case PacketOf(version):
                return self.version_pieces(version)
            case UpdateOf(task):
                return self.update_pieces(task)
            case ModelOf():
                return self.model_pieces(found.models[0])
            case SnapshotOf(version):
                return self.snapshot_pieces(version, found.models[version], found.models)

    def _packed(self, model: Model) -> Sequence[Piece]:
        return self._dense.parts(dense(model))

    def _keep(self, word: str, numbers: Collection[int]) -> None:
        kept = {f"{word}-{number}" for number in numbers}
        for name in self._packets.names() - kept:
            if name.startswith(f"{word}-"):
                self._packets.drop(name)
