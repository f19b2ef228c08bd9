"""Which values a checkpoint may hold; nothing else is ever made from one. Needs no torch."""

from __future__ import annotations

from metis.codecs import dense, quantized, ternary
from metis.config import Incident
from metis.core import (
    codec,
    community,
    events,
    local_run,
    pacing,
    schedules,
    server_step,
    triggers,
    types,
    weighting,
)
from metis.core.controller import Controller, Ticket
from metis.runtime import agenda, post

_MODULES = (
    agenda,
    codec,
    community,
    dense,
    events,
    local_run,
    pacing,
    post,
    quantized,
    schedules,
    server_step,
    ternary,
    triggers,
    types,
    weighting,
)
CLASSES: list[type] = [Controller, Ticket, Incident] + [
    value
    for module in _MODULES
    for value in vars(module).values()
    if isinstance(value, type)
    and hasattr(value, "__dataclass_fields__")
    and value.__module__ == module.__name__  # what it imports may have the name of another's
]
