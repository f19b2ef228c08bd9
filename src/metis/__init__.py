"""Metis: federated learning for learners that differ in data and speed.

import metis

result = metis.simulate(policy="async-dvw-adaptive", learners=10, horizon={"seconds": 120})
print(result.final_accuracy)
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from metis.core.errors import MetisError
from metis.data.dataset import Advice, Dataset

if TYPE_CHECKING:
    from torch import nn

    from metis.deploy.equip import Learner
    from metis.runtime.session import Result

__all__ = ["Advice", "Dataset", "Learner", "MetisError", "load_into", "simulate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Fetch what needs torch when it is asked for."""
    if name == "Learner":
        from metis.deploy.equip import Learner

        return Learner
    raise AttributeError(f"module 'metis' has no attribute {name!r}")


def simulate(
    config: str | PathLike[str] | None = None,
    *,
    model: nn.Module | Mapping[str, Any] | None = None,
    data: Dataset | Mapping[str, Any] | None = None,
    out: str | None = None,
    resume: str | None = None,
    progress: bool = False,
    **values: Any,
) -> Result:
    """Run a federation in virtual time and return what came of it.

    `config` is a TOML file; keyword values overrule it, tables as mappings:
    `train={"epochs": 2}`. `model` and `data` are your own module and dataset, or such tables that
    name known ones. With `out` the run is written to that directory, and an interrupted one is
    taken up again by `resume`. Raises MetisError for everything that is wrong with the input.
    """
    from contextlib import ExitStack
    from pathlib import Path

    from metis.config import load
    from metis.report.live import LiveView
    from metis.runtime import run as runs

    if config is not None and not isinstance(config, str | PathLike):
        raise MetisError("config is the path of a TOML file; pass values as keywords: policy=...")
    module = None if isinstance(model, Mapping) else model
    dataset = None if isinstance(data, Mapping) else data
    for name, given in (("model", model), ("data", data)):
        if isinstance(given, Mapping):
            values[name] = given
    if resume is not None and (config is not None or out is not None or values):
        raise MetisError("resume takes its settings from the run's own directory, no others")
    source = config if resume is None else Path(resume) / "config.toml"
    chosen = load(None if source is None else Path(source), **values)
    with ExitStack() as stack:
        listeners: tuple[Any, ...] = ()
        if progress:
            view = LiveView(*chosen.horizon.limits(), title=chosen.policy)
            listeners = (stack.enter_context(view),)
        if resume is not None:
            return runs.resume(Path(resume), model=module, data=dataset, listeners=listeners)
        target = None if out is None else Path(out)
        return runs.run(chosen, target, model=module, data=dataset, listeners=listeners)


def load_into(module: nn.Module, path: str) -> None:
    """Put the weights of a `.safetensors` file into your module, by tensor name."""
    from metis.training.flat import load_into as load_module

    load_module(module, path)
