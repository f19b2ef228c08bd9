"""The records of a journal, declared once: the fields of each kind, in the order they are written.

Each field is *derived* (it follows from other records, the config and the kept packets),
*primary* (a fact: what a learner reported, when something happened, chance) or *clock* (real
time). A replay recomputes every derived field; a test holds it to that, field by field. Some
facts of a federation in real time are derived in a simulation, whose time is computed.

Beside the fields declared here each record has `kind`, `at` and `wall_seconds`; `at` is derived
in a simulation, and never goes backwards in real time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypeVar

from metis.core.errors import JournalError

#: A record as it is in the file.
Record: TypeAlias = dict[str, Any]


#: Where a field's value comes from. What is derived in a simulation is primary in real time.
Mark: TypeAlias = Literal["derived", "derived in a simulation", "primary", "clock"]

ABSENT: Final[Any] = object()  # the value of a field that only some records of a kind have

ENVELOPE: Mapping[str, Mark] = {
    "kind": "derived",
    "at": "derived in a simulation",
    "wall_seconds": "clock",
}

T = TypeVar("T")
KINDS: dict[str, type[Any]] = {}
_KIND_OF: dict[type[Any], str] = {}


def _kind(name: str) -> Callable[[type[T]], type[T]]:
    def register(declared: type[T]) -> type[T]:
        KINDS[name], _KIND_OF[declared] = declared, name
        return declared

    return register


def _field(mark: Mark, optional: bool, rows: type[Any] | None) -> Any:
    metadata = {"mark": mark, "rows": rows}
    return field(default=ABSENT, metadata=metadata) if optional else field(metadata=metadata)


def derived(*, optional: bool = False, rows: type[Any] | None = None) -> Any:
    return _field("derived", optional, rows)


def simulated(*, optional: bool = False) -> Any:
    return _field("derived in a simulation", optional, None)


def primary(*, optional: bool = False) -> Any:
    return _field("primary", optional, None)


def clock(*, optional: bool = False) -> Any:
    return _field("clock", optional, None)


# ---- the kinds --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRow:
    """A learner that a simulation begins with."""

    learner: str = derived()
    group: str = derived()
    examples: int = primary()
    validation_examples: int = primary()
    holdings: list[int] = primary()


@_kind("run")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    policy: str = derived()
    policy_digest: str = derived(optional=True)
    live: bool = derived(optional=True)
    dataset: str = primary()
    data: str = primary(optional=True)
    partition: str = primary()
    seed: int = derived()
    num_classes: int = primary()
    test_metric: str = derived()
    parameters: int = derived()
    layout: str = derived()
    tensors: list[list[Any]] = primary()
    initial: str = derived()
    upload: str = derived()
    download: str = derived()
    engine: str = derived(optional=True)
    engine_note: str | None = primary(optional=True)
    batch_note: str | None = primary(optional=True)
    unplaced: int = primary(optional=True)
    judged: bool = derived()
    release_from: int | None = derived()
    learners: list[LearnerRow] = derived(rows=LearnerRow)
    federation: str = primary(optional=True)


@_kind("join")
@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRecord:
    learner: str = simulated()
    num_examples: int = simulated()
    steps_per_epoch: int = simulated()
    group: str = simulated()
    num_held_out: int = simulated()
    steps_per_full_epoch: int | None = simulated()
    holds: list[int] | None = primary(optional=True)


@_kind("leave")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRecord:
    learner: str = simulated()
    withdraw: bool = simulated()


@_kind("task")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    task: int = derived()
    learner: str = derived()
    version: int = derived()
    committed_steps: int = derived()
    max_steps: int | None = derived()
    rate_factor: float = derived()
    all_examples: bool = derived()
    bytes_down: int = derived()


@_kind("steps")
@dataclass(frozen=True, slots=True, kw_only=True)
class StepsRecord:
    learner: str = derived()
    task: int = derived()
    epoch: int = derived()
    num_steps: int = derived()
    samples: int = derived()
    loss: float | None = primary()
    steps_behind: int = derived()


@_kind("arrive")
@dataclass(frozen=True, slots=True, kw_only=True)
class ArriveRecord:
    learner: str = simulated()
    task: int = simulated()
    base_version: int = simulated()
    num_examples: int = simulated()
    num_steps: int = simulated()
    seconds: float = simulated()
    counts: Record | None = primary()
    bytes_up: int = derived()
    checksum: int = derived(optional=True)
    digest: str = derived(optional=True)


@_kind("fail")
@dataclass(frozen=True, slots=True, kw_only=True)
class FailRecord:
    learner: str = simulated()
    task: int = simulated()
    reason: str = primary()
    traceback: str = primary(optional=True)


@_kind("evaluate")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRecord:
    evaluation: int = derived()
    judge: str = derived()
    learner: str = derived()
    task: int = derived()
    bytes_down: int = derived()


@_kind("score")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRecord:
    evaluation: int = simulated()
    counts: Record | None = primary()
    judge: str = derived(optional=True)
    wall_waited: float | None = clock(optional=True)


@_kind("task-expired")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExpiredRecord:
    task: int = simulated()


@_kind("evaluation-expired")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationExpiredRecord:
    evaluation: int = simulated()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow:
    """An update that a version took in."""

    learner: str = derived()
    task: int = derived()
    weight: float = derived()
    score: float | None = derived()
    num_steps: int = derived()
    versions_behind: int = derived()
    steps_behind: int = derived()
    judges: int = derived()
    missing: list[str] = derived()


@_kind("version")
@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    version: int = derived()
    digest: str = derived()
    committed_steps: int = derived()
    drift: float | None = derived()
    packet_bytes: int | None = derived()
    folds: list[FoldRow] = derived(rows=FoldRow)


@_kind("refuse")
@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRecord:
    learner: str = derived()
    task: int = derived()
    reason: str = derived()


@_kind("test")
@dataclass(frozen=True, slots=True, kw_only=True)
class TestRecord:
    version: int = derived()
    score: float | None = primary()
    loss: float | None = primary()


@_kind("incident")
@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    learner: str = derived()
    incident: str = derived()
    factor: float | None = derived()


@_kind("end")
@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    reason: str = simulated()


@_kind("start")
@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    recovered_events: int = primary()
    version: int = derived()
    members: list[str] = derived()
    tasks: list[tuple[int, str]] = derived()
    evaluations: list[tuple[int, str, int]] = derived()
    wall_recovery_seconds: float = clock()
    wall_time: str = clock()


@_kind("audit")
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    what: str = primary()
    who: str = primary()
    reason: str = primary()
    crl_number: int = primary(optional=True)


# ---- what follows from the declaration ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declared:
    """One field of a kind of record, or of a row in it."""

    name: str
    mark: Mark
    optional: bool
    rows: type[Any] | None

    def is_derived(self, live: bool) -> bool:
        return is_derived(self.mark, live)


def is_derived(mark: Mark, live: bool) -> bool:
    """Whether a replay recomputes such a field, in real time or in a simulation."""
    return mark == "derived" or (mark == "derived in a simulation" and not live)


def _declared(of: type[Any]) -> tuple[Declared, ...]:
    return tuple(
        Declared(one.name, one.metadata["mark"], one.default is ABSENT, one.metadata["rows"])
        for one in fields(of)
    )


#: The fields of each class above.
FIELDS: Mapping[type[Any], tuple[Declared, ...]] = {
    of: _declared(of) for of in (*KINDS.values(), LearnerRow, FoldRow)
}


def kind_of(record: object) -> str:
    return _KIND_OF[type(record)]


def as_fields(record: object) -> Record:
    """Return the fields of a record as they are written; those that are absent are left out."""
    found = {}
    for one in FIELDS[type(record)]:
        value = getattr(record, one.name)
        if value is not ABSENT:
            found[one.name] = [as_fields(row) for row in value] if one.rows else value
    return found


def read(record: Record) -> Any:
    """Return a record of the file as what it is declared to be; its rows stay as they are.

    JournalError if a field is missing or is not declared.
    """
    declared = KINDS.get(record["kind"])
    if declared is None:
        raise JournalError(f"there is no kind of record {record['kind']!r}")
    for complaint in misfits(record):
        raise JournalError(f"{record['kind']!r} record is damaged: {complaint}")
    return declared(**{name: value for name, value in record.items() if name not in ENVELOPE})


def misfits(record: Record) -> Iterator[str]:
    """Say which fields of a record, its envelope apart, are missing or not declared."""
    inside = {name: value for name, value in record.items() if name not in ENVELOPE}
    yield from _misfits(inside, KINDS[record["kind"]])


def _misfits(found: Record, declared: type[Any]) -> Iterator[str]:
    expected = {one.name: one for one in FIELDS[declared]}
    for name, one in expected.items():
        if name not in found and not one.optional:
            yield f"it lacks {name}"
        if one.rows is not None:
            for row in found.get(name, ()):
                yield from (f"{name}: {complaint}" for complaint in _misfits(row, one.rows))
    for name in found:
        if name not in expected:
            yield f"it has {name}, which such a record does not have"
