"""How good a model is on test examples that one site has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metis.config import Config, Group
from metis.deploy.equip import on_its_own
from metis.deploy.first import own_learner
from metis.runtime.assemble import lay_out
from metis.training.flat import load_into
from metis.training.learner_data import test_result


def test_score(model: Path, config: Config, app: str | None) -> dict[str, Any]:
    """Return the metric, the score and the loss of a model file on the test examples."""
    alone = on_its_own(config, "site", Group())
    if app is None:
        parts = lay_out(alone)
        module = parts.module()
    else:
        own = own_learner(app, "")
        parts, module = lay_out(alone, own.model, own.data), own.model
    load_into(module, str(model))
    placed, data = parts.place(module)
    found = test_result(data.test_parts(placed.flat.to_vector(), 0, 1))
    return {
        "metric": "accuracy" if parts.dataset.num_classes else "r2",
        "score": found.score,
        "loss": found.loss,
        "examples": f"{len(parts.dataset.y_test):,} test examples of {parts.dataset.name}",
    }
