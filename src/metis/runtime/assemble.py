"""From a config to a federation that is ready to run: the one place where all parts meet."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from metis import paper, zoo
from metis.config import PASSED, Config, Group
from metis.core.community import Mixing
from metis.core.controller import Controller
from metis.core.errors import ConfigError, DataError, ModelError
from metis.core.local_run import Learners, Trigger
from metis.core.recipes import Recipe
from metis.core.types import Layout, LearnerId, Snapshot, digest
from metis.data.dataset import Dataset
from metis.data.mistakes import with_wrong_labels
from metis.data.partition import Partition, deal, partition
from metis.data.picture import holdings
from metis.data.sources import load
from metis.data.split import holdout
from metis.learn.engines import Shared, choose, start
from metis.learn.epochs import Share
from metis.learn.flat import as_module, load_into
from metis.learn.prepare import preparation_named
from metis.learn.settings import TrainSettings
from metis.learn.workbench import Workbench
from metis.runtime.checkpoint import NAMES
from metis.runtime.compose import (
    check,
    controller_of,
    known_of,
    learner_groups,
    plan_of,
    recipe_of,
    trigger_of,
    with_metric,
)
from metis.runtime.journal import Record
from metis.runtime.plugin import absolute, call, names_of
from metis.runtime.records import LearnerRow, RunRecord, as_fields
from metis.runtime.simulate import Plan
from metis.store.pack import Names

if TYPE_CHECKING:
    from torch import nn

TINY = 0.05  # of a mini-batch: what is left for an epoch's last one is worth a word


@dataclass(frozen=True, slots=True)
class Federation:
    """Everything a simulation needs, and the first record of its journal."""

    config: Config  # resolved: what was used
    plan: Plan
    controller: Controller
    learners: Learners
    layout: Layout
    header: Record
    names: Names  # of all that a checkpoint may hold


@dataclass(frozen=True, slots=True)
class Parts:
    """A config with everything looked up that it names: what, by whom, how."""

    config: Config  # resolved
    recipe: Recipe
    dataset: Dataset
    division: Partition
    groups: Mapping[LearnerId, str]
    shares: Mapping[LearnerId, Share]

    def module(self) -> nn.Module:
        """Return a new module of the kind the config names, with the weights it starts from."""
        module = _module(self.config, self.dataset)
        if self.config.model.initial is not None:
            load_into(module, self.config.model.initial)
        return module

    def bench(self, module: nn.Module, shares: Mapping[LearnerId, Share]) -> Workbench:
        """Return what trains and scores for these learners with this module, which it takes."""
        return Workbench(
            module=module,
            dataset=self.dataset,
            shares=shares,
            training=_training(self.config, self.recipe),
            device=self.config.device,
            precision=self.config.precision,
            preparation=preparation_named(self.dataset.advice.augment),
            seed=self.config.seed,
        )

    def trigger(self, learner: LearnerId) -> Trigger:
        """Return what decides when a learner offers its model."""
        return trigger_of(self.config, self.recipe, self.config.groups[self.groups[learner]])


def lay_out(
    config: Config,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    loaded: Dataset | None = None,
    given: Recipe | None = None,
) -> Parts:
    """Resolve a config: load its data, divide it, fill in what was left open."""
    if given is not None:
        config = replace(config, policy=PASSED)
    if data is not None and not isinstance(data, Dataset):
        raise DataError(f"data must be a metis.Dataset, not a {type(data).__name__}")
    check(config, recipe_of(config, given))
    dataset = data or loaded or dataset_of(config)
    division = divide(config, dataset)
    dataset = labelled(config, dataset, division)
    if data is not None:
        config = replace(config, data=replace(config.data, name=PASSED))
    if model is not None:
        config = replace(config, model=replace(config.model, name=PASSED))
    config = resolve(config, dataset, given)
    chosen = recipe_of(config, given)
    if config.train.offer == "best" and not chosen.needs_loss:
        raise ConfigError(
            "train.offer = 'best' compares validation losses, which learners of "
            f"{config.policy} do not compute: it goes with adaptive ones (see `metis policies`)"
        )
    names = [LearnerId(name) for name in config.learner_names()]
    groups = dict(zip(names, learner_groups(config), strict=True))
    shares = _shares(config, chosen, dataset, division, groups)
    return Parts(config, chosen, dataset, division, groups, shares)


def assemble(
    config: Config,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    *,
    recipe: Recipe | None = None,
    loaded: Dataset | None = None,
    shared: Shared | None = None,
) -> Federation:
    """Build a federation. A module, dataset and recipe of the user's own go before those named.

    They are copied and stay as they are; the module's weights are version 0. `loaded` is the
    dataset that the config names, if it is loaded already; `shared` are trainers of other runs.
    """
    parts = lay_out(config, model, data, loaded, recipe)
    config, chosen, dataset = parts.config, parts.recipe, parts.dataset
    shares, groups, division = parts.shares, parts.groups, parts.division
    names = list(shares)
    module = parts.module() if model is None else _given(model, config)
    bench = parts.bench(module, shares)
    first = Snapshot(0, bench.flat.to_vector())
    if not np.isfinite(first.weights).all():
        raise ModelError("the initial model holds values that are not finite")
    layout = bench.layout
    at_work = min(config.learners, chosen.pacing.sample or config.learners)
    choice = choose(bench, config.engine, config.threads, at_work, config.memory_gib)
    config = replace(config, engine=choice.engine, threads=choice.threads)
    profiles = {profile.learner: profile for profile in bench.profiles()}
    controller = controller_of(config, first, layout, dataset.num_classes, chosen)
    validation = {name: len(share.validation) for name, share in shares.items()}
    plan = plan_of(config, profiles, validation, bench.has_batch_norm, layout, chosen)
    held = holdings(dataset.y_train, division, dataset.num_classes)
    header = RunRecord(
        **known_of(config, layout, dataset.num_classes, digest(first.weights), chosen),
        dataset=dataset.name,
        data=dataset.digest,
        partition=division.note,
        engine=choice.engine,
        engine_note=choice.note,
        batch_note=batch_note(bench),
        unplaced=division.unplaced,
        learners=[
            LearnerRow(
                learner=name,
                group=groups[name],
                examples=len(shares[name].train),
                validation_examples=len(shares[name].validation),
                holdings=row.tolist() if dataset.num_classes else [],
            )
            for name, row in zip(names, held, strict=True)
        ],
    )
    learners = start(bench, choice, shared)
    stored = NAMES | names_of(
        {
            "community": controller.community,
            "weighting": controller.weighting,
            "pacing": controller.pacing,
            "trigger": chosen.trigger,
        },
        NAMES,
    )
    return Federation(config, plan, controller, learners, layout, as_fields(header), stored)


def batch_note(bench: Workbench) -> str | None:
    """Return how many learners end their epochs with a mini-batch so small that it can spoil their
    models, and who has the smallest."""
    if bench.training.last_batch != "short":
        return None
    size, profiles = bench.training.batch_size, bench.profiles()
    last = {one.learner: bench.epochs.last_batch(one.learner) for one in profiles}
    several = [one.learner for one in profiles if one.steps_per_epoch > 1]
    tiny = {name: last[name] for name in several if last[name] <= TINY * size}
    if not tiny:
        return None
    first, most = min(tiny, key=lambda name: tiny[name]), max(tiny.values())
    return (
        f"{len(tiny)} of {len(profiles)} learners end each epoch with a mini-batch of at most "
        f"{most} example{'s' if most > 1 else ''} instead of {size} ({first}: {tiny[first]}), "
        'which can spoil a model; train.last_batch = "fill" fills it up'
    )


def resolve(config: Config, dataset: Dataset, given: Recipe | None = None) -> Config:
    """Fill in every key left open, from the data source, the policy and the paper.

    What follows from the policy alone (`train.proximal`, `horizon.test_every`) stays open, so that
    a run's config can be used with another policy. Paths become absolute.
    """
    advice = dataset.advice
    if given is None:
        # A function is given the metric that suits the data; its recipe may have another.
        chosen = recipe_of(with_metric(config, dataset.num_classes))
    else:
        chosen = recipe_of(config, given)
    config = with_metric(config, dataset.num_classes, chosen if config.has_own_policy else None)
    validation = config.validation
    seconds, versions = config.horizon.limits()
    horizon = replace(config.horizon, seconds=seconds, versions=versions)
    if chosen.holds_out and validation.fraction == 0:
        raise ConfigError(
            f"validation.fraction = 0, but {config.policy} needs held-out examples; 0.05 is usual"
        )
    alone = min(config.learners, chosen.pacing.sample or config.learners) < 2
    if alone and chosen.weighting.judged_by == "others":
        raise ConfigError(
            "validation.self_score = exclude leaves nobody to judge a learner that is at work alone"
        )
    if isinstance(chosen.community, Mixing) and "withdraw" in {i.kind for i in config.incidents}:
        raise ConfigError(
            f"incidents: {config.policy} keeps no record of single contributions, so none can be "
            "withdrawn; use leave"
        )
    if config.model.name not in (None, advice.model):
        # Which weights decay, and how much, was advised for another network.
        advice = replace(advice, weight_decay=0.0, weight_decay_on=())
    train = config.train
    train = replace(
        train,
        batch_size=_or(train.batch_size, advice.batch_size),
        learning_rate=_or(train.learning_rate, advice.learning_rate),
        momentum=_or(train.momentum, advice.momentum),
        weight_decay=_or(train.weight_decay, advice.weight_decay),
        weight_decay_on=_or(train.weight_decay_on, advice.weight_decay_on),
    )
    sizes = config.group_sizes()
    groups = {
        name: _resolve_group(config, dataset, train.batch_size, name, sizes[name])
        for name in config.groups
    }
    model = replace(
        config.model,
        name=absolute(_or(config.model.name, advice.model)),
        initial=config.model.initial and str(Path(config.model.initial).absolute()),
    )
    return replace(
        config,
        policy=absolute(config.policy),
        data=replace(config.data, name=absolute(config.data.name)),
        horizon=horizon,
        train=train,
        groups=groups,
        model=model,
    )


def divide(config: Config, dataset: Dataset) -> Partition:
    """Return who holds what. Unequal shares are dealt in turn to the groups, largest first.

    Its note tells of wrong labels too, which are `labelled`'s.
    """
    if config.learners > len(dataset.y_train):
        raise DataError(f"{config.learners} learners cannot share {len(dataset.y_train)} examples")
    dealt = config.partition.sizes != "uniform" and config.partition.classes != "natural"
    found = partition(
        dataset.y_train,
        config.learners,
        sizes=config.partition.sizes,
        classes=config.partition.classes,
        seed=config.seed,
        num_classes=dataset.num_classes,
        alpha=config.partition.alpha,
        shards=config.partition.shards,
        exponent=config.partition.exponent,
        class_rule=config.partition.class_rule,
        owners=dataset.owners,
        ranks=deal(list(config.group_sizes().values())) if dealt else None,
    )
    return replace(found, note="; ".join([found.note, *config.partition.mistakes_in_words()]))


def labelled(config: Config, dataset: Dataset, division: Partition) -> Dataset:
    """Return the dataset as learners see it: with the mistakes that the config tells of."""
    asked = config.partition
    if not asked.wrong_labels:
        return dataset
    names = config.learner_names()
    shares = {names.index(learner): share for learner, share in asked.wrong_labels.items()}
    return with_wrong_labels(dataset, division.indices, shares, asked.mistake, config.seed)


def _resolve_group(
    config: Config, dataset: Dataset, batch_size: int, name: str, num_learners: int
) -> Group:
    group = config.groups[name]
    fast, slow = paper.STEP_SECONDS.get(dataset.name, paper.DEFAULT_STEP_SECONDS)
    step = _or(group.seconds_per_step, slow if name == "slow" else fast)
    overhead = paper.REQUEST_OVERHEAD_SECONDS if config.costs.profile == "paper" else 0.0
    vc_tomb, vc_loss = paper.validation_cycle(
        config.partition.sizes, config.partition.classes, dataset.num_classes, name
    )
    return replace(
        group,
        learners=num_learners,
        seconds_per_step=step,
        seconds_per_evaluated_example=_or(
            group.seconds_per_evaluated_example, step * paper.EVALUATION_TO_TRAINING / batch_size
        ),
        request_overhead_seconds=_or(group.request_overhead_seconds, overhead),
        vc_tomb=_or(group.vc_tomb, vc_tomb),
        vc_loss=_or(group.vc_loss, vc_loss),
    )


def _or(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def _shares(
    config: Config,
    chosen: Recipe,
    dataset: Dataset,
    division: Partition,
    groups: Mapping[LearnerId, str],
) -> dict[LearnerId, Share]:
    """Hold out each learner's validation examples, where the policy asks for them."""
    fraction = config.validation.fraction if chosen.holds_out else 0.0
    shares = {}
    for position, (name, held) in enumerate(zip(groups, division.indices, strict=True)):
        kept, out = holdout(
            dataset.y_train[held],
            fraction,
            (config.seed, position),
            num_classes=dataset.num_classes,
            stratified=config.validation.stratified,
        )
        if chosen.needs_loss and len(out) == 0:
            raise DataError(
                f"{name} holds {len(held)} examples, none of which can be held out, but "
                f"{config.policy} needs a validation loss; use fewer learners or a milder split"
            )
        shares[name] = Share(held[kept], held[out], groups[name])
    return shares


def _training(config: Config, chosen: Recipe) -> TrainSettings:
    train = config.train
    return replace(train, proximal=_or(train.proximal, chosen.proximal))


def dataset_of(config: Config) -> Dataset:
    """Return the dataset a config names."""
    name, directory = config.data.name, config.data.directory
    if name == PASSED:
        raise ConfigError("data.name: this run's dataset was passed in Python; pass it again there")
    if name.endswith(".npz") or ":" not in name:
        return load(name, None if directory is None else Path(directory))
    dataset = call(name, "data.name")
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"data.name = {name!r} did not return a metis.Dataset")
    return dataset


def _given(model: nn.Module, config: Config) -> nn.Module:
    module = copy.deepcopy(as_module(model, "model"))  # the user's own keeps its weights
    if config.model.initial is not None:
        load_into(module, config.model.initial)
    return module


def _module(config: Config, dataset: Dataset) -> nn.Module:
    name = config.model.name or dataset.advice.model
    if name == PASSED:
        raise ConfigError("model.name: this run's model was passed in Python; pass it again there")
    if ":" in name:
        return as_module(call(name, "model.name"), f"what {name} returns")
    shape = preparation_named(dataset.advice.augment).output_shape(dataset.input_shape)
    options = config.model.options
    return zoo.build(name, shape, dataset.num_classes or 1, seed=config.seed, **options)
