"""What a controller has ready for its sites: updates as they came, versions, whole models."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from metis.codecs.dense import Dense
from metis.core.errors import GoneError
from metis.core.types import Layout, Model, Vector, as_vector
from metis.service.connection import pieces
from metis.storage.packets import Held, Packets, Piece

SLACK_BYTES = 4096  # that a packet may be longer than the model as it is


class Downloads:
    """Packets by what they are. Any thread may ask."""

    def __init__(self, packets: Packets, layout: Layout) -> None:
        self._packets = packets
        self._dense = Dense(layout)
        self._making = threading.Lock()
        self._snapshots: dict[int, Sequence[Piece]] = {}
        self._offered: Mapping[int, Vector] = {}

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

    def offer(self, versions: Mapping[int, Vector]) -> None:
        """Have these versions ready, and no others."""
        self._offered = versions
        with self._making:
            self._snapshots = {n: p for n, p in self._snapshots.items() if n in versions}

    def snapshot_pieces(self, version: int) -> Iterator[Piece]:
        """Give a version as a packet, made once for all who start from it.

        Waits for nobody but who makes it: not for the event that led to it to be written down.
        """
        model = self._offered.get(version)
        if model is None:
            raise GoneError(f"version {version} is not handed out any more")
        with self._making:
            if version not in self._snapshots:
                # The same views for everybody, by which a transport knows them again.
                self._snapshots[version] = list(pieces(*self._packed(model)))
            return iter(self._snapshots[version])

    def model_pieces(self, model: Model) -> Iterator[Piece]:
        return pieces(*self._packed(model))

    def _packed(self, model: Model) -> Sequence[Piece]:
        return self._dense.parts(as_vector(model))

    def _keep(self, word: str, numbers: Collection[int]) -> None:
        kept = {f"{word}-{number}" for number in numbers}
        for name in self._packets.names() - kept:
            if name.startswith(f"{word}-"):
                self._packets.drop(name)
