"""Which values a checkpoint may hold; nothing else is ever made from one. Needs no torch.

Where the latest models are on disk, a checkpoint names their files and holds none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metis.codecs import dense, quantized, ternary
from metis.config import Incident
from metis.core import (
    codec,
    community,
    events,
    local_run,
    pacing,
    schedules,
    server_step,
    triggers,
    types,
    weighting,
)
from metis.core.community import CachedAverage, Community
from metis.core.controller import Controller, Ticket
from metis.core.types import read_only
from metis.federation import transfers as post
from metis.simulation import agenda
from metis.storage import latest
from metis.storage.latest import LatestOnDisk

_MODULES = (
    agenda,
    codec,
    community,
    dense,
    events,
    latest,
    local_run,
    pacing,
    post,
    quantized,
    schedules,
    server_step,
    ternary,
    triggers,
    types,
    weighting,
)
CLASSES: list[type] = [Controller, Ticket, Incident] + [
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, type)
    and hasattr(value, "__dataclass_fields__")
    and value.__module__ == module.__name__  # what it imports may have the name of another's
]


def cache_of(community: Community) -> CachedAverage | None:
    """Return the cached sum inside a community, if there is one."""
    while not isinstance(community, CachedAverage):
        inner = getattr(community, "community", None)
        if inner is None:
            return None
        community = inner
    return community


def place_latest(controller: Controller, where: str, directory: Path | None) -> None:
    """Have the latest models in memory, or on disk in a directory, wherever they are now."""
    cache = cache_of(controller.community)
    if cache is None or directory is None:
        return
    before = cache.latest
    if isinstance(before, LatestOnDisk):
        before.open(directory)
    if isinstance(before, LatestOnDisk) == (where == "disk"):
        return
    cache.latest = {}
    if where == "disk":
        cache.latest = LatestOnDisk(str(directory))
        cache.latest.open(directory)
    for learner in before:
        cache.latest[learner] = read_only(before[learner].copy())


def save(controller: Controller, write: Callable[[], None]) -> None:
    """Write a checkpoint of a controller: what it names is on disk before, and stays after."""
    cache = cache_of(controller.community)
    models = None if cache is None else cache.latest
    if isinstance(models, LatestOnDisk):
        models.sync()
    write()
    if isinstance(models, LatestOnDisk):
        models.pin()


def drop_latest(controller: Controller) -> None:
    """Drop the latest models that are on disk: the run is over, and its journal says it all."""
    cache = cache_of(controller.community)
    if cache is not None and isinstance(cache.latest, LatestOnDisk):
        cache.latest.remove()
