"""Several runs as one: their learners are computed together, wherever they belong.

Each run goes on alone until its next moment needs mini-batches that are not computed; when all
have come to such a point, everything that is open in any of them is computed in one go. What a
run decides never depends on the others. On a GPU its bytes do not either; in a stack, the last
bits of a model may depend on how many others are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metis.config import Config
from metis.core.errors import Interrupted
from metis.learn.cohort import Cohort, Job
from metis.learn.engines import Shared
from metis.learn.threads import num_threads
from metis.runtime.assemble import dataset_of
from metis.runtime.journal import Listener
from metis.runtime.run import Opened, open_run
from metis.runtime.session import Session
from metis.runtime.signals import stop_requests


@dataclass(frozen=True, slots=True)
class JointRun:
    """A run to be made, or taken up again, or found finished; and who listens to it."""

    config: Config
    out: Path
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True)
class _Runs:
    """The sessions that are still going, and the trainers they share."""

    shared: Shared
    going: list[Session] = field(default_factory=list)

    def compute(self) -> None:
        """Compute everything that is open in any run."""
        jobs: dict[int, list[Job]] = {}
        for session in self.going:
            if isinstance(session.learners, Cohort):
                trainer = session.learners.trainer
                if trainer.together:
                    jobs.setdefault(id(trainer), []).extend(session.learners.open_jobs())
        for trainer in self.shared.trainers():
            if jobs.get(id(trainer)):
                trainer.train(jobs[id(trainer)])


def run_together(plans: Sequence[JointRun]) -> list[dict[str, Any]]:
    """Return the summaries of several runs: as they are there, or after going on with them.

    If the user stops it, every run is left so that it can be taken up again.
    """
    shared = Shared(len(plans))
    datasets = {plan.config.data: dataset_of(plan.config) for plan in plans}
    opened: list[Opened] = []
    try:
        for plan in plans:
            dataset = datasets[plan.config.data]
            opened.append(open_run(plan.config, plan.out, plan.listeners, dataset, shared))
        sessions = [one.session for one in opened if one.session is not None]
        threads = max((session.config.threads or 1 for session in sessions), default=1)
        with num_threads(threads):
            _see_through(_Runs(shared, sessions))
    finally:
        for one in opened:
            if one.session is not None:
                one.session.close()
    return [one.summary if one.session is None else one.session.result().summary for one in opened]


def _see_through(runs: _Runs) -> None:
    with stop_requests() as stop:
        while runs.going:
            for session in list(runs.going):
                while not session.is_waiting():
                    if not session.step():
                        runs.going.remove(session)
                        break
                    if stop.is_set():
                        break
            if stop.is_set() and runs.going:  # if the last has just ended, there is nothing to stop
                messages = [str(session.interrupted()) for session in runs.going]
                raise Interrupted(f"{len(messages)} runs left to do; the last: {messages[-1]}")
            runs.compute()
            # A run that shares with nobody computes for itself; it must not wait for ever.
            for session in list(runs.going):
                if session.is_waiting() and not session.step():
                    runs.going.remove(session)
