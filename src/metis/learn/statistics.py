"""Batch-norm's running statistics that learners keep to themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.types import Layout, LearnerId, Vector, frozen
from metis.learn.settings import TrainSettings

_NOWHERE: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(slots=True)
class Statistics:
    """Each learner's own: those that its next task begins with, and those that it judges with.

    It judges with what its latest task began with, whether or not it is through with that. So it
    does not matter in which order the updates of a round arrive.
    """

    places: NDArray[np.int64]  # where they lie in a model; none if learners share theirs
    last: dict[LearnerId, Vector] = field(default_factory=dict)  # in its last trained model
    begun: dict[LearnerId, Vector] = field(default_factory=dict)  # those its latest task began with

    def begin(self, learner: LearnerId) -> Vector | None:
        """Return what a task begins with; None: with those of the model it is sent."""
        own = self.last.get(learner)
        if own is not None:
            self.begun[learner] = own
        return own

    def finish(self, learner: LearnerId, trained: Vector) -> None:
        """Keep those of a trained model, if learners keep theirs to themselves."""
        if self.places.size:
            self.last[learner] = frozen(trained[self.places])

    def state(self) -> dict[str, Any]:
        """Return all that must outlive a crash, in types that `store.pack` can write."""
        return {"last": dict(self.last), "begun": dict(self.begun)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state, in place: a judge may share these."""
        for mine, saved in ((self.last, state["last"]), (self.begun, state["begun"])):
            mine.clear()
            mine.update(saved)


def statistics_of(training: TrainSettings, layout: Layout) -> Statistics:
    """Return the statistics of learners that have none yet."""
    return Statistics(layout.running_statistics() if training.local_statistics else _NOWHERE)
