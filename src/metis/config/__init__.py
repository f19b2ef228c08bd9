"""The configuration of a run: `schema` declares it, `files` reads and writes it, `keys` checks."""

from __future__ import annotations

from metis.config.files import dump, load, load_text
from metis.config.schema import (
    PASSED,
    Config,
    CostSettings,
    Data,
    Group,
    Horizon,
    Incident,
    Model,
    Output,
    is_file,
    late_learners,
)

__all__ = [
    "PASSED",
    "Config",
    "CostSettings",
    "Data",
    "Group",
    "Horizon",
    "Incident",
    "Model",
    "Output",
    "dump",
    "is_file",
    "late_learners",
    "load",
    "load_text",
]
