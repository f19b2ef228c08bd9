"""The values that a checkpoint of either shell may hold; each shell adds its own. Needs no torch.

Where the latest models are on disk, a checkpoint names their files and holds none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metis.codecs.choose import STORED as CODECS
from metis.core.community import CachedAverage, Community
from metis.core.controller import Controller
from metis.core.stored import STORED as CORE
from metis.core.types import read_only
from metis.federation.transfers import STORED as TRANSFERS
from metis.storage.latest import STORED as LATEST
from metis.storage.latest import LatestOnDisk
from metis.storage.pack import Names

NAMES = Names(CORE) | Names(CODECS) | Names(TRANSFERS) | Names(LATEST)


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
