"""The model that a federation begins with, made where torch is."""

from __future__ import annotations

import numpy as np
import torch

from metis.config import Config
from metis.core.errors import ConfigError, ModelError
from metis.core.types import Layout, Vector
from metis.federation.plugin import call
from metis.service.site_setup import Learner
from metis.simulation.build import lay_out
from metis.training.flat import layout_of, load_into, vector_of


def first_model(config: Config, app: str | None = None) -> tuple[Vector, Layout, int]:
    """Return version 0, how it lies in a vector, and the number of classes.

    It is the config's model for the config's data, or what a site's own function returns.
    """
    if app is None:
        parts = lay_out(config)
        module, num_classes = parts.module(), parts.dataset.num_classes
    else:
        torch.manual_seed(config.seed)
        own = own_learner(app, "")
        module, num_classes = own.model, own.data.num_classes
        if config.model.initial is not None:
            load_into(module, config.model.initial)
    weights = vector_of(module)
    if not np.isfinite(weights).all():
        raise ModelError("the initial model holds values that are not finite")
    return weights, layout_of(module), num_classes


def own_learner(app: str, name: str) -> Learner:
    """Return what a site's own function makes; it is told the name of the site, if it wants to."""
    made = call(app, "--app", name)
    if not isinstance(made, Learner):
        raise ConfigError(
            f"--app {app}: returned a {type(made).__name__}; it must return "
            "metis.Learner(model=..., data=metis.Dataset(...))"
        )
    return made
