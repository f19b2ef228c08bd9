"""A site's equipment from a config: its share of the data, its trainer, its judge."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import Config, Output, dump
from metis.core.errors import ConfigError, unknown
from metis.core.types import LearnerId
from metis.learn.cohort import Cohort
from metis.learn.loop import Loop
from metis.live.mirror import Mirror
from metis.live.site import Equipment
from metis.runtime.assemble import Parts


def agreement(config: Config) -> str:
    """Return a digest of all that a site and its controller must have in common.

    Where data lies, and on what a site computes, is its own business.
    """
    shared = replace(
        config,
        data=replace(config.data, directory=None),
        model=replace(config.model, initial=None),
        device="cpu",
        engine="auto",
        threads=None,
        memory_gib=8.0,
        output=Output(),
    )
    return hashlib.sha256(dump(shared).encode()).hexdigest()[:16]


def equip(parts: Parts, learner: LearnerId) -> tuple[Equipment, Mirror]:
    """Return what one of a config's learners needs to attend, and an empty mirror."""
    if learner not in parts.shares:
        raise ConfigError(unknown("learner", learner, parts.shares))
    mine = {learner: parts.shares[learner]}
    bench, other = (parts.bench(parts.module(), mine) for _ in range(2))
    (profile,) = bench.profiles()
    equipment = Equipment(
        name=learner,
        profile=profile,
        config=agreement(parts.config),
        trigger=parts.trigger(learner),
        trainer=Cohort(bench, Loop(bench)),
        judge=Cohort(other, Loop(other)),
        upload=codec_of(parts.config.upload, bench.layout),
        is_judged=parts.recipe.weighting.judged_by != "nobody",
    )
    mirror = Mirror(Dense(bench.layout), codec_of(parts.config.download, bench.layout))
    return equipment, mirror
