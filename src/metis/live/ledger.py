"""What a federation in real time must not forget, but for the packets themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metis.core.controller import Controller
from metis.core.types import LearnerId
from metis.runtime.post import Mail


@dataclass(frozen=True, slots=True)
class Settled:
    """The last answer a learner gave that was taken, or turned down for a reason."""

    task: int
    refused: str = ""


@dataclass(slots=True)
class Ledger:
    """Follows from the events of the journal alone; a checkpoint holds it at one place of that."""

    controller: Controller
    mail: Mail = field(default_factory=Mail)
    answered: dict[LearnerId, Settled] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)  # task -> bytes; neither folded nor not
    seconds: float = 0.0  # that the federation has been up
    crl_number: int = 0  # of the newest revocation list that was ever used
    folded: dict[LearnerId, int] = field(default_factory=dict)  # how many updates of each
    over: str | None = None  # why it is over, if it is


STORED: Mapping[str, type] = {"federation-state": Ledger, "last-answer": Settled}
