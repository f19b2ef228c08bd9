"""A replay verifies every field that follows from others: whatever is changed, it is named."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import metis
from metis.config import Config, load
from metis.core.errors import JournalError
from metis.core.types import LearnerId
from metis.journal.file import Journal, Record, read_journal
from metis.journal.records import ENVELOPE, FIELDS, KINDS, is_derived, misfits
from metis.replay.verify import Replayed, replay
from metis.service.in_process import InProcessConnection
from metis.service.open_federation import found as founded
from metis.service.recovery import conclude
from metis.simulation.run import run
from metis.storage.weights import read_safetensors, save_safetensors
from metis.training.flat import layout_of
from tests.journal.linking import line_of, linked, write_linked
from tests.service.rig import LAYOUT, attend, make_impatient, toy_config, toy_site, write_first

PACKED = {"upload": {"codec": "stc", "sparsity": 0.4, "error_feedback": True}}
ADAPTIVE = {"train": {"burn_in_epochs": 0, "max_epochs": 4}, "recipe": {"repair_every": 2}}
FAULTS = [
    {"at_seconds": 0.05, "learner": "learner-03", "kind": "crash"},
    {"at_seconds": 1.1, "learner": "learner-03", "kind": "restart"},
    {"at_seconds": 0.6, "learner": "learner-02", "kind": "slow", "factor": 2.0},
    {"at_seconds": 0.7, "learner": "learner-04", "kind": "join"},
    {"at_seconds": 1.4, "learner": "learner-02", "kind": "withdraw"},
]
LINK = {"latency_seconds": 0.01, "bandwidth_bytes_per_second": 5000.0}

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Name -> what its config says.
SIMULATED: dict[str, dict[str, Any]] = {
    "sync-dvw": {"policy": "sync-dvw", "horizon": {"versions": 2}},
    "async-dvw-adaptive": {"policy": "async-dvw-adaptive", **ADAPTIVE},
    "fedbuff": {"policy": "fedbuff", "recipe": {"buffer_size": 2}},
    "semisync-dvw": {"policy": "semisync-dvw", "horizon": {"versions": 2}},
    "packed both ways": {
        "policy": "async-dvw",
        "download": {"codec": "int8"},
        "groups": {"all": {"seconds_per_step": 0.1, **LINK}},
        **PACKED,
    },
    "faults": {
        "policy": "async-dvw",
        "learners": 4,
        "incidents": FAULTS,
        "train": {"epochs": 2, "lease_seconds": 0.7},
        "validation": {"deadline_seconds": 0.2},
        "horizon": {"seconds": 2.0},
        "groups": {"all": {"seconds_per_step": 0.1, "seconds_per_evaluated_example": 0.05, **LINK}},
    },
    "a learner that fails": {"policy": "async-fedavg", "horizon": {"versions": 3}},
    "regression": {"policy": "sync-dvw", "horizon": {"versions": 1}},
    "a recipe in a file": {"policy": f"{EXAMPLES}/recipe.py:recipe", "horizon": {"versions": 1}},
}
LIVE = "a federation in real time"


def data(name: str, learners: int) -> metis.Dataset:
    chance = np.random.default_rng(1)
    x = chance.normal(size=(20 * learners + 20, 3)).astype(np.float32)
    y = (x[:, 0] + 0.5 * chance.normal(size=len(x)) > 0).astype(np.int64)
    owners = np.arange(len(x) - 20) // 20
    classes = 2
    if name == "regression":
        y, classes = np.rint(8 * x[:, 0] + 3 * x[:, 1]).astype(np.int64), 0
    if name == "a learner that fails":
        x[:20] *= 1e30
    return metis.Dataset(
        name, x[:-20], y[:-20], x[-20:], y[-20:], num_classes=classes, owners=owners
    )


def config_of(name: str) -> Config:
    common: dict[str, Any] = {
        "learners": 3,
        "partition": {"classes": "natural", "sizes": "uniform"},
        "groups": {"fast": {"seconds_per_step": 0.1}, "slow": {"seconds_per_step": 0.25}},
        "horizon": {"versions": 4, "test_every": 2},
        "output": {"keep_updates": True},
        "engine": "loop",
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 0.1},
    }
    chosen = SIMULATED[name]
    train = {**common["train"], **chosen.get("train", {})}
    return load(None, **{**common, **chosen, "train": train})


@dataclass(frozen=True)
class Kept:
    """A run that was kept, and what is changed in a copy of it."""

    directory: Path
    records: list[Record]

    def replayed(self, records: list[Record]) -> Replayed:
        """Replay it with another journal, whose hashes fit."""
        write_linked(self.directory / "journal.jsonl", records)
        return replay(self.directory)


@pytest.fixture(scope="module", autouse=True)
def config_read_once() -> Iterator[None]:
    """A config is read a thousand times here, and always the same."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("metis.replay.verify.load", functools.cache(load))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Kept]:
    """Return a copy of a kept run by its name; each is made once."""
    base = tmp_path_factory.mktemp("runs")
    made: dict[str, Kept] = {}

    def get(name: str) -> Kept:
        if name not in made:
            directory = base / str(len(made))
            if name == LIVE:
                live(directory)
            else:
                config = config_of(name)
                classes = 1 if name == "regression" else 2
                dataset = data(name, config.learners)
                run(config, directory, model=nn.Linear(3, classes), data=dataset)
            made[name] = Kept(directory, list(read_journal(directory / "journal.jsonl")))
        kept = made[name]
        copy = base / f"{kept.directory.name}-copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(kept.directory, copy)
        return Kept(copy, kept.records)

    return get


def live(directory: Path) -> None:
    """Run toy sites to the end of their federation, with one more start of its controller."""
    codecs: dict[str, Any] = {**PACKED, "download": {"codec": "int8"}}
    config = toy_config("async-dvw", 4, **codecs)
    initial = write_first(directory.with_suffix(".safetensors"))
    with pytest.MonkeyPatch.context() as patches:
        make_impatient(patches)
        founded(directory, config, initial).journal.close()
        service = founded(directory, config)
        lines = {
            name: InProcessConnection(service, name)
            for name in map(LearnerId, config.learner_names())
        }
        attend([toy_site(config, name, line) for name, line in lines.items()])
    conclude(directory, service)
    service.journal.close()


def changed(value: Any) -> Any:
    """Return something of the same kind that is as near as can be."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * (1 + 1e-9) if value else 1e-9
        case str():
            return f"{value}x"
        case None:
            return 1
        case [*items]:
            return items[:-1] if items else ["x"]
    raise AssertionError(f"a derived field must not be {value!r}")


def changes(record: Record, is_live: bool) -> Iterator[tuple[str, Record]]:
    """Give the record once for each derived field of it, with that changed, and the name of it."""
    for name, mark in ENVELOPE.items():
        if is_derived(mark, is_live) and name != "kind":
            yield name, {**record, name: changed(record[name])}
    for one in FIELDS[KINDS[record["kind"]]]:
        if one.name not in record or not one.is_derived(is_live):
            continue
        yield one.name, {**record, one.name: changed(record[one.name])}
        for number, row in enumerate(record[one.name] if one.rows is not None else ()):
            for inner in FIELDS[one.rows]:  # type: ignore[index]
                if inner.is_derived(is_live):
                    rows = list(record[one.name])
                    rows[number] = {**row, inner.name: changed(row[inner.name])}
                    yield inner.name, {**record, one.name: rows}


def chosen(records: list[Record]) -> list[int]:
    """Return the places of two records of each kind: the first with all that it can have, and
    the last."""
    best: dict[str, tuple[int, int]] = {}
    last: dict[str, int] = {}
    for place, record in enumerate(records):
        size = len(json.dumps(record))
        if record["kind"] not in best or size > best[record["kind"]][0]:
            best[record["kind"]] = (size, place)
        last[record["kind"]] = place
    return sorted({*(place for _, place in best.values()), *last.values()})


@pytest.mark.parametrize("name", [*SIMULATED, LIVE])
def test_a_run_as_it_was_written_is_verified(name: str, runs: Callable[[str], Kept]) -> None:
    kept = runs(name)

    found = replay(kept.directory)

    assert sum(found.records.values()) == len(kept.records)
    assert found.unwritten is None
    assert found.num_versions >= 1
    assert found.files[0] == f"model.safetensors (version {found.num_versions})"


@pytest.mark.parametrize("name", [*SIMULATED, LIVE])
def test_a_change_of_any_field_that_follows_is_named(
    name: str, runs: Callable[[str], Kept]
) -> None:
    kept = runs(name)
    unnoticed = []

    for place in chosen(kept.records):
        for field, record in changes(kept.records[place], name == LIVE):
            try:
                kept.replayed([*kept.records[:place], record, *kept.records[place + 1 :]])
            except JournalError as error:
                if field in str(error) and f"line {place + 1}," in str(error):
                    continue
                unnoticed.append((field, record, str(error)))
            else:
                unnoticed.append((field, record, "verified"))

    assert unnoticed == []


def test_each_field_that_is_declared_is_in_one_of_these_runs(runs: Callable[[str], Kept]) -> None:
    seen = set()
    for name in [*SIMULATED, LIVE]:
        for record in runs(name).records:
            assert list(misfits(record)) == [], record
            seen |= {(record["kind"], field) for field in record}
    declared = {(kind, one.name) for kind, of in KINDS.items() for one in FIELDS[of]}
    rare = {("fail", "traceback"), *(("audit", one.name) for one in FIELDS[KINDS["audit"]])}

    assert declared - seen == rare


def test_a_fact_that_is_changed_breaks_the_chain_of_hashes(runs: Callable[[str], Kept]) -> None:
    """No field of a test follows from anything; the record after it names the line."""
    kept = runs("sync-dvw")
    place = next(n for n, record in enumerate(kept.records) if record["kind"] == "test")
    better = {**kept.records[place], "score": 0.999}

    records = [*kept.records[:place], better, *kept.records[place + 1 :]]
    (kept.directory / "journal.jsonl").write_bytes(b"".join(map(line_of, records)))

    with pytest.raises(JournalError, match=rf"line {place + 2}, .*not the hash of the line before"):
        replay(kept.directory)


def test_a_journal_that_goes_on_after_a_stop_keeps_its_chain_of_hashes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(3):
        journal.write("test", float(number), text="x" * 70_000 * number)
    position = journal.position()
    journal.write("test", 9.0)
    journal.close()

    again = Journal(path)
    again.rewind(position)
    again.write("test", 4.0)
    again.close()

    records = list(read_journal(path))
    assert [record["at"] for record in records] == [0.0, 1.0, 2.0, 4.0]
    assert records == linked(records)


#: What leaves no trace in real time when it is taken out: facts that nothing need follow from.
TRACELESS = {"start", "audit", "score"}


@pytest.mark.parametrize(
    "name", ["async-dvw-adaptive", "fedbuff", "faults", "packed both ways", LIVE]
)
def test_a_record_that_is_taken_out_is_missed(name: str, runs: Callable[[str], Kept]) -> None:
    kept = runs(name)
    unnoticed = []

    for place, record in enumerate(kept.records):
        with contextlib.suppress(JournalError):
            found = kept.replayed(kept.records[:place] + kept.records[place + 1 :])
            unnoticed += [record] if found.unwritten is None else []

    assert {record["kind"] for record in unnoticed} <= (TRACELESS if name == LIVE else set())


@pytest.mark.parametrize("name", ["semisync-dvw", "faults", "packed both ways", LIVE])
def test_records_in_another_order_are_noticed(name: str, runs: Callable[[str], Kept]) -> None:
    kept = runs(name)

    for place in range(len(kept.records) - 1):
        one, other = kept.records[place : place + 2]
        with pytest.raises(JournalError):
            kept.replayed([*kept.records[:place], other, one, *kept.records[place + 2 :]])


@pytest.mark.parametrize("name", ["sync-dvw", LIVE])
def test_a_record_that_is_there_twice_is_noticed(name: str, runs: Callable[[str], Kept]) -> None:
    kept = runs(name)
    facts = {"join", "start", "end"} if name == LIVE else set()

    for place, record in enumerate(kept.records):
        if record["kind"] not in facts:
            with pytest.raises(JournalError, match="line "):
                kept.replayed([*kept.records[:place], record, *kept.records[place:]])


@pytest.mark.parametrize("name", ["a learner that fails", "faults", LIVE])
def test_a_run_that_was_killed_is_verified_as_far_as_it_came(
    name: str, runs: Callable[[str], Kept]
) -> None:
    kept = runs(name)
    for left in ("model.safetensors", "best.safetensors", "summary.json"):
        (kept.directory / left).unlink(missing_ok=True)

    for length in range(1, len(kept.records)):
        found = kept.replayed(kept.records[:length])
        assert sum(found.records.values()) == length
        assert found.unwritten is not None or name == LIVE


def test_a_finished_run_must_be_there_to_its_end(runs: Callable[[str], Kept]) -> None:
    kept = runs("fedbuff")

    last = max(n for n, record in enumerate(kept.records) if record["kind"] == "version")

    with pytest.raises(JournalError, match="ends where the replay makes version 4"):
        kept.replayed(kept.records[:last])


@pytest.mark.parametrize("name", ["sync-dvw", LIVE])
def test_a_model_that_is_not_the_journals_is_refused(
    name: str, runs: Callable[[str], Kept]
) -> None:
    layout = LAYOUT if name == LIVE else layout_of(nn.Linear(3, 2))
    for file in ("model", "best") if name != LIVE else ("model",):
        kept = runs(name)
        path = kept.directory / f"{file}.safetensors"
        weights = read_safetensors(path, layout).copy()
        weights[-1] = np.nextafter(weights[-1], np.float32(9))
        save_safetensors(path, weights, layout)
        with pytest.raises(JournalError, match=f"{file}.safetensors is "):
            replay(kept.directory)


def test_a_live_model_older_than_the_end_is_refused_with_what_to_do(
    runs: Callable[[str], Kept],
) -> None:
    kept = runs(LIVE)
    weights = read_safetensors(kept.directory / "initial.safetensors", LAYOUT)
    save_safetensors(kept.directory / "model.safetensors", weights, LAYOUT)

    with pytest.raises(JournalError, match=r"is version 0, but .* ended with version [45]; start"):
        replay(kept.directory)
    before_the_end = [record for record in kept.records if record["kind"] != "end"]
    assert kept.replayed(before_the_end).files == ["model.safetensors (version 0)"]


def test_a_summary_that_does_not_add_up_is_refused(runs: Callable[[str], Kept]) -> None:
    kept = runs("sync-dvw")
    path = kept.directory / "summary.json"
    path.write_text(path.read_text().replace('"bytes_up": ', '"bytes_up": 1'))

    with pytest.raises(JournalError, match=r"summary\.json: bytes_up is 1\d+, the journal gives"):
        replay(kept.directory)


def test_an_update_that_is_missing_is_named(runs: Callable[[str], Kept]) -> None:
    for name in ("fedbuff", LIVE):
        kept = runs(name)
        (kept.directory / "updates" / "task-2.packet").unlink()
        with pytest.raises(JournalError, match=r"task-2\.packet"):
            replay(kept.directory)


def test_a_replay_says_what_it_takes_for_true(runs: Callable[[str], Kept]) -> None:
    simulated = replay(runs("sync-dvw").directory).reported
    real = replay(runs(LIVE).directory).reported

    assert simulated["steps"] == ["loss"]
    assert simulated["test"] == ["score", "loss"]
    assert "version" not in {**simulated, **real}
    assert "join" not in simulated
    assert real["join"][-1] == "holds"
    assert real["every record"] == ["at"]
    assert "num_steps" in real["arrive"]


# ---- the page ---------------------------------------------------------------------------------

LETTERS = {"derived": "d", "derived in a simulation": "s", "primary": "p", "clock": "c"}


def lettered(of: type[Any]) -> list[tuple[str, str]]:
    found = []
    for one in FIELDS[of]:
        found.append((one.name, LETTERS[one.mark]))
        found += lettered(one.rows) if one.rows is not None else []
    return found


def test_the_page_of_the_journal_has_every_field_with_its_mark() -> None:
    page = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page, re.MULTILINE))

    assert list(rows) == list(KINDS)
    for kind, text in rows.items():
        assert re.findall(r"`(\w+)` \[([dspc])\]", text) == lettered(KINDS[kind]), kind
    (envelope,) = re.findall(r"^Every record has (.*?)\. ", page, re.MULTILINE)
    found = re.findall(r"`(\w+)` \[([dspc])\]", envelope)
    assert found == [(name, LETTERS[mark]) for name, mark in ENVELOPE.items()]
