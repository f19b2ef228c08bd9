"""A controller, and the plan of a simulation, from a config. Needs no torch: a server and a replay
build theirs here too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import Config, Group, late_learners
from metis.core.codec import Published
from metis.core.community import CachedAverage, Mixing
from metis.core.controller import Controller
from metis.core.errors import ConfigError
from metis.core.local_run import Trigger
from metis.core.recipes import Recipe, recipe, with_buffers
from metis.core.schedules import SHAPES, ByVersion, Plateau, Schedule
from metis.core.scores import CLASS_SCORES, ERROR_SCORES
from metis.core.settings import Choices
from metis.core.triggers import AfterEpochs, AnyOf, ValidationCycle, WhenStale
from metis.core.types import Layout, LearnerId, Profile, Snapshot
from metis.runtime.records import Record
from metis.runtime.simulate import Plan


def recipe_of(config: Config) -> Recipe:
    """Return the policy's recipe with the config's numbers in it, and a community of its own."""
    return recipe(config.policy, Choices(config.recipe, config.validation, config.seed))


def with_metric(config: Config, num_classes: int) -> Config:
    """Return a config whose validation metric is named, and can score what is learned."""
    validation, regression = config.validation, num_classes == 0
    if validation.metric is None:
        metric = "inverse_mse" if regression else "micro_f1"
        return replace(config, validation=replace(validation, metric=metric))
    if validation.metric not in (ERROR_SCORES if regression else CLASS_SCORES):
        kind = "a regression" if regression else "a classification"
        raise ConfigError(
            f"validation.metric = {validation.metric!r} does not score {kind}; "
            f"use one of {', '.join(ERROR_SCORES if regression else CLASS_SCORES)}"
        )
    return config


def check(config: Config) -> None:
    """Raise ConfigError for keys that do not go with the policy, or with each other."""
    train, chosen = config.train, recipe_of(config)
    if train.schedule == "plateau":
        if chosen.weighting.judged_by == "nobody":
            raise ConfigError(
                f"train.schedule = 'plateau' follows validation scores, which {config.policy} does "
                f"not have: use one of {', '.join(SHAPES)}, or a DVW policy such as sync-dvw"
            )
        if train.schedule_factor >= 1:
            raise ConfigError(
                f"train.schedule_factor = {train.schedule_factor:g}: must be below 1 for "
                "train.schedule = 'plateau', which only lowers the rate"
            )

    released, versions = config.validation.release_last, config.horizon.versions
    if released is None:
        return
    if not chosen.holds_out:
        raise ConfigError(
            f"validation.release_last = {released}: {config.policy} holds out no examples that "
            "could be released; leave it out, or use a policy that does, such as sync-dvw"
        )
    if versions is None or released >= versions:
        at_most = "is not set" if versions is None else f"is only {versions}"
        raise ConfigError(
            f"validation.release_last = {released} counts back from horizon.versions, which "
            f"{at_most}: set horizon.versions to more than {released}"
        )


def release_from(config: Config) -> int | None:
    """Return the version from which tasks train on held-out examples, too; None: there is none."""
    released, versions = config.validation.release_last, config.horizon.versions
    return None if released is None or versions is None else versions - released


def schedule_of(config: Config) -> Schedule:
    """Return a fresh schedule of learning rates."""
    train = config.train
    if train.schedule != "plateau":
        return ByVersion(train.schedule, train.schedule_versions, train.schedule_factor)
    return Plateau(
        train.schedule_versions,
        train.schedule_factor,
        train.schedule_improvement,
        train.schedule_floor,
        config.recipe.sample or config.learners,
    )


def controller_of(config: Config, start: Snapshot, layout: Layout, num_classes: int) -> Controller:
    """Return a fresh controller that holds version 0 and waits for its learners.

    `num_classes` is what judges count; 0 for a regression.
    """
    chosen = recipe_of(config)
    if config.train.batch_norm_statistics == "local" and not layout.running_statistics().size:
        raise ConfigError(
            "train.batch_norm_statistics = 'local': the model has no batch normalization with "
            "running statistics; use 'shared'"
        )
    community = with_buffers(chosen.community, layout.spans("buffer"))
    download = codec_of(config.download, layout)
    if download.needs_base:
        if config.download.error_feedback and isinstance(community, CachedAverage | Mixing):
            raise ConfigError(
                f"download.error_feedback: {config.policy} keeps whole models in its sum, so what "
                "a packet leaves out comes with the next one anyway"
            )
        community = Published(community, download)
    late = late_learners(config.incidents)
    return Controller(
        community=community,
        weighting=chosen.weighting,
        pacing=chosen.pacing,
        current=start,
        min_learners=config.recipe.min_learners or max(1, config.learners - len(late)),
        num_classes=num_classes,
        schedule=schedule_of(config),
        release_from=release_from(config),
    )


def learner_groups(config: Config) -> list[str]:
    """Return the group of each learner: all of the first group, then all of the next."""
    return [name for name, size in config.group_sizes().items() for _ in range(size)]


def trigger_of(config: Config, chosen: Recipe, group: Group) -> Trigger:
    """Return what decides when a learner of a device class offers its model."""
    if not chosen.adaptive:
        return AfterEpochs(config.train.epochs)
    return AnyOf(
        (
            ValidationCycle(group.vc_loss, group.vc_tomb, config.train.burn_in_epochs),
            WhenStale(),
            AfterEpochs(config.train.max_epochs),
        )
    )


def plan_of(
    config: Config,
    profiles: Mapping[LearnerId, Profile],
    validation_examples: Mapping[LearnerId, int],
    no_single: bool,
    layout: Layout,
) -> Plan:
    """Return what a simulation of a resolved config goes by.

    What the data decides is passed in: a replay has it from the journal's first record.
    """
    chosen = recipe_of(config)
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


def known_of(config: Config, layout: Layout, num_classes: int, initial: str) -> Record:
    """Return those fields of a journal's first record that follow from the config and the model.

    `initial` is the digest of version 0.
    """
    return {
        "policy": config.policy,
        "seed": config.seed,
        "num_classes": num_classes,
        "test_metric": "accuracy" if num_classes else "r2",
        "parameters": layout.size,
        "layout": layout.digest,
        "tensors": layout.as_rows(),
        "initial": initial,
        "upload": config.upload.in_words(),
        "download": config.download.in_words(),
        "judged": recipe_of(config).weighting.judged_by != "nobody",
        "release_from": release_from(config),
    }
