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
from metis.federation.build import recipe_of
from metis.federation.handshake import agreed, digest_of
from metis.service.mirror import Mirror
from metis.service.site import Equipment, Pulse
from metis.simulation.build import Parts, lay_out
from metis.training.cohort import Cohort
from metis.training.engines.loop import Loop
from metis.training.flat import as_module


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
    (module, data), (judge_module, judge_data) = (parts.place(one) for one in modules)
    (profile,) = data.profiles()
    pulse = Pulse()
    trainer = Cohort(module, data, Loop(module, pulse.beat))
    equipment = Equipment(
        name=learner,
        profile=profile,
        config=config,
        trigger=parts.trigger(learner),
        trainer=trainer,
        own_judge=trainer,
        durable=trainer,
        judge=Cohort(judge_module, judge_data, Loop(judge_module), trainer.statistics),
        upload=codec_of(parts.config.upload, module.layout),
        is_judged=parts.recipe.weighting.judged_by != "nobody",
        fixed_epochs=parts.config.train.epochs,
        ordered=partial(trainer.statistics.begin, learner),
        pulse=pulse,
    )
    mirror = Mirror(Dense(module.layout), codec_of(parts.config.download, module.layout))
    return equipment, mirror
