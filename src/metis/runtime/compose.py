"""A controller, and the plan of a simulation, from a config. Needs no torch: a server and a replay
build theirs here too."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, replace

from metis.codecs.choose import codec_of
from metis.codecs.dense import Dense
from metis.config import PASSED, Config, Group, is_file, late_learners
from metis.core.codec import Published
from metis.core.community import CachedAverage, Mixing
from metis.core.controller import Controller
from metis.core.errors import ConfigError
from metis.core.local_run import Trigger
from metis.core.policies import recipe
from metis.core.recipes import Recipe, with_buffers
from metis.core.schedules import SHAPES, ByVersion, Plateau, Schedule
from metis.core.scores import CLASS_SCORES, ERROR_SCORES
from metis.core.settings import Choices, RecipeSettings
from metis.core.triggers import AfterEpochs, AnyOf, ValidationCycle, WhenStale
from metis.core.types import Layout, LearnerId, Profile, Snapshot
from metis.core.weighting import ByValidation
from metis.runtime.plugin import call, source_digest, takes_arguments
from metis.runtime.records import Record
from metis.runtime.simulate import Plan


def recipe_of(config: Config, given: Recipe | None = None) -> Recipe:
    """Return the policy's recipe, whose parts belong to the caller.

    `given` is the recipe that was passed in Python, if the config says that there is one.
    """
    choices = Choices(config.recipe, config.validation, config.seed)
    if not config.has_own_policy:
        return recipe(config.policy, choices)
    if config.policy == PASSED:
        if given is None:
            raise ConfigError("policy: this run's recipe was passed in Python; pass it again there")
        _check_unused(config, "was passed in Python")
        return copy.deepcopy(given)
    made = call(config.policy, "policy", choices)
    if not isinstance(made, Recipe):
        raise ConfigError(
            f"policy = {config.policy!r} returned a {type(made).__name__}; it must return "
            "metis.Recipe(community, weighting, pacing)"
        )
    if not takes_arguments(config.policy, "policy"):
        _check_unused(config, "takes no argument")
    return copy.deepcopy(made)  # it may return the same parts each time


def _check_unused(config: Config, why: str) -> None:
    """Raise ConfigError for a number of the config that a recipe of the user's own never sees."""
    usual = RecipeSettings()
    for one in fields(RecipeSettings):
        value = getattr(config.recipe, one.name)
        if one.name != "min_learners" and value != getattr(usual, one.name):
            raise ConfigError(
                f"recipe.{one.name} = {value}: nothing would use it, since the policy {why}; "
                "give it to the parts of the recipe"
            )


def with_metric(config: Config, num_classes: int, chosen: Recipe | None = None) -> Config:
    """Return a config whose validation metric is named, and can score what is learned.

    In a recipe of the user's own it is the weighting that says how models are scored.
    """
    validation, regression = config.validation, num_classes == 0
    if chosen is not None and isinstance(chosen.weighting, ByValidation):
        metric, judges = chosen.weighting.metric, chosen.weighting.judged_by
        self_score = "include" if judges == "everybody" else "exclude"
        other_metric = validation.metric not in (None, metric)
        if other_metric or (validation.self_score, self_score) == ("exclude", "include"):
            raise ConfigError(
                f"validation: metric = {validation.metric!r} and self_score = "
                f"{validation.self_score!r}, but the recipe has {chosen.weighting}; leave both out"
            )
        validation = replace(validation, metric=metric, self_score=self_score)
        config = replace(config, validation=validation)
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


def check(config: Config, chosen: Recipe) -> None:
    """Raise ConfigError for keys that do not go with the policy, or with each other."""
    train = config.train
    if config.output.latest_models == "disk" and not isinstance(chosen.community, CachedAverage):
        raise ConfigError(
            f"output.latest_models = 'disk': {config.policy} keeps no latest models; "
            "policies with a cached average do (see `metis policies`)"
        )
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


def schedule_of(config: Config, chosen: Recipe) -> Schedule:
    """Return a fresh schedule of learning rates."""
    train = config.train
    if train.schedule != "plateau":
        return ByVersion(train.schedule, train.schedule_versions, train.schedule_factor)
    return Plateau(
        train.schedule_versions,
        train.schedule_factor,
        train.schedule_improvement,
        train.schedule_floor,
        chosen.pacing.sample or config.learners,
    )


def controller_of(
    config: Config,
    start: Snapshot,
    layout: Layout,
    num_classes: int,
    chosen: Recipe | None = None,
) -> Controller:
    """Return a fresh controller that holds version 0 and waits for its learners.

    `num_classes` is what judges count; 0 for a regression. It takes over the parts of the recipe.
    """
    chosen = chosen or recipe_of(config)
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
        schedule=schedule_of(config, chosen),
        release_from=release_from(config),
    )


def learner_groups(config: Config) -> list[str]:
    """Return the group of each learner: all of the first group, then all of the next."""
    return [name for name, size in config.group_sizes().items() for _ in range(size)]


def trigger_of(config: Config, chosen: Recipe, group: Group) -> Trigger:
    """Return what decides when a learner of a device class offers its model."""
    if chosen.trigger is not None:
        return chosen.trigger
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


def known_of(
    config: Config, layout: Layout, num_classes: int, initial: str, chosen: Recipe
) -> Record:
    """Return those fields of a journal's first record that follow from the config and the model.

    `initial` is the digest of version 0.
    """
    own = is_file(config.policy)
    source = {"policy_digest": source_digest(config.policy, "policy")} if own else {}
    return {
        "policy": config.policy,
        **source,
        "seed": config.seed,
        "num_classes": num_classes,
        "test_metric": "accuracy" if num_classes else "r2",
        "parameters": layout.size,
        "layout": layout.digest,
        "tensors": layout.as_rows(),
        "initial": initial,
        "upload": config.upload.in_words(),
        "download": config.download.in_words(),
        "judged": chosen.weighting.judged_by != "nobody",
        "release_from": release_from(config),
    }
