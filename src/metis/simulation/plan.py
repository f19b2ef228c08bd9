"""The fixed settings of a simulation, and how they follow from a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import Config, Group, Incident
from metis.core.codec import Codec
from metis.core.recipes import Recipe
from metis.core.triggers import Trigger
from metis.core.types import Layout, LearnerId, Profile
from metis.federation.build import trigger_of


@dataclass(frozen=True, slots=True)
class Plan:
    """The fixed settings of a simulation."""

    profiles: Mapping[LearnerId, Profile]
    costs: Mapping[LearnerId, Group]
    triggers: Mapping[LearnerId, Trigger]
    validation_examples: Mapping[LearnerId, int]
    batch_size: int
    last_batch: str  # what becomes of an epoch's last mini-batch that is not full
    no_single: bool  # whether a mini-batch of one example is made one of two
    upload: Codec
    snapshot_bytes: int  # of a model that travels whole
    lease_seconds: float
    deadline_seconds: float
    fixed_epochs: int = 1  # of a task that trains on all examples
    test_every: int = 1
    max_versions: int | None = None
    max_seconds: float | None = None
    incidents: Sequence[Incident] = ()


def plan_of(
    config: Config,
    profiles: Mapping[LearnerId, Profile],
    validation_examples: Mapping[LearnerId, int],
    no_single: bool,
    layout: Layout,
    chosen: Recipe,
) -> Plan:
    """Return what a simulation of a resolved config goes by.

    What the data decides is passed in: a replay has it from the journal's first record.
    """
    groups = {name: config.groups[profile.group] for name, profile in profiles.items()}
    test_every = config.horizon.test_every
    return Plan(
        profiles=profiles,
        costs=groups,
        triggers={name: trigger_of(config, chosen, group) for name, group in groups.items()},
        validation_examples=validation_examples,
        batch_size=config.train.batch_size,
        last_batch=config.train.last_batch,
        no_single=no_single,
        fixed_epochs=config.train.epochs,
        upload=codec_of(config.upload, layout),
        snapshot_bytes=Dense(layout).num_bytes,
        test_every=test_every or (1 if chosen.pacing.rounds else config.learners),
        max_versions=config.horizon.versions,
        max_seconds=config.horizon.seconds,
        lease_seconds=config.train.lease_seconds,
        deadline_seconds=config.validation.deadline_seconds,
        incidents=config.incidents,
    )
