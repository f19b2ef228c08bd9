"""A codec by its name and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from metis.codecs.dense import Dense
from metis.codecs.packet import NUMBERS, read_header
from metis.codecs.quantized import Quantized
from metis.codecs.ternary import Ternary
from metis.core.codec import Codec
from metis.core.errors import ConfigError, unknown
from metis.core.types import Layout

CODECS = tuple(NUMBERS)

#: The names by which codecs are stored in a checkpoint.
STORED: Mapping[str, type] = {"dense": Dense, "quantized": Quantized, "ternary": Ternary}


class Settings(Protocol):
    """What a config says of a codec; see `metis.config.Codec`."""

    @property
    def codec(self) -> str: ...
    @property
    def sparsity(self) -> float: ...
    @property
    def kernels(self) -> float: ...
    @property
    def sparsity_of(self) -> str: ...
    @property
    def coding(self) -> str: ...
    @property
    def error_feedback(self) -> bool: ...


def codec_of(settings: Settings, layout: Layout) -> Codec:
    """Return the codec that a config asks for, for models of this layout."""
    name = settings.codec
    if name == "dense":
        return Dense(layout)
    if name in ("float16", "bfloat16", "int8"):
        number: Any = name
        return Quantized(layout, number, settings.error_feedback)
    if name in ("stc", "sstc"):
        return Ternary(
            layout,
            settings.sparsity,
            settings.kernels if name == "sstc" else None,
            of_kept=settings.sparsity_of == "kept",
            coding=settings.coding,
            error_feedback=settings.error_feedback,
        )
    raise ConfigError(unknown("codec", name, CODECS))


def reader_of(packet: bytes, layout: Layout) -> Codec:
    """Return a codec that can decode this packet, whatever settings it was made with."""
    name = read_header(packet).codec
    if name == "dense":
        return Dense(layout)
    if name in ("stc", "sstc"):
        return Ternary(layout, 0.0, None if name == "stc" else 1.0)
    number: Any = name
    return Quantized(layout, number)
