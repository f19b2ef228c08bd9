"""From a run's journal to the few numbers that tables and figures need."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from metis.config import Config, dump, load
from metis.core.local_run import Progress
from metis.core.triggers import ValidationCycle
from metis.journal.file import Record, read_journal
from metis.journal.paths import CONFIG, JOURNAL
from metis.journal.totals import Tally
from metis.storage.atomic import write_bytes
from metis_papers.cells import Cell
from metis_papers.numerics import numerics_of
from metis_papers.provenance import commit, device_name, in_words, precision_of
from metis_papers.results import FILE, FIRST_CYCLES, Result, as_text

MAX_EPOCHS = 120  # of a learner's validation cycles that are kept


def write_result(cell: Cell, directory: Path) -> Result:
    """Read a finished run and write its result into its directory."""
    config = load(directory / CONFIG)
    result = _result(cell, config, read_journal(directory / JOURNAL))
    write_bytes(directory / FILE, as_text(result).encode())
    return result


def _result(cell: Cell, config: Config, records: Iterable[Record]) -> Result:
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
            snapshot_bytes = record["bytes_down"]  # the first model that a learner is sent is whole
        if record["kind"] == "test" and record["score"] is not None:
            traffic.append(
                [tally.num_arrived, tally.bytes_up, tally.bytes_down, tally.samples_trained]
            )
    summary = tally.summary()
    holdings = {one["learner"]: one["holdings"] for one in tally.run["learners"]}
    groups = {one["learner"]: one["group"] for one in tally.run["learners"]}
    return Result(
        study=cell.study,
        cluster=cell.cluster,
        row=cell.row,
        policy=cell.policy,
        variant=cell.variant,
        seed=cell.seed,
        scale=cell.scale,
        horizon=cell.horizon,
        network=config.model.name or "",
        precision=precision_of(config),
        device_kind=config.device,
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
    """Return a summary of each group's values."""
    found_of: dict[str, dict[str, Any]] = {}
    for group in dict.fromkeys(groups.values()):
        members = [found.get(name, ()) for name in groups if groups[name] == group]
        every = [value for values in members for value in values]
        if every:
            found_of[group] = {
                "updates": len(every),
                "median": statistics.median(every),
                "mean": round(statistics.mean(every), 1),
                "std": round(statistics.stdev(every), 1) if len(every) > 1 else 0.0,
                "first": [v for values in members for v in values[:FIRST_CYCLES]],
            }
    return found_of


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
        """Return how many cycles a group had, of how many epochs, and why they ended.

        C1 or C2 ended `by_loss` of them, the most epochs that a cycle may have `by_cap`, C3 the
        others. In `rose` of them the last epoch made the loss larger. The loss of a received model
        is not in the journal: without burn-in C1 needs it, so why cycles ended is not known.
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
