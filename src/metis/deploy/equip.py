"""A site's equipment: from a config that divides one dataset, or from what a site brings itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from metis import paper
from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import Config, Group
from metis.core.errors import ConfigError, unknown
from metis.core.types import LearnerId
from metis.data.dataset import Dataset
from metis.data.settings import PartitionSettings
from metis.learn.cohort import Cohort
from metis.learn.flat import as_module
from metis.learn.loop import Loop
from metis.live.agree import agreed, digest_of
from metis.live.mirror import Mirror
from metis.live.site import Equipment, Pulse
from metis.runtime.assemble import Parts, lay_out
from metis.runtime.compose import recipe_of


@dataclass(frozen=True, slots=True)
class Learner:
    """What a site brings of its own: a model like everybody's, and its data, which stays there.

    `group` is a device class of the config, if it names any; its validation cycles follow from it.
    """

    model: nn.Module
    data: Dataset
    group: str = "site"

    def __post_init__(self) -> None:
        as_module(self.model, "model of a metis.Learner")
        if not isinstance(self.data, Dataset):
            raise ConfigError(
                f"data of a metis.Learner must be a metis.Dataset, not a {type(self.data).__name__}"
            )


def equip(parts: Parts, learner: LearnerId, config: str) -> tuple[Equipment, Mirror]:
    """Return what one of a config's learners needs to attend, and an empty mirror.

    `config` is the digest of what it has agreed to.
    """
    if learner not in parts.shares:
        raise ConfigError(unknown("learner", learner, parts.shares))
    mine = replace(parts, shares={learner: parts.shares[learner]})
    return _equipped(mine, learner, config, (mine.module(), mine.module()))


def equip_own(
    config: Config, learner: LearnerId, own: Learner, device: str = "cpu"
) -> tuple[Equipment, Mirror]:
    """Return the same for a site with a model and data of its own, trained as the config says."""
    digest = digest_of(agreed(config))
    tomb, loss = paper.validation_cycle(
        config.partition.sizes, config.partition.classes, own.data.num_classes, own.group
    )
    group = config.groups.get(own.group, Group())
    group = replace(
        group,
        vc_tomb=tomb if group.vc_tomb is None else group.vc_tomb,
        vc_loss=loss if group.vc_loss is None else group.vc_loss,
    )
    alone = on_its_own(replace(config, device=device), own.group, group)
    parts = lay_out(alone, own.model, own.data)
    (share,) = parts.shares.values()
    mine = replace(
        parts,
        recipe=recipe_of(config),
        shares={learner: share},
        groups={learner: own.group},
    )
    return _equipped(mine, learner, digest, (own.model, copy.deepcopy(own.model)))


def on_its_own(config: Config, name: str, group: Group) -> Config:
    """Return the config of one site that holds all of its data; the others are elsewhere."""
    return replace(
        config,
        learners=1,
        groups={name: replace(group, learners=1)},
        partition=PartitionSettings(sizes="uniform", classes="iid"),
        recipe=replace(config.recipe, sample=None, min_learners=None),
        validation=replace(config.validation, self_score="include"),
        incidents=(),
    )


def _equipped(
    parts: Parts, learner: LearnerId, config: str, modules: Sequence[nn.Module]
) -> tuple[Equipment, Mirror]:
    trains, judges = (parts.bench(module, parts.shares) for module in modules)
    (profile,) = trains.profiles()
    pulse = Pulse()
    trainer = Cohort(trains, Loop(trains, pulse.beat))
    equipment = Equipment(
        name=learner,
        profile=profile,
        config=config,
        trigger=parts.trigger(learner),
        trainer=trainer,
        judge=Cohort(judges, Loop(judges), trainer.statistics),
        upload=codec_of(parts.config.upload, trains.layout),
        is_judged=parts.recipe.weighting.judged_by != "nobody",
        fixed_epochs=parts.config.train.epochs,
        ordered=partial(trainer.statistics.begin, learner),
        pulse=pulse,
    )
    mirror = Mirror(Dense(trains.layout), codec_of(parts.config.download, trains.layout))
    return equipment, mirror
