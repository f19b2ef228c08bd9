"""Finished or interrupted runs as they lie on disk, and runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metis.core.errors import JournalError
from metis.journal.file import Record, read_journal
from metis.journal.totals import Tally, joined_learner


@dataclass(frozen=True)
class Run:
    """One run: what its journal holds, and what that came to."""

    name: str
    directory: Path
    records: list[Record]
    summary: dict[str, Any]

    @property
    def learners(self) -> list[Record]:
        """Return what the journal says of each learner, in its first record or when it joined."""
        listed: dict[str, Record] = {one["learner"]: one for one in self.records[0]["learners"]}
        if not listed:  # a federation in real time
            for record in self.records:
                if record["kind"] == "join":
                    listed.setdefault(record["learner"], joined_learner(record))
        return list(listed.values())

    @property
    def groups(self) -> dict[str, str]:
        """Return each learner's device class."""
        return {one["learner"]: one["group"] for one in self.learners}


def read_run(directory: Path) -> Run:
    """Return the run in a directory. One that was interrupted is whole as far as it came.

    Costs about ten microseconds a record.
    """
    path = directory / "journal.jsonl"
    if not path.is_file():
        raise JournalError(f"{directory}: holds no journal.jsonl, so it is no run's directory")
    tally, records = Tally(), []
    for number, record in enumerate(read_journal(path), 1):
        if number == 1:
            _check_first(path, record)
        try:
            tally.add(record)
        except (KeyError, TypeError) as error:
            kind = record["kind"]
            raise JournalError(f"{path}:{number}: {kind!r} record is damaged: {error}") from None
        records.append(record)
    if not records:
        raise JournalError(f"{path}: holds no records, so the run never began")
    try:
        return Run(directory.resolve().name, directory, records, tally.summary())
    except (KeyError, TypeError) as error:
        raise JournalError(f"{path}:1: 'run' record is damaged: {error}") from None


def _check_first(path: Path, record: Record) -> None:
    if record["kind"] != "run":
        raise JournalError(f"{path}:1: begins with {record['kind']!r} instead of 'run'")
    needed = {"policy", "dataset", "partition", "seed", "test_metric", "parameters", "learners"}
    missing = sorted(needed - record.keys())
    if missing:
        raise JournalError(f"{path}:1: the 'run' record lacks {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Series:
    """Runs that are to be seen as one: the same policy on the same data, under several seeds."""

    label: str
    policy: str
    runs: tuple[Run, ...]

    def values(self, key: str) -> list[float]:
        """Return one number of each run's summary, of those that have it."""
        return [run.summary[key] for run in self.runs if run.summary[key] is not None]


#: What runs that are told apart by their seed alone have in common, as far as journals tell.
_SETTINGS = ("policy", "dataset", "partition", "upload", "download")


def series_of(runs: Sequence[Run]) -> list[Series]:
    """Group runs that differ in nothing but their seed, in order of appearance.

    Two runs of one policy with one seed must differ in something the journal does not tell (a
    learning rate, say), so each then stands for itself under the name of its directory.
    """
    alike: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        alike.setdefault(tuple(str(run.summary[key]) for key in _SETTINGS), []).append(run)
    groups: list[list[Run]] = []
    for members in alike.values():
        seeds = {run.summary["seed"] for run in members}
        groups += [members] if len(seeds) == len(members) else [[run] for run in members]
    policies = [short_policy(str(members[0].summary["policy"])) for members in groups]
    return [
        Series(_label(policy, members, policies.count(policy) == 1), policy, tuple(members))
        for policy, members in zip(policies, groups, strict=True)
    ]


def short_policy(policy: str) -> str:
    """Return a policy without the folder of its file, if it names one."""
    return policy.rpartition("/")[2] if ".py:" in policy else policy


def _label(policy: str, members: Sequence[Run], alone: bool) -> str:
    if alone:
        return policy
    if len(members) == 1:
        return f"{policy} ({members[0].name})"
    summary = members[0].summary
    packed = [summary[key] for key in ("upload", "download") if summary[key] != "dense"]
    return f"{policy} ({', '.join([summary['dataset'], summary['partition'], *packed])})"


@dataclass(frozen=True, slots=True)
class Point:
    """One test of a community model, and what the federation had spent until then."""

    seconds: float
    samples: int
    megabytes: float  # both ways, in 10^6 bytes
    score: float


def curve(run: Run) -> list[Point]:
    """Return every test of a run, and its last score once more where the run ends.

    One pass over the journal. A model keeps its score until the next, so a policy whose last
    version came early is not drawn as if it had stopped there.
    """
    tally, points = Tally(), []
    for record in run.records:
        tally.add(record)
        if record["kind"] == "test" and record["score"] is not None:
            points.append(_point(tally, record["score"]))
    return [*points, _point(tally, points[-1].score)] if points else []


def _point(tally: Tally, score: float) -> Point:
    megabytes = (tally.bytes_up + tally.bytes_down) / 1e6
    return Point(tally.virtual_seconds, tally.samples_trained, megabytes, score)


def metric_name(runs: Sequence[Run]) -> str:
    """Return what the tests of these runs measure, in words."""
    metrics = {run.summary["test_metric"] for run in runs}
    if metrics == {"accuracy"}:
        return "accuracy"
    return "R²" if metrics == {"r2"} else "score"


def comparable(runs: Sequence[Run]) -> bool:
    """Whether a better score of one run means anything beside the others."""
    return len({(run.summary["dataset"], run.summary["test_metric"]) for run in runs}) == 1


def target_score(series: Sequence[Series]) -> float | None:
    """Return 95 % of the best final score, a mark most policies can be timed against."""
    runs = [run for one in series for run in one.runs]
    finals = [mean(one.values("final_score")) for one in series if one.values("final_score")]
    if not comparable(runs) or not finals or max(finals) <= 0.0:
        return None  # of a negative R2, 95 % would be a higher mark
    return 0.95 * max(finals)


def seconds_to(run: Run, target: float) -> float | None:
    """Return the virtual time of the first test that reached a score."""
    return next((at for at, _, score in run.summary["curve"] if score >= target), None)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def with_spread(values: Sequence[float], form: str) -> str:
    """Return one value as it is, several as mean ±half of their range, none as a dash."""
    if not values:
        return "-"
    half_range = (max(values) - min(values)) / 2
    spread = f" ±{format(half_range, form)}" if half_range else ""
    return format(mean(values), form) + spread
