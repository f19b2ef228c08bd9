"""What is kept of a cell: `cell.json`, all that tables and figures read. A few kilobytes."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from metis import paper
from metis.config import Config, dump, load
from metis.core.errors import RunError
from metis.core.local_run import Progress
from metis.core.triggers import ValidationCycle
from metis.experiments.cells import Cell
from metis.experiments.numerics import numerics_of
from metis.report.summary import Tally
from metis.runtime.compose import recipe_of
from metis.runtime.files import CONFIG, JOURNAL
from metis.runtime.journal import Record, read_journal
from metis.store.atomic import write_bytes

FILE = "cell.json"
FIRST_CYCLES = 20  # the paper's Figure 4 shows so many of each learner
LATE = 0.1  # of the virtual time at the end of a curve, over which its noise is looked at
LAST_BATCH = {
    "fill": "last mini-batch filled up",
    "short": "last mini-batch short",
    "drop": "full mini-batches alone",
}
MAX_EPOCHS = 120  # of a learner's validation cycles that are kept


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished cell."""

    study: str
    cluster: str
    row: str
    policy: str
    variant: str
    seed: int
    scale: str
    horizon: str  # in words, such as 200 rounds
    about: str  # the config in words
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
    wall_seconds: float
    samples_per_second: float
    commit: str
    device: str
    learners: list[dict[str, Any]]
    staleness: dict[str, dict[str, Any]]  # at the commit, by group, in mini-batches
    cycles: dict[str, dict[str, Any]]  # by group: one learner's losses, what made all of it offer
    # By each test: updates, bytes up, bytes down, samples (which early cells do not tell).
    traffic: list[list[int]] = field(default_factory=list)
    snapshot_bytes: int = 0  # of a model as it is
    config: str = ""  # as a whole, in TOML
    trigger_staleness: dict[str, dict[str, Any]] = field(default_factory=dict)  # C3's, by group
    numerics: str = ""  # digest of the twins of its policy and network, see `numerics`

    @property
    def is_current(self) -> bool:
        """Whether today's code computes as the code did that made this cell."""
        return self.numerics == numerics_of(self.policy, self.about.split(";")[0].split(" ")[0])

    @property
    def precision(self) -> str:
        """What products were computed with: a word of the config in words."""
        found = re.search(r"\bprecision (\w+)", self.about)
        if found is None:
            return "unknown"
        return _precision(found[1], "cpu" if " cores of " in self.device else "cuda")

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


def write_outcome(cell: Cell, directory: Path) -> Outcome:
    """Read a finished run and put what matters into its directory."""
    config = load(directory / CONFIG)
    outcome = _outcome(cell, config, read_journal(directory / JOURNAL))
    write_bytes(directory / FILE, as_text(outcome).encode())
    return outcome


def as_text(outcome: Outcome) -> str:
    """Return an outcome as JSON, one line for each of its values."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}"
        for name, value in dataclasses.asdict(outcome).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_outcome(path: Path) -> Outcome:
    """Return what a `cell.json` holds. Raises RunError if it is damaged or of another kind."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in dataclasses.fields(Outcome)}
        found = Outcome(**{name: value for name, value in values.items() if name in known})
        for at, version, score in found.curve:
            _ = float(at), int(version), float(score)
        _ = found.precision
        if found.traffic and len(found.traffic) != len(found.curve):
            raise ValueError("its traffic and its curve are not of the same tests")
        for updates, up, down, *samples in found.traffic:
            _ = updates + up + down + sum(samples)
        for each in found.learners:
            _ = each["learner"], sum(each["holdings"]), each["mean_weight"]
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise RunError(
            f"{path} is no cell of a table: {error}; remove it to have the cell made again"
        ) from None
    return found


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return every finished cell below a folder, rows in the paper's order, then by name.

    Of several seeds the papers' comes first. Cells of another arithmetic are left out.
    """
    found = (read_outcome(path) for path in sorted(folder.rglob(FILE)))
    return sorted((one for one in found if one.is_current), key=_place)


def _place(one: Outcome) -> tuple[Any, ...]:
    seed = (one.seed != paper.SEED, one.seed)
    return one.study, one.cluster, _place_of_row(one.row), one.policy, one.variant, seed


def _place_of_row(row: str) -> tuple[int, int]:
    """Return where a row stands: the more alike learners are, the earlier."""
    sizes, _, classes = row.partition("-")
    order = ("uniform", "skewed", "powerlaw", "geometric")
    first = order.index(sizes) if sizes in order else len(order)
    return first, -int(classes) if classes.isdecimal() else -1000


# ---- from a journal ----------------------------------------------------------------------------


def _outcome(cell: Cell, config: Config, records: Iterable[Record]) -> Outcome:
    tally, cycles = Tally(), _Cycles(config)
    stale, stale_at_trigger = _Staleness(), _TriggerStaleness()
    traffic: list[list[int]] = []
    snapshot_bytes = 0
    for record in records:
        tally.add(record)
        stale.add(record)
        stale_at_trigger.add(record)
        cycles.add(record)
        if record["kind"] == "task" and not snapshot_bytes:
            snapshot_bytes = record["bytes_down"]  # the first that anybody is sent is whole
        if record["kind"] == "test" and record["score"] is not None:
            traffic.append(
                [tally.num_arrived, tally.bytes_up, tally.bytes_down, tally.samples_trained]
            )
    summary = tally.summary()
    holdings = {one["learner"]: one["holdings"] for one in tally.run["learners"]}
    groups = {one["learner"]: one["group"] for one in tally.run["learners"]}
    return Outcome(
        study=cell.study,
        cluster=cell.cluster,
        row=cell.row,
        policy=cell.policy,
        variant=cell.variant,
        seed=cell.seed,
        scale=cell.scale,
        horizon=cell.horizon.in_words(),
        about=in_words(config),
        config=dump(config),
        dataset=summary["dataset"],
        partition=summary["partition"],
        parameters=summary["parameters"],
        ended=summary["ended"],
        virtual_seconds=round(summary["virtual_seconds"], 3),
        rounds=summary["versions"],
        requests=summary["update_requests"],
        models_exchanged=summary["models_exchanged"],
        evaluation_models=summary["evaluation_models"],
        bytes_up=summary["bytes_up"],
        bytes_down=summary["bytes_down"],
        samples=summary["samples_trained"],
        final_score=summary["final_score"],
        best_score=summary["best_score"],
        curve=[[round(at, 3), version, round(score, 5)] for at, version, score in tally.curve],
        traffic=traffic,
        snapshot_bytes=snapshot_bytes,
        wall_seconds=summary["wall_seconds"],
        samples_per_second=round(summary["wall_samples_per_second"], 1),
        commit=commit(),
        device=device_name(config.device),
        learners=[
            {"learner": name, **numbers, "holdings": holdings[name]}
            for name, numbers in summary["learners"].items()
        ],
        staleness=stale.by_group(groups),
        trigger_staleness=stale_at_trigger.by_group(groups),
        numerics=numerics_of(config.policy, config.model.name or ""),
        cycles=cycles.by_group(groups),
    )


def in_words(config: Config) -> str:
    """Return what matters of a resolved config, for a reader of the results."""
    train, groups = config.train, config.group_sizes()
    speeds = ", ".join(
        f"{groups[name]} {name} ({1000 * (group.seconds_per_step or 0):g} ms a step)"
        for name, group in config.groups.items()
    )
    cycles = ", ".join(
        f"{name} tomb {group.vc_tomb} loss {group.vc_loss:g} %"
        for name, group in config.groups.items()
    )
    words = [
        f"{config.model.name}{'' if not config.model.options else f' {config.model.options}'}",
        f"lr {train.learning_rate:g}, momentum {train.momentum:g}, batch {train.batch_size}, "
        f"weight decay {train.weight_decay:g}",
        *([f"shuffle buffer {train.shuffle_buffer:,}"] if train.shuffle_buffer else []),
        LAST_BATCH[train.last_batch],
        *config.partition.mistakes_in_words(),
        speeds,
        f"costs {config.costs.profile}",
        f"precision {precision_of(config)}, engine {config.engine}",
    ]
    if config.policy.endswith("adaptive"):
        words.append(f"validation cycles: {cycles}")
        words += ["their best model is offered"] if train.offer == "best" else []
    else:
        words.append(f"{train.epochs} epochs a request")
    if recipe_of(config).holds_out:
        kind = "stratified" if config.validation.stratified else "not stratified"
        words.append(f"{100 * config.validation.fraction:g} % held out, {kind}")
    return "; ".join(words)


def precision_of(config: Config) -> str:
    """Return what products are computed with."""
    return _precision(config.precision, config.device)


def _precision(asked: str, device: str) -> str:
    return "float32" if asked == "tf32" and device == "cpu" else asked  # a CPU has no tf32


class _Staleness:
    """Effective staleness of updates at their commits: the first of each learner, and all."""

    def __init__(self) -> None:
        self._of: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, record: Record) -> None:
        if record["kind"] == "version":
            for fold in record["folds"]:
                self._of[fold["learner"]].append(fold["steps_behind"])

    def by_group(self, groups: dict[str, str]) -> dict[str, dict[str, Any]]:
        return _by_group(self._of, groups)


class _TriggerStaleness:
    """Effective staleness of updates at their triggers, which is what condition C3 looks at."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}
        self._of: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, record: Record) -> None:
        if record["kind"] == "steps":
            self._latest[record["learner"]] = record["steps_behind"]
        elif record["kind"] == "arrive" and record["learner"] in self._latest:
            self._of[record["learner"]].append(self._latest.pop(record["learner"]))

    def by_group(self, groups: dict[str, str]) -> dict[str, dict[str, Any]]:
        return _by_group(self._of, groups)


def _by_group(
    found: Mapping[str, Sequence[int]], groups: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what there is to tell of each group's values."""
    told: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(groups.values()):
        members = [found.get(name, ()) for name in groups if groups[name] == group]
        every = [value for values in members for value in values]
        if every:
            told[group] = {
                "updates": len(every),
                "median": statistics.median(every),
                "mean": round(statistics.mean(every), 1),
                "std": round(statistics.stdev(every), 1) if len(every) > 1 else 0.0,
                "first": [v for values in members for v in values[:FIRST_CYCLES]],
            }
    return told


class _Cycles:
    """Validation losses by epoch, and the epochs after which a learner offered its model."""

    def __init__(self, config: Config) -> None:
        self._open: defaultdict[int, list[float]] = defaultdict(list)  # by task
        self._losses: defaultdict[str, list[float]] = defaultdict(list)
        self._offers: defaultdict[str, list[int]] = defaultdict(list)
        self._train = config.train
        self._criteria = {
            name: ValidationCycle(
                group.vc_loss or 0.0, group.vc_tomb or 0, config.train.burn_in_epochs
            )
            for name, group in config.groups.items()
        }

    def add(self, record: Record) -> None:
        if record["kind"] == "steps" and record["loss"] is not None:
            self._open[record["task"]].append(record["loss"])
        elif record["kind"] == "arrive" and record["task"] in self._open:  # others came to nothing
            name = record["learner"]
            self._losses[name] += self._open.pop(record["task"])
            self._offers[name].append(len(self._losses[name]))

    def _in_all(self, group: str, members: Sequence[str]) -> dict[str, int]:
        """Return how many cycles a group had, of how many epochs, and how many of them were ended
        by C1 or C2, and how many by the most epochs that a cycle may have; the others were by C3.
        In how many of them the last epoch made the loss larger is told of all.

        The loss of a received model is not in the journal. With burn-in nobody asks for it;
        without, what ended a cycle is not told.
        """
        cycles = [
            self._losses[name][begin:end]
            for name in members
            for begin, end in pairwise((0, *self._offers[name]))
        ]
        rose = [len(one) > 1 and one[-1] > one[-2] for one in cycles]
        totals = {"cycles": len(cycles), "epochs": sum(map(len, cycles)), "rose": sum(rose)}
        if self._train.burn_in_epochs:
            stopped = self._criteria[group]
            by_loss = [stopped(Progress(len(one), (one[0], *one), 0, ())) for one in cycles]
            too_long = [len(one) >= self._train.max_epochs for one in cycles]
            totals["by_loss"] = sum(by_loss)
            totals["by_cap"] = sum(b and not a for a, b in zip(by_loss, too_long, strict=True))
        return totals

    def by_group(self, groups: dict[str, str]) -> dict[str, dict[str, Any]]:
        """Return the learner of each group with most requests: its line says most."""
        found: dict[str, dict[str, Any]] = {}
        for group in dict.fromkeys(groups.values()):
            members = [name for name in groups if groups[name] == group and name in self._losses]
            if members:
                name = max(members, key=lambda one: len(self._offers[one]))
                losses = self._losses[name][:MAX_EPOCHS]
                found[group] = {
                    "learner": name,
                    "losses": [round(loss, 5) for loss in losses],
                    "offers": [epoch for epoch in self._offers[name] if epoch <= len(losses)],
                    **self._in_all(group, members),
                }
        return found


# ---- where and with what -----------------------------------------------------------------------


def commit() -> str:
    """Return the commit of the code; $METIS_COMMIT where there is no repository to ask."""
    given = os.environ.get("METIS_COMMIT")
    if given:
        return given
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def device_name(device: str) -> str:
    """Return the processor a run was computed by, in words."""
    import torch

    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores of {processor}, torch {torch.__version__}"
