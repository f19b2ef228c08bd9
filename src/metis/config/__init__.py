"""The configuration of a run: `schema` declares it, `files` reads and writes it, `keys` checks."""

from __future__ import annotations

from metis.config.files import dump, load, load_text
from metis.config.schema import (
    PASSED,
    Codec,
    Config,
    Costs,
    Data,
    Group,
    Horizon,
    Incident,
    Live,
    Model,
    Output,
    Partition,
    RecipeTable,
    Train,
    Validation,
    late_learners,
)

__all__ = [
    "PASSED",
    "Codec",
    "Config",
    "Costs",
    "Data",
    "Group",
    "Horizon",
    "Incident",
    "Live",
    "Model",
    "Output",
    "Partition",
    "RecipeTable",
    "Train",
    "Validation",
    "dump",
    "late_learners",
    "load",
    "load_text",
]
