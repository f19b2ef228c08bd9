"""The community models that a site holds, or can make again from what it was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from metis.codecs.dense import Dense
from metis.core.codec import Codec
from metis.core.errors import ModelError
from metis.core.types import Vector, as_vector
from metis.storage.packets import Piece


@dataclass(slots=True)
class Mirror:
    """A snapshot and the packets that came after it, no more of them than a snapshot takes."""

    snapshot: Dense
    codec: Codec  # of downloads
    oldest: int = -1  # version of `base`; -1: nothing is held
    base: Vector | None = None
    packets: dict[int, Piece] = field(default_factory=dict)  # of the versions that follow
    made: tuple[int, Vector] | None = None  # the version made last, since it is wanted most

    @property
    def holds(self) -> tuple[int, int] | None:
        """The oldest and the newest version that can be made."""
        if self.base is None:
            return None
        return self.oldest, self.oldest + len(self.packets)

    def take_snapshot(self, version: int, packet: Piece) -> None:
        """Start anew from a whole model."""
        self.base = self.snapshot.decode(packet)
        self.oldest, self.packets = version, {}
        self.made = (version, self.base)

    def take_packet(self, version: int, packet: Piece) -> None:
        """Take what tells a version from the newest one held. A second time changes nothing."""
        held = self.holds
        if held is not None and version <= held[1]:
            return
        if held is None or version != held[1] + 1:
            raise ModelError(f"a packet of version {version} came to a site that holds {held}")
        self.packets[version] = packet
        while sum(map(len, self.packets.values())) >= self.snapshot.num_bytes:
            self.base = self.make(self.oldest + 1)
            self.oldest += 1
            del self.packets[self.oldest]

    def make(self, version: int) -> Vector:
        """Return a version. ModelError if it cannot be made of what is held."""
        held = self.holds
        if held is None or self.base is None or not held[0] <= version <= held[1]:
            raise ModelError(f"version {version} cannot be made here, only {held}")
        if self.made is not None and self.made[0] == version:
            return self.made[1]
        at, weights = self.oldest, self.base
        if self.made is not None and at <= self.made[0] < version:
            at, weights = self.made
        for number in range(at + 1, version + 1):
            weights = as_vector(self.codec.decode(self.packets[number], weights))
        self.made = (version, weights)
        return weights
