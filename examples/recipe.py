"""A recipe of one's own: metis run --policy examples/recipe.py:recipe"""

from __future__ import annotations

from dataclasses import dataclass

import metis


@dataclass(frozen=True, slots=True)
class ByRootExamples:
    """Between FedAvg and equal votes: p_k is the square root of the number of examples."""

    judged_by: metis.Judges = "nobody"

    def weigh(
        self, update: metis.Update, pooled: metis.Counts | None, versions_behind: int
    ) -> float:
        return float(update.num_examples**0.5)


def recipe() -> metis.Recipe:
    """Return rounds in which large learners count more, but not as much as with FedAvg."""
    return metis.Recipe(metis.RoundAverage(), ByRootExamples(), metis.Sync())
