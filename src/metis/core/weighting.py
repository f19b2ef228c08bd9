"""What an update is worth: p_k of equation 1, or the mixing rate where there is no average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from metis.core.scores import score
from metis.core.types import Counts, Update

Judges: TypeAlias = Literal["nobody", "others", "everybody"]


class Weighting(Protocol):
    """Turns an update, and what its judges counted, into a weight of zero or more."""

    @property
    def judged_by(self) -> Judges:
        """Whose counts `weigh` is to be given: nobody's, all others', or also the learner's own."""
        ...

    def weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Equal:
    """One learner, one vote: the control that separates DVW from merely not using sizes."""

    judged_by: Judges = "nobody"

    def weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class ByExamples:
    """FedAvg: p_k is the number of training examples."""

    judged_by: Judges = "nobody"

    def weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float:
        return float(update.num_examples)


@dataclass(frozen=True, slots=True)
class ByValidation:
    """DVW: p_k is the score of the model on the validation sets of the federation, pooled.

    Never negative. Zero means that the update counts for nothing; there is no fall-back to
    example counts, whose scale is another (the authors' old code had one).
    """

    metric: str = "micro_f1"
    judged_by: Judges = "everybody"

    def weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float:
        return 0.0 if pooled is None else score(self.metric, pooled)


@dataclass(frozen=True, slots=True)
class ByStaleness:
    """FedAsync's polynomial, `rate * (staleness + 1) ** -exponent`, staleness in versions.

    A pure function of the staleness: the rate itself never decays. With rate 1 and exponent 0.5
    it is FedBuff's `1 / sqrt(1 + s)`.
    """

    rate: float = 0.5
    exponent: float = 0.5
    judged_by: Judges = "nobody"

    def weigh(self, update: Update, pooled: Counts | None, versions_behind: int) -> float:
        return float(self.rate * (versions_behind + 1) ** -self.exponent)
