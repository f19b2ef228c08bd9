"""The packets in tests/vectors are still what is written, and are read by both readers.

What zlib has made is not compared byte by byte: another zlib makes other bytes of it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.codecs.choose import codec_of, reader_of
from metis.codecs.packet import HEADER, Reader
from metis.codecs.settings import CodecSettings
from metis.codecs.ternary import Body, read_body
from metis.core.types import Layout, Model
from tests.codecs import reference
from tests.codecs.updates import bits, vector
from tests.vectors.make import FOLDER, VECTORS, layout_of, made_with, record_of, text_of

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "packets.md"


def load(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return record


EXACT = [name for name in NAMES if not load(name)["deflated"]]
DEFLATED = [name for name in NAMES if load(name)["deflated"]]


def layout_in(record: dict[str, Any]) -> Layout:
    return layout_of(*((name, kind, tuple(shape)) for name, shape, kind in record["tensors"]))


def setting_in(record: dict[str, Any]) -> CodecSettings:
    keys = ("codec", "sparsity", "kernels", "sparsity_of", "coding")
    return CodecSettings(*(record[key] for key in keys))


def read_by_all(record: dict[str, Any], packet: bytes) -> set[bytes]:
    """Return what our reader and the plain one make of a packet."""
    layout, base = layout_in(record), record["base"]
    decoded: Model = reader_of(packet, layout).decode(packet, vector(*base))
    return {bits(decoded), bits(reference.decode(packet, layout, base))}


def body_in(record: dict[str, Any]) -> Body:
    return read_body(Reader(bytes.fromhex(record["packet"]), HEADER.size), record["codec"])


def test_the_folder_holds_what_the_script_writes() -> None:
    assert sorted(vectors.name for vectors in VECTORS) == NAMES
    for vectors in VECTORS:
        record = record_of(vectors)
        if record["deflated"]:
            record["packet"] = load(vectors.name)["packet"]
        path = FOLDER / f"{vectors.name}.json"
        assert path.read_text(encoding="utf-8") == text_of(record)


def test_only_packets_of_deflate_and_auto_are_not_compared_byte_by_byte() -> None:
    assert DEFLATED == ["sstc-auto", "sstc-deflate", "stc-deflate"]


@pytest.mark.parametrize("name", EXACT)
def test_a_model_is_packed_into_just_these_bytes(name: str) -> None:
    record = load(name)
    codec = codec_of(setting_in(record), layout_in(record))

    packet, residual = codec.encode(vector(*record["local"]), vector(*record["base"]))

    assert packet.hex() == record["packet"]
    assert layout_in(record).digest == record["layout_digest"]
    assert residual is None


@pytest.mark.parametrize("name", DEFLATED)
def test_a_model_is_packed_into_bytes_that_are_read_as_these_are(name: str) -> None:
    record = load(name)
    codec = codec_of(setting_in(record), layout_in(record))

    packet, _ = codec.encode(vector(*record["local"]), vector(*record["base"]))

    assert read_by_all(record, packet) == {bits(record["decoded"])}


@pytest.mark.parametrize("name", NAMES)
def test_these_bytes_are_read_as_just_this_model(name: str) -> None:
    record = load(name)

    models = read_by_all(record, bytes.fromhex(record["packet"]))

    assert models == {bits(record["decoded"])}


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_what_the_reference_makes_of_it(name: str) -> None:
    record = load(name)
    layout, base, local = layout_in(record), record["base"], record["local"]

    if record["codec"] == "dense":
        expected = local
    elif record["codec"] in ("stc", "sstc"):
        f = record["kernels"] if record["codec"] == "sstc" else None
        of_kept = record["sparsity_of"] == "kept"
        expected = reference.ternary(layout, base, local, record["sparsity"], f, of_kept).model
    else:
        expected = reference.quantized(layout, record["codec"], base, local).model

    assert bits(record["decoded"]) == bits(expected)


def test_the_packets_show_every_codec_coding_and_kind_of_body() -> None:
    seen: set[tuple[object, ...]] = set()
    for record in map(load, NAMES):
        shown: tuple[object, ...] = (record["codec"],)
        if record["codec"] in ("stc", "sstc"):
            body = body_in(record)
            shown += (body.maps, body.kernel_coding, body.index_coding, bool(body.mu > 0))
        seen.add(shown)

    assert seen == {
        ("dense",),
        ("float16",),
        ("bfloat16",),
        ("int8",),
        ("stc", 0, "golomb", "golomb", True),
        ("stc", 0, "golomb", "golomb", False),
        ("stc", 0, "golomb", "fixed", True),
        ("stc", 0, "golomb", "deflate", True),
        ("sstc", 0, "golomb", "golomb", True),
        ("sstc", 1, "golomb", "golomb", True),
        ("sstc", 1, "golomb", "deflate", True),
        ("sstc", 1, "deflate", "deflate", True),
        ("sstc", 2, "fixed", "fixed", True),
    }


def test_mu_of_each_packet_is_the_one_worked_out_by_hand() -> None:
    by_hand = {
        "stc-golomb": 3.0,
        "stc-fixed": 3.0,
        "stc-deflate": 3.0,
        "stc-all-zero": 0.0,
        "stc-k-zero": 0.0,
        "sstc-golomb-without-maps": 3.0,
        "sstc-golomb-with-maps": 3.0,
        "sstc-deflate": 3.0,
        "sstc-auto": 3.0,
        "sstc-fixed": 3.0,
        "sstc-fixed-of-kept": 3.25,
    }

    assert set(by_hand) == {name for name in NAMES if load(name)["codec"] in ("stc", "sstc")}
    for name, mu in by_hand.items():
        assert body_in(load(name)).mu == np.float32(mu), name


def test_auto_can_be_shorter_than_either_coding_alone() -> None:
    record = load("sstc-auto")
    layout, base, local = layout_in(record), vector(*record["base"]), vector(*record["local"])

    sizes = {
        coding: len(codec_of(made_with("sstc", coding=coding), layout).encode(local, base)[0])
        for coding in ("auto", "golomb", "deflate")
    }

    assert sizes["auto"] < min(sizes["golomb"], sizes["deflate"])


@pytest.mark.parametrize("name", ["stc-golomb", "stc-deflate", "sstc-fixed"])
def test_the_document_takes_a_packet_apart_byte_by_byte(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    block = re.search(rf"`{name}\.json`.*?```\n(.*?)```", text, re.DOTALL)

    assert block is not None
    shown = "".join(line.partition("  ")[0].replace(" ", "") for line in block[1].splitlines())
    assert shown == load(name)["packet"]
