"""The verbs about packets, on packets of a real run and on files that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from metis.config import load
from metis.simulation.run import run
from tests.command import Metis, assert_refused

CONVOLUTIONS = {"0.weight": 16, "2.weight": 512}  # of digits_cnn, with their kernels
NUM_VALUES = 38_282


@pytest.fixture
def metis(metis: Metis) -> Metis:
    """The verbs about packets."""
    return lambda *arguments: metis("codec", *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run for each of two codecs, updates kept."""
    folder = tmp_path_factory.mktemp("runs")
    for codec in ("sstc", "dense"):
        chosen = load(
            None,
            [
                *("policy=sync-fedavg", "model.name=digits_cnn", f"upload.codec={codec}"),
                *("output.keep_updates=true", "horizon.versions=1", "train.epochs=1", "learners=2"),
            ],
        )
        run(chosen, folder / codec)
    return folder


@pytest.fixture
def packet(runs: Path) -> Path:
    return min((runs / "sstc" / "updates").glob("*.packet"))


# ---- inspect ----------------------------------------------------------------------------------


def test_a_packet_is_described_for_people(metis: Metis, packet: Path) -> None:
    outcome = metis("inspect", packet)

    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert "p = 0.01, f = 0.125" in outcome.out
    told = metis("inspect", packet, "--json").json["ternary"]
    maps = f"{told['maps']} kernel maps, indices in {told['kernel_coding']}"
    assert f"weights in {told['index_coding']}; " in outcome.out
    assert (maps if told["kernel_coding"] else "no kernel maps") in outcome.out
    assert "382 of 38,160 weights" in outcome.out
    assert "bits per index" in outcome.out
    for name in ("0.weight", "0.bias", "2.weight", "6.weight", "8.bias"):
        assert name in outcome.out


def test_a_packet_is_described_for_programs(metis: Metis, packet: Path) -> None:
    found = metis("inspect", packet, "--json").json

    assert (found["codec"], found["format"], found["num_values"]) == ("sstc", 1, NUM_VALUES)
    assert found["num_bytes"] == packet.stat().st_size == sum(found["details"]["parts"].values())
    assert found["ratio"] == 4 * NUM_VALUES / packet.stat().st_size
    assert found["ternary"]["index_coding"] in ("golomb", "deflate")  # whichever was shorter
    assert found["ternary"]["maps"] in ("none", "short")
    assert (found["ternary"]["kernel_coding"] is None) == (found["ternary"]["maps"] == "none")
    tensors = {tensor["name"]: tensor for tensor in found["details"]["tensors"]}
    assert {n: t["kernels"] for n, t in tensors.items() if t["kind"] == "conv"} == CONVOLUTIONS
    assert sum(tensor["kept"] or 0 for tensor in tensors.values()) == found["details"]["kept"]
    touched = sum(tensor["kernels_touched"] for tensor in tensors.values())
    assert 0 < touched <= 66  # an eighth of 528 kernels


def test_one_layer_is_shown_alone(metis: Metis, packet: Path) -> None:
    outcome = metis("inspect", packet, "--layer", "2.weight")

    assert outcome.code == 0, outcome.err
    assert "32x16x3x3" in outcome.out
    assert "0.weight" not in outcome.out


def test_where_kept_updates_lie_is_drawn(metis: Metis, packet: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    both = metis("inspect", packet, "--plot", "both.png")
    one = metis("inspect", packet, "--plot", "one.png", "--layer", "2.weight", "--json")

    assert both.out.splitlines()[-1] == "picture: both.png"
    assert one.json["codec"] == "sstc"
    for name in ("both.png", "one.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_away_from_its_run_a_packet_tells_only_how_it_begins(
    metis: Metis, runs: Path, packet: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(packet, tmp_path / "elsewhere" / "lone.packet")

    alone = metis("inspect", "elsewhere/lone.packet")
    with_run = metis("inspect", "elsewhere/lone.packet", "--run", runs / "sstc")

    assert alone.code == 0
    assert "p = 0.01" in alone.out
    assert "2.weight" not in alone.out
    assert alone.err.startswith("note: no journal of its run")
    assert metis("inspect", "elsewhere/lone.packet", "--json").json["details"] is None
    assert "2.weight" in with_run.out
    assert with_run.out == metis("inspect", packet).out


def test_what_needs_a_run_says_so(metis: Metis, packet: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(packet, tmp_path / "elsewhere" / "lone.packet")

    for option in (("--plot", "out.png"), ("--layer", "2.weight")):
        assert_refused(metis("inspect", "elsewhere/lone.packet", *option), "lone.packet", "--run")
    assert not (tmp_path / "out.png").exists()


def test_a_dense_packet_is_described_but_not_drawn(metis: Metis, runs: Path) -> None:
    path = min((runs / "dense" / "updates").glob("*.packet"))

    outcome = metis("inspect", path)

    assert outcome.code == 0, outcome.err
    assert "131,072" in outcome.out  # bytes of 64 x 512 values
    assert_refused(metis("inspect", path, "--plot", "out.png"), path.name, "not an update")


def test_a_file_that_is_no_packet_is_refused(metis: Metis, packet: Path, tmp_path: Path) -> None:
    content = bytearray(packet.read_bytes())
    (tmp_path / "text.packet").write_bytes(b"this was written by somebody else entirely")
    (tmp_path / "empty.packet").write_bytes(b"")
    content[-1] ^= 1
    (tmp_path / "damaged.packet").write_bytes(content)

    assert_refused(metis("inspect", "text.packet"), "text.packet: not a Metis packet")
    assert_refused(metis("inspect", "empty.packet"), "empty.packet", "shorter than a header")
    assert_refused(metis("inspect", "damaged.packet"), "damaged.packet", "checksum")
    assert_refused(metis("inspect", "none.packet"), "none.packet: No such file")
    assert_refused(metis("inspect", "."), "Is a directory")


def test_a_run_that_does_not_fit_is_refused(metis: Metis, packet: Path, tmp_path: Path) -> None:
    header: dict[str, Any] = {"kind": "run"}
    (tmp_path / "journal.jsonl").write_text(json.dumps(header) + "\n")
    assert_refused(metis("inspect", packet, "--run", "."), "journal.jsonl", "`run` record")

    header["tensors"] = [["conv.weight", [2, 3, 2, 2], "conv"]]
    (tmp_path / "journal.jsonl").write_text(json.dumps(header) + "\n")
    assert_refused(metis("inspect", packet, "--run", "."), packet.name, "with 24")

    header["tensors"] = [["conv.weight", [24], "conv"]]  # no kernel has one dimension
    (tmp_path / "journal.jsonl").write_text(json.dumps(header) + "\n")
    assert_refused(metis("inspect", packet, "--run", "."), packet.name, "with 24")

    (tmp_path / "journal.jsonl").write_text('{"kind":"test"}\n')
    assert_refused(metis("inspect", packet, "--run", "."), "does not begin with a `run` record")
    assert_refused(metis("inspect", packet, "--run", "nowhere"), "nowhere", "No such file")


def test_a_wrong_layer_or_picture_is_refused(metis: Metis, packet: Path) -> None:
    wrong = metis("inspect", packet, "--layer", "2.wait")

    assert_refused(wrong, "unknown convolution '2.wait'; did you mean '2.weight'?")
    assert_refused(metis("inspect", packet, "--plot", "no/out.png"), "cannot write no/out.png")
    assert_refused(metis("inspect", packet, "--plot", "out.xyz"), "cannot write out.xyz")


# ---- compare ----------------------------------------------------------------------------------


def test_two_models_are_compared_for_people(metis: Metis, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models = [runs / "dense" / f"{name}.safetensors" for name in ("initial", "model")]

    outcome = metis("compare", *models, "--layer", "2.weight", "--plot", "figure2.png")

    assert outcome.code == 0, outcome.err
    assert "38,160 weights" in outcome.out
    assert "in 2.weight" in outcome.out
    for heading in ("bytes", "fixed widths", "cosine", "error", "on the wire"):
        assert heading in outcome.out
    assert "equation 2: SSTC " in outcome.out
    assert outcome.out.splitlines()[-1] == "picture: figure2.png"
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")


def test_two_models_are_compared_for_programs(metis: Metis, runs: Path) -> None:
    models = [runs / "dense" / f"{name}.safetensors" for name in ("initial", "model")]

    found = metis("compare", *models, "--sparsity", "0.02", "--kernels", "0.1", "--json").json

    assert (found["num_weights"], found["num_values"]) == (38_160, NUM_VALUES)
    assert found["layer"] == "2.weight"  # it has most kernels
    stc, sstc = found["codecs"]
    assert (stc["codec"], sstc["codec"]) == ("stc", "sstc")
    assert stc["kept"] == sstc["kept"] == 763
    assert 0.0 < sstc["cosine"] <= stc["cosine"] < 1.0
    assert 0.0 < stc["relative_error"] <= sstc["relative_error"] < 1.0
    assert all(row["bytes_shortest"] < row["bytes_fixed"] < 4 * NUM_VALUES for row in (stc, sstc))


def test_a_comparison_counts_each_codec_in_three_ways(metis: Metis, runs: Path) -> None:
    models = [runs / "dense" / f"{name}.safetensors" for name in ("initial", "model")]

    found = metis("compare", *models, "--json").json

    stc, sstc = found["codecs"]
    for row in (stc, sstc):
        three = row["times_smaller"]
        assert three["wire"] == 4 * NUM_VALUES / row["bytes_shortest"]
        # Fixed widths and all counted; a real packet has gaps, which are narrower than indices.
        assert three["model"] <= 4 * NUM_VALUES / row["bytes_fixed"] * 1.01
    # 528 kernels of 3x3: 4,752 weights need 13 bits, 66 kernels 10 and 18.
    assert stc["times_smaller"]["convolutions"] == 32 * 4752 / (stc["kept_in_kernels"] * 13)
    assert sstc["times_smaller"]["convolutions"] == 32 * 4752 / (66 * 28)
    limit = stc["kept_in_kernels"] * 13 / 28
    assert found["equation_2"] == {
        "kernels": 66,
        "less_than": pytest.approx(limit),
        "pays": limit > 66,
    }


def test_models_without_convolutions_are_compared_but_not_drawn(
    metis: Metis, tmp_path: Path
) -> None:
    tensors = {"fc.weight": np.eye(20, dtype=np.float32), "fc.bias": np.ones(20, dtype=np.float32)}
    save_file(tensors, tmp_path / "a.safetensors")
    counter = {"steps": np.array(3)}  # is no part of a model
    save_file({**tensors, **counter, "fc.weight": 2 * tensors["fc.weight"]}, "b.safetensors")

    found = metis("compare", "a.safetensors", "b.safetensors", "--json").json

    assert (found["num_weights"], found["layer"]) == (400, None)
    assert found["codecs"][0]["kept"] == 4
    assert found["codecs"][0]["kept_in_layer"] is None
    assert found["codecs"][0]["times_smaller"]["convolutions"] is None
    assert found["equation_2"] is None
    assert metis("compare", "a.safetensors", "b.safetensors").code == 0
    drawn = metis("compare", "a.safetensors", "b.safetensors", "--plot", "out.png")
    assert_refused(drawn, "no convolution")


def test_the_kind_of_a_tensor_follows_from_its_dimensions(metis: Metis, tmp_path: Path) -> None:
    shapes = {"none": (), "one": (3,), "two": (3, 4), "three": (3, 4, 5), "four": (3, 4, 5, 6)}
    for name, value in (("a", 0.0), ("b", 1.0)):
        tensors = {n: np.full(shape, value, dtype=np.float32) for n, shape in shapes.items()}
        save_file(tensors, tmp_path / f"{name}.safetensors")

    found = metis("compare", "a.safetensors", "b.safetensors", "--layer", "three", "--json").json

    assert (found["num_weights"], found["num_values"]) == (12 + 60 + 360, 1 + 3 + 12 + 60 + 360)
    wrong = metis("compare", "a.safetensors", "b.safetensors", "--layer", "two")
    assert_refused(wrong, "unknown convolution 'two'", "four, three")


def test_files_that_cannot_be_compared_are_refused(
    metis: Metis, runs: Path, tmp_path: Path
) -> None:
    good = runs / "dense" / "model.safetensors"
    save_file({"0.weight": np.zeros((2, 2), dtype=np.float32)}, tmp_path / "other.safetensors")
    weights = np.array([[1.0, np.nan]], dtype=np.float32)
    save_file({"0.weight": weights}, tmp_path / "nan.safetensors")
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "huge").write_bytes(b"\xff" * 40)
    (tmp_path / "list").write_bytes((2).to_bytes(8, "little") + b"[]")

    for name in ("short", "huge", "list"):
        assert_refused(metis("compare", name, good), f"{name} is not a safetensors file")
    assert_refused(metis("compare", good, "short"), "cannot read weights from short")
    assert_refused(metis("compare", "none", good), "none: No such file")
    assert_refused(metis("compare", good, "other.safetensors"), "other.safetensors", "0.bias")
    assert_refused(metis("compare", "nan.safetensors", "nan.safetensors"), "not finite")


@pytest.mark.parametrize("verb", ["inspect", "compare"])
def test_help_shows_an_example(metis: Metis, verb: str) -> None:
    outcome = metis(verb, "--help")

    assert outcome.code == 0
    assert f"Example:  metis codec {verb}" in outcome.out
