"""A codec by its name and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metis.codecs.dense import Dense
from metis.codecs.packet import read_header
from metis.codecs.quantized import Quantized
from metis.codecs.settings import CODECS, CodecSettings
from metis.codecs.ternary import Ternary
from metis.core.codec import Codec
from metis.core.errors import ConfigError, unknown
from metis.core.types import Layout

#: The names by which codecs are stored in a checkpoint.
STORED: Mapping[str, type] = {"dense": Dense, "quantized": Quantized, "ternary": Ternary}


def codec_of(settings: CodecSettings, layout: Layout) -> Codec:
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
