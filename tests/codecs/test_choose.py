"""Codecs by name, and readers by packet."""

from __future__ import annotations

import pytest

from metis.codecs.choose import codec_of, reader_of
from metis.codecs.dense import Dense
from metis.codecs.packet import read_header
from metis.codecs.quantized import Quantized
from metis.codecs.settings import CODECS, CodecSettings
from metis.codecs.ternary import Ternary
from metis.core.codec import Codec
from metis.core.errors import ConfigError, ModelError
from tests.codecs.updates import bits, layout_of, make_change

LAYOUT = layout_of(("conv", (3, 2, 2, 2)), ("plain", (3,)), ("dense", (3, 4)), ("buffer", (2,)))


@pytest.mark.parametrize("coding", ["auto", "golomb", "deflate", "fixed"])
@pytest.mark.parametrize("name", CODECS)
def test_a_packet_is_read_by_whoever_knows_only_the_layout(name: str, coding: str) -> None:
    change = make_change(LAYOUT, "any", seed=1)
    codec = codec_of(CodecSettings(name, 0.25, 0.5, coding=coding), LAYOUT)

    packet, _ = codec.encode(change.local, change.base)

    assert read_header(packet).codec == name
    decoded = reader_of(packet, LAYOUT).decode(packet, change.base)
    assert bits(decoded) == bits(codec.decode(packet, change.base))


def test_a_codec_is_what_its_settings_say() -> None:
    def chosen(name: str, sparsity_of: str = "all", coding: str = "auto") -> Codec:
        return codec_of(CodecSettings(name, 0.1, 0.5, sparsity_of, coding, True), LAYOUT)

    assert chosen("dense") == Dense(LAYOUT)
    assert chosen("int8") == Quantized(LAYOUT, "int8", error_feedback=True)
    assert chosen("stc") == Ternary(LAYOUT, 0.1, None, error_feedback=True)
    assert chosen("sstc", "kept", "fixed") == Ternary(LAYOUT, 0.1, 0.5, True, "fixed", True)


def test_only_the_dense_codec_needs_no_base() -> None:
    needs_base = {name: codec_of(CodecSettings(name), LAYOUT).needs_base for name in CODECS}

    assert [name for name in CODECS if not needs_base[name]] == ["dense"]


def test_a_name_nobody_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="unknown codec 'stcc'; did you mean 'stc'"):
        codec_of(CodecSettings("stcc"), LAYOUT)
    with pytest.raises(ModelError, match="shorter than a header"):
        reader_of(b"MTIS", LAYOUT)
