"""How a federation stands, for people who ask."""

from __future__ import annotations

from dataclasses import dataclass

from metis.core.types import Profile
from metis.service.coordinator import Coordinator


@dataclass(frozen=True, slots=True)
class Member:
    """A learner that was ever here."""

    name: str
    group: str
    state: str  # training, waiting, being judged, away
    task: int | None
    num_steps: int  # of its task, as far as is known
    num_updates: int  # of it that were folded
    seconds_silent: (
        float | None
    )  # since it was heard of; None: not since the controller was started


@dataclass(frozen=True, slots=True)
class Overview:
    """A federation at one moment."""

    policy: str
    version: int
    max_versions: int | None
    committed_steps: int
    seconds: float  # that it has been up
    queued: int  # updates that wait for their judges
    evaluations: int  # that are not answered
    over: str | None
    members: tuple[Member, ...]


def overview_of(desk: Coordinator) -> Overview:
    """Return how things stand now. Whoever calls holds the turn."""
    controller = desk.ledger.controller
    return Overview(
        policy=desk.terms.policy,
        version=controller.current.version,
        max_versions=desk.terms.max_versions,
        committed_steps=controller.committed_steps,
        seconds=desk.now(),
        queued=len(controller.queue),
        evaluations=len(controller.evaluations),
        over=desk.ledger.over,
        members=tuple(_member(desk, profile) for _, profile in sorted(controller.profiles.items())),
    )


def _member(desk: Coordinator, profile: Profile) -> Member:
    name, controller = profile.learner, desk.ledger.controller
    task = controller.task_of.get(name)
    state = "waiting"
    if task is not None:
        state = "training"
    elif any(ticket.update.learner == name for ticket in controller.queue):
        state = "being judged"
    elif name not in controller.members:
        state = "away"
    watch = None if task is None else desk.leases.get(task)
    heard = desk.site(name).heard
    return Member(
        name,
        profile.group,
        state,
        task,
        0 if watch is None else watch.num_steps,
        desk.ledger.folded.get(name, 0),
        None if heard is None else desk.clock() - heard,
    )
