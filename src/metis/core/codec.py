"""How a model becomes bytes and a model again. The codecs themselves are in `metis.codecs`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from metis.core.community import Community, NextModel
from metis.core.types import LearnerId, Model, Update, Vector, dense


class Codec(Protocol):
    """Packs models. Both ends must agree on the layout and, if it needs one, on the base."""

    @property
    def needs_base(self) -> bool:
        """Whether a packet tells what has changed since a base, instead of the model itself."""
        ...

    def encode(
        self, weights: Vector, base: Vector, residual: Vector | None = None
    ) -> tuple[bytes, Vector | None]:
        """Return a model as a packet, and what the packet leaves out if that is to be kept.

        `residual` is what earlier packets left out: it is added to what has changed.
        """
        ...

    def decode(self, packet: bytes | memoryview, base: Vector) -> Model:
        """Return the model inside; ModelError, and nothing worse, if the packet is no good."""
        ...


@dataclass(slots=True)
class Published:
    """A community whose every model is what its packet says: learners hold just that.

    A packet tells what has changed since the version before, so whoever holds that one needs only
    the packet. What a packet leaves out comes with later ones: a community that adds up whole
    models still has it in its sum, one that adds up a round's differences needs the codec's error
    feedback. A model that no packet can hold raises ModelError.
    """

    community: Community
    codec: Codec
    residual: Vector | None = None

    def fold(self, update: Update, weight: float, base: Vector) -> None:
        self.community.fold(update, weight, base)

    def drop(self, learner: LearnerId) -> bool:
        return self.community.drop(learner)

    def model(self, current: Vector) -> NextModel:
        made = self.community.model(current)
        packet, self.residual = self.codec.encode(made.weights, current, self.residual)
        return replace(made, weights=dense(self.codec.decode(packet, current)), packet=packet)

    def reject(self, current: Vector) -> None:
        self.community.reject(current)
        self.residual = None  # what was left out may be what does not fit
