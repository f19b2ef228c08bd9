"""What travels between controller and learners in virtual time, and in how many bytes.

A learner's update is packed by the codec for uploads, against the version it started from. A
community model is packed, if its codec asks for it, against the version before. Whoever holds no
version, because it has just joined or come back, is sent a snapshot; a learner that holds an older
version is sent all packets since, unless a snapshot is shorter. It keeps its snapshot and the
packets that came after, no more of them than a snapshot takes, so it can make any version in
between again. A judge that can make the base of an update, perhaps with some packets more, is sent
these and the learner's own packet; any other is sent the decoded model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from metis.codecs.dense import Dense
from metis.core.codec import Codec
from metis.core.types import LearnerId, Model, Vector
from metis.runtime.agenda import World


@dataclass(frozen=True, slots=True)
class Post:
    """Packs what is sent, for real, and knows what the other end must be sent to read it."""

    upload: Codec
    snapshot_bytes: int  # of a dense packet

    def carry(
        self, world: World, learner: LearnerId, weights: Vector, base: Vector, keep: bool
    ) -> tuple[Model, int, bytes | None]:
        """Send a model up; return what is decoded there, its bytes and, if wanted, the packet."""
        if isinstance(self.upload, Dense) and not keep:
            return weights, self.upload.num_bytes, None  # exact, so nothing is copied
        packet, residual = self.upload.encode(weights, base, world.residuals.get(learner))
        if residual is not None:
            world.residuals[learner] = residual
        return self.upload.decode(packet, base), len(packet), packet if keep else None

    def publish(self, world: World, version: int, packet: bytes | None) -> None:
        """Note the packet of a new version; forget packets that nobody will be sent again."""
        if packet is None:
            return
        world.packets[version] = len(packet)
        while sum(world.packets.values()) >= self.snapshot_bytes:
            del world.packets[next(iter(world.packets))]

    def bytes_to_learner(self, world: World, learner: LearnerId, version: int) -> int:
        """Return how many bytes bring a learner to a version.

        It holds that one from now on, if it is there to receive it.
        """
        if world.packets:
            num_bytes = self._bytes_to_reach(world, learner, version)
            if num_bytes is not None:
                return num_bytes
        if learner not in world.down:
            world.holds[learner] = (version, version)
        return self.snapshot_bytes

    def bytes_to_judge(
        self, world: World, judge: LearnerId, base_version: int, packet_bytes: int
    ) -> int:
        """Return how many bytes bring a judge an update that came in so many."""
        if not self.upload.needs_base:
            return self.snapshot_bytes
        more = self._bytes_to_reach(world, judge, base_version)
        return self.snapshot_bytes if more is None else more + packet_bytes

    def _bytes_to_reach(self, world: World, learner: LearnerId, version: int) -> int | None:
        """Return how many bytes of packets a learner lacks to make a version; None: too many.

        They are sent: it holds what it can make of them.
        """
        if learner not in world.holds:
            return None
        oldest, newest = world.holds[learner]
        if world.packets:  # it forgets packets when the controller does
            oldest = max(oldest, next(iter(world.packets)) - 1)
        missing = range(newest + 1, version + 1)
        if version < oldest or any(number not in world.packets for number in missing):
            return None
        world.holds[learner] = (oldest, max(newest, version))
        return sum(world.packets[number] for number in missing)


def packet_digest(packet: bytes) -> str:
    """Return the identity of a packet: SHA-256 over its bytes."""
    return hashlib.sha256(packet).hexdigest()
