"""What travels between controller and learners, and in how many bytes.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metis.codecs.dense import Dense
from metis.core.codec import Codec
from metis.core.types import LearnerId, Model, Vector


@dataclass(slots=True)
class Mail:
    """What the post must remember."""

    residuals: dict[LearnerId, Vector] = field(default_factory=dict)  # what packets left out
    # The oldest and the newest version that a learner has or can make.
    holds: dict[LearnerId, tuple[int, int]] = field(default_factory=dict)
    packets: dict[int, int] = field(default_factory=dict)  # bytes of each version's packet

    def hold(self, learner: LearnerId, versions: Sequence[int] | None) -> None:
        """Note the oldest and the newest version that a learner says it has; None: none at all."""
        if versions is None:
            self.holds.pop(learner, None)
        else:
            oldest, newest = versions
            self.holds[learner] = (oldest, newest)


@dataclass(frozen=True, slots=True)
class Route:
    """What somebody is sent: packets of these versions, or the whole model; bytes in all."""

    packets: tuple[int, ...]
    whole: bool
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Post:
    """Packs what is sent, for real, and knows what the other end must be sent to read it."""

    upload: Codec
    snapshot_bytes: int  # of a dense packet

    def carry(
        self, mail: Mail, learner: LearnerId, weights: Vector, base: Vector, keep: bool
    ) -> tuple[Model, int, bytes | None]:
        """Send a model up; return what is decoded there, its bytes and, if wanted, the packet."""
        if isinstance(self.upload, Dense) and not keep:
            return weights, self.upload.num_bytes, None  # exact, so nothing is copied
        packet, residual = self.upload.encode(weights, base, mail.residuals.get(learner))
        if residual is not None:
            mail.residuals[learner] = residual
        return self.upload.decode(packet, base), len(packet), packet if keep else None

    def publish(self, mail: Mail, version: int, packet: bytes | None) -> None:
        """Note the packet of a new version; forget packets that nobody will be sent again."""
        if packet is None:
            return
        mail.packets[version] = len(packet)
        while sum(mail.packets.values()) >= self.snapshot_bytes:
            del mail.packets[next(iter(mail.packets))]

    def to_learner(self, mail: Mail, learner: LearnerId, version: int) -> Route:
        """Return what brings a learner to a version. It holds that one from now on."""
        if mail.packets:
            packets = self._missing(mail, learner, version)
            if packets is not None:
                return Route(packets, False, sum(mail.packets[number] for number in packets))
        mail.holds[learner] = (version, version)
        return Route((), True, self.snapshot_bytes)

    def to_judge(self, mail: Mail, judge: LearnerId, base_version: int, packet_bytes: int) -> Route:
        """Return what brings a judge an update that came in so many bytes: the model as a whole,
        or its packet and what the judge lacks to make its base."""
        packets = None
        if self.upload.needs_base:
            packets = self._missing(mail, judge, base_version)
        if packets is None:
            return Route((), True, self.snapshot_bytes)
        more = sum(mail.packets[number] for number in packets)
        return Route(packets, False, more + packet_bytes)

    def _missing(self, mail: Mail, learner: LearnerId, version: int) -> tuple[int, ...] | None:
        """Return the packets a learner lacks to make a version; None if it needs a snapshot.

        They are sent: it holds what it can make of them.
        """
        if learner not in mail.holds:
            return None
        oldest, newest = mail.holds[learner]
        if mail.packets:  # it forgets packets when the controller does
            oldest = max(oldest, next(iter(mail.packets)) - 1)
        missing = tuple(range(newest + 1, version + 1))
        if version < oldest or any(number not in mail.packets for number in missing):
            return None
        mail.holds[learner] = (oldest, max(newest, version))
        return missing


def packet_digest(packet: bytes | memoryview) -> str:
    """Return the identity of a packet: SHA-256 over its bytes."""
    return hashlib.sha256(packet).hexdigest()


STORED: Mapping[str, type] = {"transfers": Mail}
