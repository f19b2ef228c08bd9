"""What codecs cost and save: speed, real bytes, averaging of sparse updates, other coders.

    python benchmarks/codecs.py [--compare] [--quick] [--out FILE.json]

speed      MB/s of float32 through every codec: FEMNIST CNN (1.7M values), ResNet-50 (25.6M)
sizes      real bytes of packets of the FEMNIST CNN, beside the length by formula
averaging  a round's models made and averaged as sparse changes, beside the same made dense
--compare  instead of these: the indices of STC alone, beside general and arithmetic coders

All on one core, to which the process is tied. The yardstick of speed is `np.copyto` of the model
into an array touched before, measured in turns with the codecs; these return new arrays, as in a
run, so they pay for fresh memory too. Sparsity is 1 %; SSTC keeps 12.5 % of all kernels.
A random update is Gaussian noise. The real one is what five epochs (rate 0.1, batches of 16) make
of the FEMNIST CNN, on 200 of sklearn's digits: 8x8 pixels, each repeated 3x3, two zeros around.
They stand for one writer of FEMNIST, which would have to be fetched.
`zstandard` and `constriction` are no dependencies of Metis: what is not installed is in `missing`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import os
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.nn import functional as F

from machine import machine
from metis.codecs.bits import CODINGS, Coding, entropy_bits, read_ascending, write_shortest
from metis.codecs.dense import Dense
from metis.codecs.joined import Indices, joined
from metis.codecs.packet import HEADER, Reader, unseal
from metis.codecs.quantized import Quantized
from metis.codecs.sizes import kept, paper_sstc_ratio, paper_stc_ratio, sstc_bytes, stc_bytes
from metis.codecs.ternary import NO_MAPS, Body, Ternary, read_body
from metis.core.codec import Codec
from metis.core.community import RoundAverage
from metis.core.types import Layout, LearnerId, Model, Sparse, Update, Vector, dense, frozen
from metis.learn.flat import layout_of, vector_of
from metis.zoo import build

SPARSITY, KERNELS = 0.01, 0.125
TARGETS = {"encode": 300.0, "decode": 1000.0}  # MB/s, at least
AT_MOST = 1.03  # times what the formula says a golomb or fixed packet takes
MODELS = {"femnist_cnn": ((1, 28, 28), 62), "resnet50": ((3, 224, 224), 1000)}
REPEATS = {"femnist_cnn": 25, "resnet50": 7}


@dataclass(frozen=True, slots=True)
class Case:
    """One codec with its settings; the coding is that of its indices, if it has any."""

    codec: str
    coding: str | None = None
    error_feedback: bool = False

    def made(self, layout: Layout) -> Codec:
        name: Any = self.codec
        if name == "dense":
            return Dense(layout)
        if self.coding is None:
            return Quantized(layout, name)
        kernels = KERNELS if name == "sstc" else None
        feedback = self.error_feedback
        return Ternary(layout, SPARSITY, kernels, coding=self.coding, error_feedback=feedback)


PLAIN = tuple(Case(name) for name in ("dense", "float16", "bfloat16", "int8"))
TIMED = (
    *PLAIN,
    *(Case(name, coding) for name in ("stc", "sstc") for coding in ("auto", "golomb", "fixed")),
    Case("sstc", "auto", error_feedback=True),
)
SIZED = (*PLAIN, *(Case(name, coding) for name in ("stc", "sstc") for coding in ("auto", *CODINGS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one model, two of each: does it run?")
    parser.add_argument("--compare", action="store_true", help="the indices beside other coders")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    load_average = os.getloadavg()[0]
    cores = use_one_core()
    found = compared(options.quick) if options.compare else measured(options.quick)
    about = machine(load_average) | {"cores_used": cores, "torch": torch.__version__}
    text = json.dumps({"machine": about, **found}, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def measured(quick: bool) -> dict[str, Any]:
    """Return everything but what `--compare` asks for."""
    models = tuple(MODELS)[: 1 if quick else None]
    rows = [row for name in models for row in speeds(name, quick)]
    targets: dict[str, Any] = {}
    for way, floor in TARGETS.items():
        worst = min(row[f"{way}_mb_per_second"]["median"] for row in rows)
        targets[way] = {"worst": worst, "at_least": floor, "met": worst >= floor}
    sized = [row for name, change in updates(quick).items() for row in sizes(name, change)]
    worst = max(row["to_formula"] for row in sized if "to_formula" in row)
    targets["to_formula"] = {"worst": worst, "at_most": AT_MOST, "met": worst <= AT_MOST}
    return {
        "speed": rows,
        "targets": targets,
        "sizes": sized,
        "averaging": [row for name in models for row in averaging(name, quick)],
    }


# ---- models and updates -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A model before and after training."""

    layout: Layout
    base: Vector
    weights: Vector


def random_change(name: str) -> Change:
    module = build(name, *MODELS[name], seed=1)
    base = vector_of(module)
    return Change(layout_of(module), base, moved(base, seed=1990))


def moved(base: Vector, seed: int) -> Vector:
    noise = np.random.default_rng(seed).standard_normal(base.size, dtype=np.float32)
    return frozen(base + np.float32(0.01) * noise)


def real_change(num_examples: int, num_epochs: int) -> Change:
    """Train the FEMNIST CNN on digits that are drawn as large as FEMNIST's."""
    digits = load_digits()
    images = np.kron(digits.images[:num_examples], np.ones((1, 3, 3))) / 16.0
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype(np.float32)
    x, y = torch.from_numpy(padded[:, None]), torch.from_numpy(digits.target[:num_examples])
    module = build("femnist_cnn", *MODELS["femnist_cnn"], seed=1)
    base = vector_of(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rng = np.random.default_rng(1)
    for _ in range(num_epochs):
        order = torch.from_numpy(rng.permutation(num_examples))
        for at in range(0, num_examples, 16):
            chosen = order[at : at + 16]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x[chosen]), y[chosen]))
            optimizer.step()
    return Change(layout_of(module), base, vector_of(module))


def updates(quick: bool) -> dict[str, Change]:
    real = real_change(32, 1) if quick else real_change(200, 5)
    return {"random": random_change("femnist_cnn"), "real": real}


# ---- speed ------------------------------------------------------------------------------------


def speeds(name: str, quick: bool) -> list[dict[str, Any]]:
    """Return one row per codec, for one model. All codecs take turns."""
    change = random_change(name)
    timed = [(case, Turns(case.made(change.layout), change)) for case in TIMED]
    for _ in range(1 + (2 if quick else REPEATS[name])):
        for _, turns in timed:
            turns.take()
    about = {"model": name, "parameters": change.layout.size}
    return [about | asdict(case) | turns.as_row() for case, turns in timed]


class Turns:
    """One codec at work on one model, again and again, each time after a plain copy."""

    def __init__(self, codec: Codec, change: Change) -> None:
        weights, base = change.weights, change.base
        # With error feedback a packet makes up for the one before, so let there have been one.
        _, residual = codec.encode(weights, base)
        packet, _ = codec.encode(weights, base, residual)
        self.packet_bytes, self.megabytes = len(packet), 4e-6 * base.size
        target = np.ones_like(weights)
        self.copy: Callable[[], object] = lambda: np.copyto(target, weights)
        self.work: dict[str, Callable[[], object]] = {
            "encode": lambda: codec.encode(weights, base, residual),
            "decode": lambda: dense(codec.decode(packet, base)),
        }
        if isinstance(codec.decode(packet, base), Sparse):
            self.work["decode_sparse"] = lambda: codec.decode(packet, base)
        self.seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in self.work}

    def take(self) -> None:
        for way, work in self.work.items():
            self.seconds[way].append((seconds(self.copy), seconds(work)))

    def as_row(self) -> dict[str, Any]:
        """Return the figures of all turns but the first, which is for warming up."""
        row: dict[str, Any] = {"packet_bytes": self.packet_bytes}
        for way, pairs in self.seconds.items():
            rate = spread(self.megabytes / took for _, took in pairs[1:])
            row[f"{way}_mb_per_second"] = rate
            row[f"{way}_to_copy"] = spread(took / copying for copying, took in pairs[1:])
            if way in TARGETS:
                row[f"{way}_met"] = rate["median"] >= TARGETS[way]
        copies = [copying for pairs in self.seconds.values() for copying, _ in pairs[1:]]
        return row | {"copy_mb_per_second": spread(self.megabytes / took for took in copies)}


# ---- sizes ------------------------------------------------------------------------------------


def sizes(name: str, change: Change) -> list[dict[str, Any]]:
    """Return what a first update, for which nothing has been left out yet, comes to in each."""
    rows = []
    for case in SIZED:
        codec = case.made(change.layout)
        packet, _ = codec.encode(change.weights, change.base)
        row: dict[str, Any] = {"update": name, "codec": case.codec, "coding": case.coding}
        row |= {"bytes": len(packet), "ratio": 4 * change.layout.size / len(packet)}
        if isinstance(codec, Ternary):
            row |= ternary_sizes(codec, change, packet)
        else:  # every weight is in the packet, so this is exact
            shape, scales = joined(change.layout), case.codec == "int8"
            width = {"dense": 4, "float16": 2, "bfloat16": 2, "int8": 1}[case.codec]
            num_floats = shape.num_exact + scales * len(shape.tensors)
            row["formula_bytes"] = HEADER.size + 4 * num_floats + width * shape.num_weights
        rows.append(row)
    return rows


def ternary_sizes(codec: Ternary, change: Change, packet: bytes) -> dict[str, Any]:
    layout, shape, body = change.layout, joined(change.layout), body_of(packet, codec)
    at = codec.keep(shape.difference(change.weights, change.base))
    what, with_maps = kept(layout, at), body.maps != NO_MAPS
    # Everything that is neither position nor sign: what a packet takes that keeps nothing.
    besides = stc_bytes(layout, 0, "golomb")
    row: dict[str, Any] = {
        "kept": len(at),
        "kept_in_kernels": what.in_kernels,
        "kernels_named": what.kernels if with_maps else None,
        "kernel_coding": body.kernel_coding if with_maps else None,
        "index_coding": body.index_coding,
        "bits_per_position": 8 * (len(packet) - besides) / len(at) - 1.0,
        "entropy_bits": entropy_bits(len(at) / shape.num_weights),
    }
    # What zlib makes of gaps has no formula: it stands beside that of golomb's packet, with kernel
    # maps if golomb's has them.
    coding: Coding = "fixed" if codec.coding == "fixed" else "golomb"
    other, _ = replace(codec, coding=coding).encode(change.weights, change.base)
    plain = body_of(other, codec).maps == NO_MAPS
    formula = stc_bytes(layout, len(at), coding) if plain else sstc_bytes(layout, what, coding)
    ratio = len(packet) / formula
    if codec.coding == coding:
        row |= {"formula_bytes": formula, "to_formula": ratio, "formula_met": ratio <= AT_MOST}
    else:
        row["to_golomb_formula"] = ratio
    if codec.kernels is not None:
        row["paper_conv_ratio"] = paper_sstc_ratio(layout, codec.kernels)
        row["paper_conv_ratio_11_bits"] = paper_sstc_ratio(layout, codec.kernels, bits=11)
    elif what.in_kernels:
        row["paper_conv_ratio"] = paper_stc_ratio(layout, what.in_kernels)
    return row


def body_of(packet: bytes, codec: Ternary) -> Body:
    return read_body(unseal(packet, codec.name, codec.layout), codec.name)


# ---- averaging --------------------------------------------------------------------------------


def averaging(name: str, quick: bool) -> list[dict[str, Any]]:
    """Return one row per number of learners and sparsity, for one model."""
    wanted = [(2, 0.01), (10, 0.01), (50, 0.01), (10, 0.1), (10, 0.5)]
    if quick:
        wanted = wanted[:1]
    elif name == "resnet50":
        wanted.remove((50, 0.01))  # 5 GB of models once they are dense
    change, repeats = random_change(name), 2 if quick else REPEATS[name]
    return [
        {"model": name, "parameters": change.layout.size, "sparsity": sparsity}
        | averages(sparsity, change, learners, repeats)
        for learners, sparsity in wanted
    ]


def averages(sparsity: float, change: Change, num_learners: int, repeats: int) -> dict[str, Any]:
    # By golomb, which is what "auto" takes for noise, only after much work of zlib's for nothing.
    base, codec = change.base, Ternary(change.layout, sparsity, coding="golomb")
    packets = [codec.encode(moved(base, seed), base)[0] for seed in range(num_learners)]
    ways: dict[str, Callable[[bytes], Model]] = {
        "sparse": lambda packet: codec.decode(packet, base),
        "dense": lambda packet: dense(codec.decode(packet, base)),
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(1 + repeats):
        found = []
        for way, made in ways.items():
            average, making, adding = one_round(packets, made, base)
            times[way].append((making, adding))
            found.append(average)
    row: dict[str, Any] = {"learners": num_learners}
    row["largest_difference"] = float(np.abs(found[0] - found[1]).max())
    for way, rounds in times.items():
        row[f"{way}_seconds_making"] = spread(making for making, _ in rounds[1:])
        row[f"{way}_seconds_averaging"] = spread(adding for _, adding in rounds[1:])
        row[f"{way}_seconds"] = spread(sum(both) for both in rounds[1:])
    pairs = zip(times["dense"][1:], times["sparse"][1:], strict=True)
    return row | {"dense_to_sparse": spread(sum(slow) / sum(fast) for slow, fast in pairs)}


def one_round(
    packets: Sequence[bytes], made: Callable[[bytes], Model], base: Vector
) -> tuple[Vector, float, float]:
    """Return a round's average, the seconds of making its models, and those of averaging them."""
    community = RoundAverage()
    began = time.perf_counter()
    models = [made(packet) for packet in packets]
    ready = time.perf_counter()
    for number, model in enumerate(models):
        learner = LearnerId(f"{number:02d}")
        update = Update(learner, number, model, base_version=0, num_examples=1, num_steps=1)
        community.fold(update, 1.0 + number / 7, base)
    return community.model(base).weights, ready - began, time.perf_counter() - ready


# ---- other coders -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Coder:
    """A way to write ascending indices below a limit, and to read so many of them back."""

    write: Callable[[Indices, int], bytes]
    read: Callable[[bytes, int, int], Indices]  # bytes, count, limit

    def then(self, squeeze: Callable[[bytes], bytes], restore: Callable[[bytes], bytes]) -> Coder:
        """Return the same, its bytes passed through a general coder."""
        return Coder(
            lambda at, limit: squeeze(self.write(at, limit)),
            lambda data, count, limit: self.read(restore(data), count, limit),
        )


def compared(quick: bool) -> dict[str, Any]:
    """Return what the indices of STC take in each coder. Counts and limits are known to all."""
    own = {f"Metis, {coding}": own_coder(coding) for coding in ("auto", *CODINGS)}
    coders, missing = own | standard_coders(), []
    for package, more in (("zstandard", zstd_coders), ("constriction", arithmetic_coders)):
        try:
            coders |= more(importlib.import_module(package))
        except ImportError:
            missing.append(package)
    rows = []
    for name, change in updates(quick).items():
        shape = joined(change.layout)
        at = Ternary(change.layout, SPARSITY).keep(shape.difference(change.weights, change.base))
        entropy = len(at) * entropy_bits(len(at) / shape.num_weights) / 8
        for title, coder in coders.items():
            row = {"update": name, "coder": title, "kept": len(at), "entropy_bytes": entropy}
            rows.append(row | compare(coder, at, shape.num_weights, 2 if quick else 15))
    return {"compare": rows, "missing": missing}


def compare(coder: Coder, at: Indices, limit: int, repeats: int) -> dict[str, Any]:
    data = coder.write(at, limit)
    assert np.array_equal(coder.read(data, len(at), limit), at)
    writing = [seconds(lambda: coder.write(at, limit)) for _ in range(repeats)]
    reading = [seconds(lambda: coder.read(data, len(at), limit)) for _ in range(repeats)]
    row = {"bytes": len(data), "bits_per_position": 8 * len(data) / len(at)}
    return row | {"write_seconds": spread(writing), "read_seconds": spread(reading)}


def own_coder(asked: str) -> Coder:
    """Return one of ours; as in a packet, a byte says which coding it is."""

    def write(at: Indices, _: int) -> bytes:
        coding, parts = write_shortest(at, asked)
        return b"".join([bytes([CODINGS[coding]]), *parts])

    def read(data: bytes, count: int, limit: int) -> Indices:
        (coding,) = (name for name, number in CODINGS.items() if number == data[0])
        return read_ascending(Reader(data, 1), count, limit, coding)

    return Coder(write, read)


def standard_coders() -> dict[str, Coder]:
    """Return what needs nothing but Python. Varint gaps by zlib 6 are our own "deflate"."""
    words = Coder(
        lambda at, _: at.astype("<u4").tobytes(),
        lambda data, *_: np.frombuffer(data, dtype="<u4").astype(np.int64),
    )
    gaps = Coder(write_gaps, read_gaps)
    return {
        "4-byte indices": words,
        "2-byte gaps, zlib 9": gaps.then(lambda data: zlib.compress(data, 9), zlib.decompress),
        "2-byte gaps, lzma": gaps.then(lzma.compress, lzma.decompress),
        "varint gaps": Coder(write_varints, read_varints),
    }


def zstd_coders(zstd: Any) -> dict[str, Coder]:
    varints, restore = Coder(write_varints, read_varints), zstd.ZstdDecompressor().decompress
    levels = {level: zstd.ZstdCompressor(level=level).compress for level in (3, 19)}
    return {f"varint gaps, zstd {n}": varints.then(one, restore) for n, one in levels.items()}


def arithmetic_coders(constriction: Any) -> dict[str, Coder]:
    """Return a coder to which both ends tell the true density: that is not counted as bytes."""
    streams = constriction.stream

    def gaps_model(count: int, limit: int, largest: int) -> Any:
        chances = (1.0 - count / limit) ** np.arange(largest + 1)
        return streams.model.Categorical(chances, perfect=False)

    def write(at: Indices, limit: int) -> bytes:
        gaps, coder = gaps_of(at), streams.stack.AnsCoder()
        largest = int(gaps.max())
        coder.encode_reverse(gaps.astype(np.int32), gaps_model(len(at), limit, largest))
        return np.append(np.uint32(largest), coder.get_compressed()).astype("<u4").tobytes()

    def read(data: bytes, count: int, limit: int) -> Indices:
        coded = np.frombuffer(data, dtype="<u4")
        model = gaps_model(count, limit, int(coded[0]))
        return from_gaps(streams.stack.AnsCoder(coded[1:]).decode(model, count))

    return {"geometric gaps, ANS": Coder(write, read)}


def gaps_of(at: Indices) -> Indices:
    return np.diff(at, prepend=-1) - 1


def from_gaps(gaps: NDArray[Any]) -> Indices:
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def write_gaps(at: Indices, _: int) -> bytes:
    gaps = gaps_of(at)  # in two bytes each, or all in four if one is too large for that
    return gaps.astype("<u2" if gaps.max() < 1 << 16 else "<u4").tobytes()


def read_gaps(data: bytes, count: int, _: int) -> Indices:
    return from_gaps(np.frombuffer(data, dtype=f"<u{len(data) // count}"))


def write_varints(at: Indices, _: int) -> bytes:
    """Return gaps seven bits to the byte, the lowest first; a top bit says that more follow."""
    gaps = gaps_of(at)[:, None]
    digits, more = (gaps >> np.arange(0, 35, 7)) & 127, gaps >> np.arange(7, 42, 7) > 0
    digits[more] |= 128
    used = np.insert(more[:, :-1], 0, True, axis=1)
    return digits.astype(np.uint8)[used].tobytes()


def read_varints(data: bytes, _: int, __: int) -> Indices:
    digits = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(digits < 128)
    starts = np.append(0, ends[:-1] + 1)
    place = np.arange(len(digits)) - np.repeat(starts, ends - starts + 1)
    return from_gaps(np.add.reduceat((digits & 127) << (7 * place), starts))


def use_one_core() -> int:
    """Tie this process to one core where the system can; return how many it may use."""
    torch.set_num_threads(1)
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return 1


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the median of some figures, and the lowest and highest of them."""
    found = sorted(values)
    return {"median": statistics.median(found), "low": found[0], "high": found[-1]}


if __name__ == "__main__":
    main()
