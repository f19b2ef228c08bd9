"""The SSTC paper: what compressed updates cost in accuracy, per round and per byte.

The setting is the paper's as far as the data allows: the FEMNIST CNN, 5 local epochs of plain SGD
at 0.1, batches of 16, p = 1 %, 50 learners a round, 1,000 rounds. FEMNIST itself (`--data femnist`)
is used where it is prepared; the default is MNIST divided by who wrote it: 539 writers, 10 classes
instead of 3,400 and 62. Fewer rounds of fewer writers at scale short.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from metis.config import load
from metis.data.sources import SOURCES, cache_directory
from metis.report.style import COLOURS, new_figure, plain, write_figure
from metis_papers.cells import Cell, Horizon, Row, Setting
from metis_papers.formatting import made_with, markdown_table, paired, score, write_page
from metis_papers.generated import NUM_OWNERS, generated_file
from metis_papers.published import SSTC_ACCURACY
from metis_papers.results import Result, read_results
from metis_papers.sstc_kernels import SHARES, gains, in_words, look
from metis_papers.study import Choice, Report, Study, chosen

NAME, CLUSTER = "sstc", "writers"
DATA = {"mnist_by_writer": 539, "femnist": 3400}  # and its writers
USUAL = "mnist_by_writer"
TARGET = 0.95  # megabytes until this accuracy are shown


def _stc(**more: Any) -> dict[str, Any]:
    return {"codec": "stc", "sparsity": 0.01, **more}


def _sstc(share: float, **more: Any) -> dict[str, Any]:
    return {"codec": "sstc", "sparsity": 0.01, "kernels": share, **more}


#: Every run by name: its policy, how updates travel, how community models do.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("sync-fedavg", {}, {}),
    "int8": ("sync-fedavg", {"codec": "int8"}, {}),
    "stc": ("sync-fedavg", _stc(), {}),
    **{f"sstc-{share:g}": ("sync-fedavg", _sstc(share), {}) for share in SHARES},
    "stc-ef": ("sync-fedavg", _stc(error_feedback=True), {}),
    "sstc-0.125-ef": ("sync-fedavg", _sstc(0.125, error_feedback=True), {}),
    "stc-both-ways": ("sync-fedavg", _stc(), _stc(error_feedback=True)),
    "async-dvw-dense": ("async-dvw", {}, {}),
    "async-dvw-sstc": ("async-dvw", _sstc(0.125), {}),
    "async-dvw-sstc-both-ways": ("async-dvw", _sstc(0.125), {"codec": "stc", "sparsity": 0.1}),
}
SMOKE_RUNS = ("dense", "stc", "sstc-0.125", "async-dvw-sstc")


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    per_round: int
    test_every: int  # rounds


SIZES = {"full": Size(1000, 50, 5), "short": Size(50, 10, 2), "smoke": Size(2, 3, 1)}


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    (data,) = chosen([choice.data or USUAL], tuple(DATA), f"data of {NAME}")
    default = SMOKE_RUNS if setting.scale == "smoke" else tuple(RUNS)
    names = chosen(choice.policies or default, tuple(RUNS), f"run of {NAME}")
    return [_cell(setting, data, name, seed) for name in names for seed in setting.seeds]


def _cell(setting: Setting, data: str, name: str, seed: int) -> Cell:
    policy, upload, download = RUNS[name]
    size = SIZES[setting.scale]
    rounds = setting.rounds or size.rounds
    each = 1 if policy.startswith("sync") else size.per_round  # versions that stand for a round
    source = data if data in SOURCES else str(cache_directory().absolute() / f"{data}.npz")
    learners = DATA[data]
    if setting.scale == "smoke":
        source = str(generated_file(setting.out / "generated", "mnist_by_writer"))
        learners = NUM_OWNERS
    config = load(
        None,
        policy=policy,
        learners=learners,
        seed=seed,
        device=setting.device,
        # Steps of one writer are too small to be shared out among cores.
        engine="loop" if setting.device == "cpu" else "auto",
        threads=1,
        **({} if setting.precision is None else {"precision": setting.precision}),
        data={"name": source},
        model={"name": "femnist_cnn"},
        partition={"sizes": "uniform", "classes": "natural"},
        train={"epochs": 5, "learning_rate": 0.1, "momentum": 0.0, "batch_size": 16},
        recipe={"sample": size.per_round},
        horizon={"versions": rounds * each, "test_every": size.test_every * each},
        upload=upload,
        download=download,
        # Only when interrupted: with error feedback a checkpoint has a model for each writer.
        output={"checkpoint_seconds": 0},
    )
    return Cell(
        NAME,
        CLUSTER,
        Row("uniform", "natural", data),
        policy,
        seed,
        setting.scale,
        Horizon(rounds=rounds),
        config,
        variant=name,
    )


# ---- the report --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """One test, and what had been sent by then."""

    version: int
    updates: int
    bytes_up: int
    bytes_down: int
    accuracy: float


def points_of(one: Result) -> list[Point]:
    return [
        Point(int(version), updates, up, down, score)
        for (_, version, score), (updates, up, down, *_) in zip(one.curve, one.traffic, strict=True)
    ]


def curves_of(found: Sequence[Result]) -> dict[str, list[list[Point]]]:
    """Return each run's curves, one for each seed; runs of one kind all end where the shortest of
    them does."""
    curves = {
        name: [points_of(one) for one in found if one.variant == name]
        for name in RUNS
        if any(one.variant == name for one in found)
    }
    for kind in ("sync", "async"):
        names = [name for name in curves if RUNS[name][0].startswith(kind)]
        updates = min((one[-1].updates for name in names for one in curves[name]), default=0)
        for name in names:
            curves[name] = [[p for p in one if p.updates <= updates] for one in curves[name]]
    return curves


def report(setting: Setting, choice: Choice) -> Report:
    data = choice.data or USUAL
    found = [
        one for one in read_results(setting.out, [NAME]) if one.row.data == data and one.traffic
    ]
    if not found:
        return write_page(setting.out, NAME, "## SSTC\n\nAll its cells are missing.\n")
    parts, pictures = ["## SSTC: accuracy per round and per megabyte\n"], []
    alike = Counter((one.scale, one.horizon) for one in found)
    for scale, horizon in alike:
        here = [one for one in found if (one.scale, one.horizon) == (scale, horizon)]
        parts.append(f"{data}, {horizon}, scale {scale}:\n\n{_table(here)}{_pairs(here)}")
    published = ", ".join(f"{name} {value:.4f}" for name, value in SSTC_ACCURACY.items())
    parts.append(f"The paper's best on FEMNIST within 1,000 rounds of 50 learners: {published}.\n")
    ((most, _),) = alike.most_common(1)
    shown = [one for one in found if (one.scale, one.horizon) == most]
    dense = [one for one in shown if one.variant == "dense"]
    rows, drawn = look(setting.out, setting.out / dense[0].name, dense[0]) if dense else ([], [])
    pictures.append(draw(curves_of(shown), gains(rows), setting.out / f"{NAME}.png"))
    parts.append(f"![accuracy per round, per megabyte, by share of kernels]({NAME}.png)\n")
    if rows:
        parts.append(
            "The upper axis of the right panel is the paper's: how many times shorter SSTC's maps "
            "are than STC's indices, by equation 1, the mean of the two updates below.\n"
        )
    if dense:
        parts.append(in_words(rows, drawn))
        pictures += drawn
    parts.append(made_with(found))
    return write_page(setting.out, NAME, "\n".join(parts), pictures)


def _table(found: Sequence[Result]) -> str:
    heads = (
        "run",
        "updates",
        "seed",
        "final",
        "best",
        "bytes each",
        "times smaller",
        "MB up",
        f"MB up to {TARGET:g}",
        "MB down",
        "final, of all seeds",
    )
    curves = curves_of(found)
    snapshots = {one.variant: one.snapshot_bytes for one in found}
    seeds = {name: [one.seed for one in found if one.variant == name] for name in curves}
    lines = [_line(name, seeds[name], curves[name], snapshots[name]) for name in curves]
    absent = [name for name in RUNS if name not in curves]
    missing = f"Missing: {', '.join(absent)}." if absent else "All runs are there."
    return f"{markdown_table(heads, lines)}\n{missing}\n"


def _pairs(found: Sequence[Result]) -> str:
    """Return differences between runs that have several seeds in common, if there are such."""
    scores = {name: {o.seed: o for o in found if o.variant == name} for name in RUNS}
    lines = []
    for one, other in itertools.combinations(RUNS, 2):
        common = sorted(set(scores[one]) & set(scores[other]))
        if len(common) > 1 and RUNS[one][0] == RUNS[other][0]:
            ours, theirs = ([scores[name][seed] for seed in common] for name in (one, other))
            final = paired([o.curve[-1][2] for o in ours], [o.curve[-1][2] for o in theirs])
            late = paired(
                [fmean(o.late_scores()) for o in ours], [fmean(o.late_scores()) for o in theirs]
            )
            lines.append((f"{one} - {other}", str(len(common)), final, late))
    if not lines:
        return ""
    heads = ("difference", "seeds", "at the end", "over the last tenth")
    return f"\nOf the same seeds, with standard errors:\n\n{markdown_table(heads, lines)}"


def _line(
    name: str, seeds: Sequence[int], curves: Sequence[Sequence[Point]], snapshot_bytes: int
) -> list[str]:
    """Return the results of the first seed, and the spread over all seeds."""
    points = curves[0]
    last = points[-1]
    reached = next((p.bytes_up / 1e6 for p in points if p.accuracy >= TARGET), None)
    each = last.bytes_up / max(last.updates, 1)
    return [
        name,
        f"{last.updates:,}",
        str(seeds[0]),
        f"{last.accuracy:.4f}",
        f"{_best(points):.4f}",
        f"{each:,.0f}",
        f"{snapshot_bytes / each:.1f}" if each else "-",
        f"{last.bytes_up / 1e6:,.1f}",
        "-" if reached is None else f"{reached:,.1f}",
        f"{last.bytes_down / 1e6:,.1f}",
        score([one[-1].accuracy for one in curves]) if len(curves) > 1 else "",
    ]


def _best(points: Sequence[Point]) -> float:
    return max(point.accuracy for point in points)


def draw(curves: dict[str, list[list[Point]]], gain: dict[float, float], path: Path) -> Path:
    """Draw the first seed; a band goes from the least to the most of all.

    `gain` of SSTC over STC by the share of kernels is the third panel's upper axis.
    """
    figure = new_figure(15, 4.4)
    by_round, by_bytes, by_share = figure.subplots(1, 3)
    names = ("dense", "int8", "stc", "sstc-0.125", "stc-ef", "sstc-0.125-ef")
    for colour, name in zip(COLOURS, names, strict=False):
        if name in curves:
            style = {"drawstyle": "steps-post", "color": colour, "label": name}
            points = curves[name][0][1:]
            scores = [point.accuracy for point in points]
            by_bytes.plot([point.bytes_up / 1e6 for point in points], scores, **style)
            rounds = [point.version for point in points]
            by_round.plot(rounds, scores, **style)
            if len(curves[name]) > 1:
                each = [[p.accuracy for p in seeds] for seeds in zip(*curves[name], strict=False)]
                least, most = [min(scores) for scores in each], [max(scores) for scores in each]
                by_round.fill_between(
                    rounds[: len(each) - 1],
                    least[1:],
                    most[1:],
                    step="post",
                    color=colour,
                    alpha=0.15,
                    lw=0,
                )
    plain(by_round, "round", "test accuracy")
    plain(by_bytes, "megabytes sent up, all learners")
    by_bytes.set_xscale("log")
    if by_round.lines:
        by_round.legend(fontsize=8, frameon=False)
    shares = [share for share in SHARES if f"sstc-{share:g}" in curves]
    best = [_best(curves[f"sstc-{share:g}"][0]) for share in shares]
    by_share.plot([100 * share for share in shares], best, "o-", label="SSTC")
    if "stc" in curves:
        by_share.axhline(_best(curves["stc"][0]), color="grey", linestyle="--", label="STC")
    plain(by_share, "kernels kept (%)", "best accuracy")
    drawn = [share for share in shares if share in gain]
    if drawn:
        upper = by_share.secondary_xaxis("top")
        labels = [f"{gain[share]:.2f}" for share in drawn]
        upper.set_xticks([100 * share for share in drawn], labels, fontsize=8, rotation=45)
        upper.set_xlabel("SSTC/STC, convolutions (equation 1)")
    by_share.legend(fontsize=8, frameon=False)
    return write_figure(figure, path)


STUDY = Study(NAME, "STC and SSTC against dense updates, by rounds and by bytes", cells, report)
