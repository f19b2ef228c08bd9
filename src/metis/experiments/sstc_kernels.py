"""SSTC's Figures 1 and 2 and its Table I: where the largest changes of one update lie.

One writer trains once from the first community model and once from the last of the dense run. What
came of it is kept beside the pictures, for those who have the results but not the models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from metis.codecs.inspect import Matrix, approximations, kernel_matrix, weight_change
from metis.codecs.sizes import kept, paper_sstc_ratio, paper_stc_ratio
from metis.config import load
from metis.core.errors import RunError
from metis.experiments.outcome import Outcome
from metis.experiments.pictures import write_figure
from metis.experiments.published import SSTC_CONVOLUTIONS_SMALLER
from metis.experiments.words import markdown_table
from metis.report.kernels import compared, kept_updates
from metis.runtime.files import CONFIG, FINAL, INITIAL
from metis.store.weights import file_layout, read_safetensors

SPARSITY, SHARE = 0.01, 0.125
SPARSITY_OF_FIGURE_1 = 0.001
KEPT = "sstc-kernels.json"
WHEN = ("first", "last")
NUM_COLUMNS = 6


def look(out: Path, dense: Path, one: Outcome) -> tuple[str, list[Path]]:
    """Return a table and pictures of one update at the start and one at the end.

    `dense` is where the run lies, or lay, that `one` tells of.
    """
    path = out / KEPT
    of = [one.dataset, one.scale, one.horizon, one.seed]
    pictures = [out / "sstc-fig1.png", *(out / f"sstc-fig2-{when}.png" for when in WHEN)]
    if (dense / FINAL).is_file():
        rows = _measured(dense, pictures)
        kept = json.dumps({"of": of, "rows": rows}, indent=1)
        path.write_text(kept + "\n", encoding="utf-8")
    else:
        rows = _kept(path, of) if all(file.is_file() for file in (path, *pictures)) else []
        if not rows:
            return "SSTC's Figures 1 and 2 need the dense run's model, which is not here.\n", []
    heads = (
        "update",
        "kept by STC in kernels",
        "STC, convolutions by formula",
        "SSTC, convolutions by formula",
        "STC, real bytes",
        "SSTC, real bytes",
    )
    paper = ", ".join(f"{name} {value:g}x" for name, value in SSTC_CONVOLUTIONS_SMALLER.items())
    shown = "\n".join(f"![{picture.stem}]({picture.name})" for picture in pictures)
    return (
        f"How many times smaller one writer's update gets (the paper: {paper}, convolutions "
        f"alone):\n\n{markdown_table(heads, rows)}\n{shown}\n",
        [*pictures, path],
    )


def _kept(path: Path, of: list[Any]) -> list[list[str]]:
    """Return what was measured before, if it was of the same run."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        rows = [[str(cell) for cell in row] for row in kept["rows"]]
        if [len(row) for row in rows] != [NUM_COLUMNS] * len(WHEN):
            raise ValueError(f"expected {len(WHEN)} rows of {NUM_COLUMNS}")
        return rows if kept["of"] == of else []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is no measurement of SSTC's kernels: {error!r}; remove it"
        ) from None


def _measured(dense: Path, pictures: list[Path]) -> list[list[str]]:
    """Train a writer twice, draw its updates, return a line for each."""
    import numpy as np

    from metis.runtime.run import run_or_resume

    rows = []
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
        stc, sstc = approximations(trained, base, layout, SPARSITY, SHARE)
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
        sparse, _ = approximations(trained, base, layout, SPARSITY_OF_FIGURE_1, SHARE)
        title = f"{convolutions[0].name}, {when} round"
        maps[title] = kernel_matrix(sparse.sent, convolutions[0])
        in_kernels = kept(layout, np.flatnonzero(stc.sent)).in_kernels
        rows.append(
            [
                f"{when} round",
                f"{in_kernels:,}",
                f"{paper_stc_ratio(layout, in_kernels):.1f}" if in_kernels else "-",
                f"{paper_sstc_ratio(layout, SHARE):.1f} (with 11 bits "
                f"{paper_sstc_ratio(layout, SHARE, 11):.1f})",
                f"{4 * layout.size / stc.bytes_shortest:.1f}",
                f"{4 * layout.size / sstc.bytes_shortest:.1f}",
            ]
        )
    write_figure(kept_updates(maps, "the largest 0.1 % of all changes"), pictures[0])
    return rows
