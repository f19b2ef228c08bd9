"""Metis: federated learning for learners that differ in data and speed.

import metis

result = metis.simulate(policy="async-dvw-adaptive", learners=10, horizon={"seconds": 120})
print(result.final_accuracy)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from metis.core.community import Buffer, CachedAverage, Community, Mixing, NextModel, RoundAverage
from metis.core.errors import MetisError
from metis.core.local_run import Progress, Trigger
from metis.core.pacing import Async, Buffered, Continuous, Pacing, Rounds, SemiSync, Sync
from metis.core.policies import recipe
from metis.core.recipes import Recipe
from metis.core.server_step import Adaptive, FedAvgM, ServerStep, Stepped
from metis.core.settings import Choices
from metis.core.triggers import AfterEpochs, AnyOf, ValidationCycle, WhenStale
from metis.core.types import Counts, LearnerId, Update, Vector
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal, Judges, Weighting
from metis.data.dataset import Advice, Dataset

if TYPE_CHECKING:
    from torch import nn

    from metis.deploy.equip import Learner
    from metis.runtime.session import Result

__all__ = [
    "Adaptive",
    "Advice",
    "AfterEpochs",
    "AnyOf",
    "Async",
    "Buffer",
    "Buffered",
    "ByExamples",
    "ByStaleness",
    "ByValidation",
    "CachedAverage",
    "Choices",
    "Community",
    "Continuous",
    "Counts",
    "Dataset",
    "Equal",
    "FedAvgM",
    "Judges",
    "Learner",
    "LearnerId",
    "MetisError",
    "Mixing",
    "NextModel",
    "Pacing",
    "Progress",
    "Recipe",
    "RoundAverage",
    "Rounds",
    "SemiSync",
    "ServerStep",
    "Stepped",
    "Sync",
    "Trigger",
    "Update",
    "ValidationCycle",
    "Values",
    "Vector",
    "Weighting",
    "WhenStale",
    "load_into",
    "recipe",
    "simulate",
]
__version__ = "0.1.0"


class Values(TypedDict, total=False):
    """The keys of a config that `simulate` takes as keywords; see `metis config`."""

    learners: int
    seed: int
    device: str
    engine: str
    threads: int | None
    precision: str
    memory_gib: float
    partition: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]]
    train: Mapping[str, Any]
    validation: Mapping[str, Any]
    recipe: Mapping[str, Any]
    horizon: Mapping[str, Any]
    upload: Mapping[str, Any]
    download: Mapping[str, Any]
    costs: Mapping[str, Any]
    incidents: Sequence[Mapping[str, Any]]
    output: Mapping[str, Any]
    live: Mapping[str, Any]


def __getattr__(name: str) -> Any:
    """Fetch what needs torch when it is asked for."""
    if name == "Learner":
        from metis.deploy.equip import Learner

        return Learner
    raise AttributeError(f"module 'metis' has no attribute {name!r}")


def simulate(
    config: str | PathLike[str] | None = None,
    *,
    policy: Recipe | str | None = None,
    model: nn.Module | Mapping[str, Any] | None = None,
    data: Dataset | Mapping[str, Any] | None = None,
    out: str | None = None,
    resume: str | None = None,
    progress: bool = False,
    **values: Unpack[Values],
) -> Result:
    """Simulate a federation and return its result.

    `config` is a TOML file; keyword values overrule it, tables as mappings:
    `train={"epochs": 2}`. `policy` is a recipe, a name of `metis policies`, or `file.py:function`.
    `model` and `data` are your own module and dataset, or such tables that name known ones. What
    you pass stays as it is. With `out` the run is written to that directory, and an interrupted
    one is continued by `resume`. Raises MetisError for everything that is wrong with the input.
    """
    from contextlib import ExitStack
    from pathlib import Path

    from metis.config import load
    from metis.report.live import LiveView
    from metis.report.runs import short_policy
    from metis.runtime import run as runs

    if config is not None and not isinstance(config, str | PathLike):
        raise MetisError("config is the path of a TOML file; pass values as keywords: policy=...")
    module = None if isinstance(model, Mapping) else model
    dataset = None if isinstance(data, Mapping) else data
    own = policy if isinstance(policy, Recipe) else None
    given: dict[str, Any] = dict(values)
    for name, value in (("model", model), ("data", data)):
        if isinstance(value, Mapping):
            given[name] = value
    if policy is not None and own is None:
        given["policy"] = policy
    if resume is not None and (config is not None or out is not None or given):
        raise MetisError("resume takes its settings from the run's own directory, no others")
    source = config if resume is None else Path(resume) / "config.toml"
    chosen = load(None if source is None else Path(source), **given)
    with ExitStack() as stack:
        listeners: tuple[Any, ...] = ()
        if progress:
            title = short_policy(chosen.policy) if own is None else "own recipe"
            view = LiveView(*chosen.horizon.limits(), title=title)
            listeners = (stack.enter_context(view),)
        if resume is not None:
            return runs.resume(
                Path(resume), model=module, data=dataset, recipe=own, listeners=listeners
            )
        target = None if out is None else Path(out)
        return runs.run(chosen, target, model=module, data=dataset, recipe=own, listeners=listeners)


def load_into(module: nn.Module, path: str) -> None:
    """Put the weights of a `.safetensors` file into your module, by tensor name."""
    from metis.learn.flat import load_into as load_module

    load_module(module, path)
