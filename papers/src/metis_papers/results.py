"""What is kept of a cell: a few kilobytes, all that tables and figures read.

A cell that has just been made has them in its folder, as `cell.json`. Cells that are kept for good
are lines of one file, `cells.jsonl.gz`, in the folder of the reports:

    python -m metis_papers.results add DIR [--to papers/results/cells.jsonl.gz]

A report reads both. Where both have a cell of one name, that of the folder is the later one.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metis import paper
from metis.core.errors import MetisError, RunError
from metis.storage.atomic import write_bytes
from metis_papers.cells import Horizon, Row, name_of
from metis_papers.numerics import numerics_of
from metis_papers.provenance import PRECISIONS

FILE = "cell.json"
ARCHIVE = "cells.jsonl.gz"
FIRST_CYCLES = 20  # the paper's Figure 4 shows this many of each learner
LATE = 0.1  # of the virtual time at the end of a curve, over which its noise is looked at


@dataclass(frozen=True, slots=True)
class Result:
    """A finished cell."""

    study: str
    cluster: str
    row: Row
    policy: str
    variant: str
    seed: int
    scale: str
    horizon: Horizon
    network: str
    precision: str  # that products were computed with
    device_kind: str  # cpu or cuda
    device: str  # the same, in words
    about: str  # the config in words, for a reader
    dataset: str
    partition: str
    parameters: int
    ended: str | None
    virtual_seconds: float
    rounds: int  # community versions
    requests: int
    models_exchanged: int
    evaluation_models: int
    bytes_up: int
    bytes_down: int
    samples: int
    final_score: float | None
    best_score: float | None
    curve: list[list[float]]  # virtual seconds, version, score
    traffic: list[list[int]]  # by each test: updates, bytes up, bytes down, samples
    snapshot_bytes: int  # of an uncompressed model
    wall_seconds: float
    samples_per_second: float
    commit: str
    numerics: str  # digest of the twins of its policy and network, see `numerics`
    learners: list[dict[str, Any]]
    staleness: dict[str, dict[str, Any]]  # at the commit, by group, in mini-batches
    trigger_staleness: dict[str, dict[str, Any]]  # C3's, by group
    cycles: dict[str, dict[str, Any]]  # by group: one learner's losses, what made all of it offer
    config: str  # as a whole, in TOML

    @property
    def name(self) -> str:
        """The name of its cell, and its folder."""
        variant = self.variant or self.policy
        return name_of(self.study, self.cluster, self.row, variant, self.seed)

    @property
    def is_current(self) -> bool:
        """Whether today's code computes as the code did that made this cell."""
        return self.numerics == numerics_of(self.policy, self.network)

    def score_at(self, seconds: float) -> float | None:
        """Return the score of the last model that was there at a virtual moment."""
        before = [score for at, _, score in self.curve if at <= seconds + 1e-6]
        return before[-1] if before else None

    def late_scores(self) -> list[float]:
        """Return the scores of the last tenth of the time: their range tells how much the very
        last one means. Policies that are tested more often have more of them."""
        since = (1 - LATE) * self.virtual_seconds - 1e-6
        return [score for at, _, score in self.curve if at >= since] or [
            score for _, _, score in self.curve[-1:]
        ]


# ---- one cell as JSON --------------------------------------------------------------------------


def as_text(result: Result) -> str:
    """Return a result as JSON, one line for each of its values."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}"
        for name, value in dataclasses.asdict(result).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_result(path: Path) -> Result:
    """Return the result in a `cell.json`. Raises RunError if it is damaged or of another kind."""
    try:
        return _result(json.loads(path.read_text(encoding="utf-8")))
    except _DAMAGE as error:
        raise RunError(
            f"{path} is no cell of a table: {error}; remove it to have the cell made again"
        ) from None


_DAMAGE = (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError, LookupError)


def _result(values: Mapping[str, Any]) -> Result:
    """Return a result from plain values. Raises one of `_DAMAGE` for what is not one."""
    row, horizon = Row(**values["row"]), Horizon(**values["horizon"])
    found = Result(**{**values, "row": row, "horizon": horizon})
    if (horizon.rounds is None) == (horizon.seconds is None):
        raise ValueError("its horizon must be in rounds or in seconds")
    if found.precision not in PRECISIONS or found.device_kind not in ("cpu", "cuda"):
        raise ValueError(f"unknown precision or device: {found.precision}, {found.device_kind}")
    _ = f"{horizon} {row.place} {found.name}"
    for at, version, score in found.curve:
        _ = float(at), int(version), float(score)
    if found.traffic and len(found.traffic) != len(found.curve):
        raise ValueError("its traffic and its curve are not of the same tests")
    for updates, up, down, samples in found.traffic:
        _ = updates + up + down + samples
    for each in found.learners:
        _ = each["learner"], sum(each["holdings"]), each["mean_weight"]
    return found


# ---- many cells --------------------------------------------------------------------------------


def read_results(out: Path, studies: Sequence[str] | None = None) -> list[Result]:
    """Return the finished cells of a folder of reports, rows in the paper's order, then by name.

    None: of every study. Of several seeds the papers' comes first. Cells of another arithmetic are
    left out.
    """
    folders = [out] if studies is None else [out / study for study in studies]
    made = [read_result(path) for folder in folders for path in sorted(folder.rglob(FILE))]
    later = {one.name for one in made}
    made += [
        one
        for one in read_archive(out / ARCHIVE)
        if (studies is None or one.study in studies) and one.name not in later
    ]
    return sorted((one for one in made if one.is_current), key=_place)


def _place(one: Result) -> tuple[Any, ...]:
    seed = (one.seed != paper.SEED, one.seed)
    return one.study, one.cluster, one.row.place, one.policy, one.variant, seed


def read_archive(path: Path) -> list[Result]:
    """Return the cells of a `cells.jsonl.gz`, none where there is no file. Raises RunError."""
    if not path.exists():
        return []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return list(_lines(file))
    except _DAMAGE as error:
        raise RunError(f"{path} is no file of cells: {error}") from None


def _lines(file: Iterable[str]) -> Iterator[Result]:
    for number, line in enumerate(file, 1):
        try:
            yield _result(json.loads(line))
        except _DAMAGE as error:
            raise ValueError(f"line {number}: {error}") from None


def write_archive(path: Path, results: Iterable[Result]) -> None:
    """Write cells sorted by name. The same cells always give the same bytes."""
    lines = [
        json.dumps(dataclasses.asdict(one), separators=(",", ":")) + "\n"
        for one in sorted(results, key=lambda one: one.name)
    ]
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write("".join(lines).encode())
    write_bytes(path, packed.getvalue())


def add(folder: Path, archive: Path) -> tuple[int, int]:
    """Add a folder's cells to an archive; return how many are new, and how many replaced one.

    A cell replaces the one of the same name. Raises RunError before anything is written.
    """
    paths = sorted(folder.rglob(FILE))
    if not paths:
        raise RunError(f"there is no {FILE} in {folder}")
    kept = {one.name: one for one in read_archive(archive)}
    found: dict[str, Path] = {}
    replaced = 0
    for path in paths:
        one = read_result(path)
        if one.name in found:
            raise RunError(f"{path} and {found[one.name]} are both of the cell {one.name}")
        found[one.name] = path
        replaced += one.name in kept
        kept[one.name] = one
    write_archive(archive, kept.values())
    return len(found) - replaced, replaced


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m metis_papers.results")
    verbs = parser.add_subparsers(dest="verb", required=True)
    adding = verbs.add_parser("add", help="Add the cells of a folder to the file of all cells.")
    adding.add_argument("folder", type=Path, help=f"in which {FILE} files lie, at any depth")
    adding.add_argument("--to", type=Path, default=Path("papers/results") / ARCHIVE)
    asked = parser.parse_args(arguments)
    try:
        new, replaced = add(asked.folder, asked.to)
    except MetisError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{asked.to}: {new} new cells, {replaced} replaced")
    return 0


if __name__ == "__main__":
    sys.exit(main())
