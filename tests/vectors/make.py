"""Packets that other readers can be checked against: `python -m tests.vectors.make` writes them.

Every number in them is exact in float32 and in decimal, and can be worked out by hand. A packet is
part of the format: if it changes here, readers elsewhere no longer read what Metis writes. Only a
packet that is `deflated` may change with the zlib at hand: it is checked by reading it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metis.codecs.choose import codec_of
from metis.codecs.inspect import describe
from metis.codecs.settings import CodecSettings
from metis.core.types import Kind, Layout, Tensor, Vector, dense, frozen

FOLDER = Path(__file__).parent


def made_with(codec: str, **values: Any) -> CodecSettings:
    """Return what a packet is made with; less is left out than by default."""
    return CodecSettings(codec, **{"sparsity": 0.25, "kernels": 0.5, "coding": "golomb", **values})


@dataclass(frozen=True, slots=True)
class Vectors:
    """A setting, and a model before and after training."""

    name: str
    about: str
    setting: CodecSettings
    layout: Layout
    base: list[float]
    local: list[float]


def layout_of(*tensors: tuple[str, Kind, tuple[int, ...]]) -> Layout:
    """Return tensors that lie one after another."""
    placed: list[Tensor] = []
    offset = 0
    for name, kind, shape in tensors:
        placed.append(Tensor(name, shape, kind, offset))
        offset += placed[-1].size
    return Layout(tuple(placed))


#: 16 weights in 4 kernels, 8 in none, and 5 values that are no weights.
SMALL = layout_of(
    ("conv.weight", "conv", (2, 2, 2, 2)),
    ("conv.bias", "plain", (2,)),
    ("head.weight", "dense", (2, 4)),
    ("head.bias", "plain", (2,)),
    ("norm.mean", "buffer", (1,)),
)
SMALL_BASE = [8.0] * 16 + [0.5, -0.5] + [1.0] * 8 + [0.0, 0.0] + [0.25]
#: What is added to the weights, kernel by kernel and row by row.
SMALL_CHANGE = [0, 5, 0, -4, 0.5, 0, 0, 0, -1, 2, 1, 0, 0, 0, 0, 3, 2, 0, -1, 0, 0, 0.5, -2, 2]
SMALL_LOCAL = [
    *[8.0 + change for change in SMALL_CHANGE[:16]],
    *[0.75, -0.0],
    *[1.0 + change for change in SMALL_CHANGE[16:]],
    *[1.5, -2.5],
    100.0,
]
SMALL_UNCHANGED = [8.0] * 16 + [0.75, -0.0] + [1.0] * 8 + [1.5, -2.5] + [100.0]

#: Changes at which rounding shows: ties, a step of int8, and what is too small for float16.
ROUNDED_LOCAL = [
    *[127.0, 0.5, 1.5, -2.5, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 0.0],
    *[-127.0, 3.25, 2.0**-25, 3 * 2.0**-25, 0.0, 0.0, 0.0, 64.0],
    *[0.75, -0.0],
    *[254.0, 1.0, 3.0, -5.0, 0.0, 0.0, 2.0, -2.0],
    *[1.5, -2.5],
    100.0,
]

#: 8 kernels of 25 cells. Two of them change in every cell.
WIDE = layout_of(
    ("conv.weight", "conv", (4, 2, 5, 5)),
    ("conv.bias", "plain", (1,)),
    ("head.weight", "dense", (2, 2)),
)
WIDE_BASE = [0.0] * 205
WIDE_LOCAL = [
    *[0.5] * 50,
    *[2.0, -2.0, 2.0, 2.0, 2.0] * 5,
    *[0.0, -0.5] * 50,
    *[4.0, 4.0, -4.0, 4.0, -4.0] * 5,
    0.125,
    *[0.0, -3.0, 1.0, 0.0],
]

#: 8 kernels of 25 cells, and a head of 16 rows that change in the same three columns. Kernels 1, 2,
#: 4 and 7 change in about half of their cells, without a pattern that deflate would find.
ROWS = layout_of(
    ("conv.weight", "conv", (4, 2, 5, 5)),
    ("conv.bias", "plain", (1,)),
    ("head.weight", "dense", (16, 16)),
)
ROWS_BASE = [0.0] * 457
ROWS_LOCAL = [
    *[(n // 25 in (1, 2, 4, 7) and n**3 % 101 < 50) * 3.0 * (-1) ** n for n in range(200)],
    0.125,
    *([0.0] * 2 + [3.0, -3.0] + [0.0] * 5 + [3.0] + [0.0] * 6) * 16,
]

VECTORS = (
    Vectors("dense", "every value as it is", made_with("dense"), SMALL, SMALL_BASE, SMALL_LOCAL),
    Vectors(
        "float16",
        "2^-25 is a tie and becomes 0, 3 * 2^-25 is one and becomes 2^-23",
        made_with("float16"),
        SMALL,
        [0.0] * 29,
        ROUNDED_LOCAL,
    ),
    Vectors(
        "bfloat16",
        "1 + 2^-8 is a tie and becomes 1, 1 + 3 * 2^-8 is one and becomes 1 + 2^-6",
        made_with("bfloat16"),
        SMALL,
        [0.0] * 29,
        ROUNDED_LOCAL,
    ),
    Vectors(
        "int8",
        "scales 1 and 2; halves go to the even step",
        made_with("int8"),
        SMALL,
        [0.0] * 29,
        ROUNDED_LOCAL,
    ),
    Vectors(
        "stc-golomb",
        "6 of 24: 5, -4, 3 and, as the first of those that tie, 2, 2, -2; mu = 18 / 6",
        made_with("stc"),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "stc-fixed",
        "as stc-golomb, with gaps of one width",
        made_with("stc", coding="fixed"),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "stc-deflate",
        "as stc-golomb, with gaps as bytes in a zlib stream",
        made_with("stc", coding="deflate"),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "stc-all-zero",
        "no weight has changed, so none is kept; other values travel all the same",
        made_with("stc"),
        SMALL,
        SMALL_BASE,
        SMALL_UNCHANGED,
    ),
    Vectors(
        "stc-k-zero",
        "p = 0.02 of 24 rounds to none",
        made_with("stc", sparsity=0.02),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "sstc-golomb-without-maps",
        "kernels 0 and 2 are kept; 4.5 of 24 rounds to 5: 5, -4, 2, 2, -2; mu = 15 / 5",
        made_with("sstc", sparsity=0.1875),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "sstc-golomb-with-maps",
        "kernels 2 and 7 and one weight of the head; mu = 153 / 51; maps are shorter",
        made_with("sstc", kernels=0.25),
        WIDE,
        WIDE_BASE,
        WIDE_LOCAL,
    ),
    Vectors(
        "sstc-deflate",
        "as sstc-auto, with two zlib streams",
        made_with("sstc", coding="deflate"),
        ROWS,
        ROWS_BASE,
        ROWS_LOCAL,
    ),
    Vectors(
        "sstc-auto",
        "four kernels by golomb, for they are few; 48 weights in equal rows by deflate; mu = 3",
        made_with("sstc", coding="auto"),
        ROWS,
        ROWS_BASE,
        ROWS_LOCAL,
    ),
    Vectors(
        "sstc-fixed",
        "as sstc-golomb-without-maps, as the paper codes it: maps of two bits a cell",
        made_with("sstc", sparsity=0.1875, coding="fixed"),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
    Vectors(
        "sstc-fixed-of-kept",
        "p of the 16 weights left: 4 of them, 5, -4, 2, 2; mu = 13 / 4",
        made_with("sstc", sparsity_of="kept", coding="fixed"),
        SMALL,
        SMALL_BASE,
        SMALL_LOCAL,
    ),
)


def record_of(vectors: Vectors) -> dict[str, Any]:
    """Return vectors with their packet and what it is read as."""
    base, local = _vector(vectors.base), _vector(vectors.local)
    codec = codec_of(vectors.setting, vectors.layout)
    packet, _ = codec.encode(local, base)
    setting = vectors.setting
    return {
        "about": vectors.about,
        "codec": setting.codec,
        "sparsity": setting.sparsity,
        "kernels": setting.kernels,
        "sparsity_of": setting.sparsity_of,
        "coding": setting.coding,
        "deflated": _is_deflated(packet),
        "tensors": [[t.name, list(t.shape), t.kind] for t in vectors.layout.tensors],
        "layout_digest": vectors.layout.digest,
        "base": base.tolist(),
        "local": local.tolist(),
        "packet": packet.hex(),
        "decoded": dense(codec.decode(packet, base)).tolist(),
    }


def text_of(record: dict[str, Any]) -> str:
    """Return JSON with one line for each entry."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _is_deflated(packet: bytes) -> bool:
    """Whether zlib made a part of a packet, so that another zlib may make another one."""
    told = describe(packet, None).ternary
    return told is not None and "deflate" in (told.kernel_coding, told.index_coding)


def _vector(values: list[float]) -> Vector:
    return frozen(np.array(values, dtype=np.float32))


if __name__ == "__main__":
    for vectors in VECTORS:
        (FOLDER / f"{vectors.name}.json").write_text(text_of(record_of(vectors)), encoding="utf-8")
