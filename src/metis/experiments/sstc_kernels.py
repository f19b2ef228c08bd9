"""SSTC's Figures 1 and 2 and its Table I: where the largest changes of one update lie.

One writer trains once from the first community model and once from the last of the dense run. What
came of it is kept beside the pictures, for those who have the results but not the models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from metis.codecs.inspect import Matrix, approximation, kernel_matrix, weight_change
from metis.codecs.joined import joined
from metis.codecs.selection import rounded
from metis.codecs.sizes import paper_gain, paper_sstc_ratio, sstc_pays
from metis.config import load
from metis.core.errors import RunError
from metis.core.types import Layout, Vector
from metis.experiments.outcome import Outcome
from metis.experiments.pictures import write_figure
from metis.experiments.published import SSTC_CONVOLUTIONS_SMALLER
from metis.experiments.words import markdown_table
from metis.journal.paths import CONFIG, FINAL, INITIAL
from metis.report.kernels import compared, kept_updates
from metis.storage.weights import file_layout, read_safetensors

SPARSITY, SHARE = 0.01, 0.125
SPARSITY_OF_FIGURE_1 = 0.001
KEPT = "sstc-kernels.json"
WHEN = ("first", "last")
SHARES = (0.05, 0.125, 0.25, 0.4, 1.0)  # of kernels: the paper's Figure 3c
PAPERS_BITS = 11  # of a kernel's index in the paper's 104x, where its rule gives 12


@dataclass(frozen=True, slots=True)
class Measured:
    """One codec on one update: how many times smaller it gets, and what equations 1 and 2 say."""

    when: str
    codec: str
    share: float | None  # of kernels; None: STC
    kept_in_kernels: int
    convolutions: float | None  # by the paper's formula
    with_papers_bits: float | None
    model: float  # by formula
    wire: float
    gain: float | None  # of SSTC over STC's indices of the same update, equation 1
    pays: bool | None  # equation 2


def gains(rows: Sequence[Measured]) -> dict[float, float]:
    """Return equation 1 by the share of kernels, the mean of the updates looked at."""
    shares = dict.fromkeys(one.share for one in rows if one.share is not None)
    of = {share: [r.gain for r in rows if r.share == share and r.gain] for share in shares}
    return {share: sum(mine) / len(mine) for share, mine in of.items() if mine}


def look(out: Path, dense: Path, one: Outcome) -> tuple[list[Measured], list[Path]]:
    """Return measures and pictures of one update at the start and one at the end.

    `dense` is where the run lies, or lay, that `one` is of. Nothing if neither its models nor
    earlier measures are there.
    """
    path = out / KEPT
    of = [one.dataset, one.scale, one.horizon, one.seed]
    pictures = [out / "sstc-fig1.png", *(out / f"sstc-fig2-{when}.png" for when in WHEN)]
    if (dense / FINAL).is_file():
        rows = _measured(dense, pictures)
        kept = json.dumps({"of": of, "rows": [asdict(row) for row in rows]}, indent=1)
        path.write_text(kept + "\n", encoding="utf-8")
    else:
        rows = _kept(path, of) if all(file.is_file() for file in (path, *pictures)) else []
    return (rows, [*pictures, path]) if rows else ([], [])


def in_words(rows: Sequence[Measured], pictures: Sequence[Path]) -> str:
    """Return the three figures of each codec, with what equations 1 and 2 say of it."""
    if not rows:
        return "SSTC's Figures 1 and 2 need the dense run's model, which is not here.\n"
    heads = (
        "update",
        "codec",
        "kept in kernels",
        "convolutions, the paper's formula",
        "whole model, by formula",
        "whole model, real bytes",
        "SSTC/STC (equation 1)",
        "SSTC pays (equation 2)",
    )
    lines = [
        (
            f"{one.when} round",
            one.codec,
            f"{one.kept_in_kernels:,}",
            _convolutions(one),
            f"{one.model:.1f}",
            f"{one.wire:.1f}",
            "-" if one.gain is None else f"{one.gain:.2f}",
            "-" if one.pays is None else "yes" if one.pays else "no",
        )
        for one in rows
    ]
    paper = ", ".join(f"{name} {value:g}x" for name, value in SSTC_CONVOLUTIONS_SMALLER.items())
    shown = "\n".join(
        f"![{picture.stem}]({picture.name})" for picture in pictures if picture.suffix == ".png"
    )
    return (
        "How many times smaller one writer's update gets: its convolutions by the paper's formula "
        f"(the paper: {paper}), the whole model by formula (fixed widths as the paper's, and all "
        "else that a packet has), and by the bytes of a real packet. Equations 1 and 2 are the "
        "paper's, of convolutions alone, with the weights in kernels that STC keeps of this "
        f"update:\n\n{markdown_table(heads, lines)}\n{shown}\n"
    )


def _convolutions(one: Measured) -> str:
    if one.convolutions is None:
        return "-"
    paper = one.with_papers_bits
    more = "" if paper is None else f" (with {PAPERS_BITS} bits {paper:.1f})"
    return f"{one.convolutions:.1f}{more}"


def _kept(path: Path, of: list[Any]) -> list[Measured]:
    """Return what was measured before, if it was of the same run."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        rows = [Measured(**row) for row in kept["rows"]]
        for one in rows:
            _ = f"{one.kept_in_kernels:,} {one.model:.1f} {one.wire:.1f} {one.gain or 0.0:.2f}"
            _ = _convolutions(one)
        return rows if kept["of"] == of else []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is no measurement of SSTC's kernels: {error!r}; remove it"
        ) from None


def _measured(dense: Path, pictures: list[Path]) -> list[Measured]:
    """Train a writer twice, draw its updates, measure what each codec makes of them."""
    from metis.simulation.run import run_or_resume

    rows = list[Measured]()
    maps: dict[str, Matrix] = {}
    starts = (None, str((dense / FINAL).absolute()))
    for when, start, picture in zip(WHEN, starts, pictures[1:], strict=True):
        config = load(dense / CONFIG)
        config = replace(
            config,
            model=replace(config.model, initial=start),
            recipe=replace(config.recipe, sample=1),
            horizon=replace(config.horizon, versions=1, seconds=None, test_every=1),
            output=replace(config.output, keep_updates=True),
        )
        directory = dense.with_name(f"look-{when}")
        run_or_resume(config, directory)
        layout = file_layout(directory / FINAL)
        # A round of one learner: the new community model is what it trained.
        base = read_safetensors(directory / INITIAL, layout)
        trained = read_safetensors(directory / FINAL, layout)
        update = (trained, base, layout)
        stc, sstc = (approximation(*update, SPARSITY, share) for share in (None, SHARE))
        change = weight_change(trained, base, layout)
        convolutions = [tensor for tensor in layout.tensors if tensor.kind == "conv"]
        second = convolutions[-1]
        figure = compared(
            kernel_matrix(change, second),
            kernel_matrix(stc.sent, second),
            kernel_matrix(sstc.sent, second),
            f"{second.name}, {when} round of the dense run",
        )
        write_figure(figure, picture)
        sparse = approximation(*update, SPARSITY_OF_FIGURE_1, None)
        title = f"{convolutions[0].name}, {when} round"
        maps[title] = kernel_matrix(sparse.sent, convolutions[0])
        rows += measures(when, *update)
    write_figure(kept_updates(maps, "the largest 0.1 % of all changes"), pictures[0])
    return rows


def measures(when: str, trained: Vector, base: Vector, layout: Layout) -> list[Measured]:
    """Return what STC, and SSTC by its share of kernels, makes of one update."""
    rows = list[Measured]()
    num_kernels, of_stc = joined(layout).num_kernels, 0
    for share in (None, *SHARES):
        found = approximation(trained, base, layout, SPARSITY, share)
        gain = pays = bits = None
        if share is None:
            of_stc = found.kept_in_kernels
        elif chosen := rounded(share, num_kernels):
            gain = paper_gain(chosen, of_stc, layout)
            pays = sstc_pays(chosen, of_stc, layout)
            bits = paper_sstc_ratio(layout, share, PAPERS_BITS) if share == SHARE else None
        rows.append(
            Measured(
                when=when,
                codec="stc" if share is None else f"sstc-{share:g}",
                share=share,
                kept_in_kernels=found.kept_in_kernels,
                convolutions=found.smaller.convolutions,
                with_papers_bits=bits,
                model=found.smaller.model,
                wire=found.smaller.wire,
                gain=gain,
                pays=pays,
            )
        )
    return rows
