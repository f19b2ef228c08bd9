"""Metrics are counted from records, and read over HTTP as Prometheus reads them."""

from __future__ import annotations

import re
import socket
import tracemalloc
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from metis.config import load
from metis.core.errors import ConfigError
from metis.journal.file import Record
from metis.service.metrics import STRANGER, Metrics, serve
from metis.simulation.run import run

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "examples" / "faults.toml"


def told(*records: Record, metrics: Metrics | None = None) -> Metrics:
    metrics = metrics or Metrics(clock=lambda: 1000.0)
    for record in records:
        metrics(record)
    return metrics


def join(learner: str, at: float = 0.0) -> Record:
    fields = {"num_examples": 10, "steps_per_epoch": 2, "group": "fast"}
    return {"kind": "join", "at": at, "learner": learner, **fields}


def task(number: int, learner: str, at: float = 0.0) -> Record:
    fields = {"task": number, "learner": learner, "version": 0, "committed_steps": 0}
    return {"kind": "task", "at": at, **fields, "max_steps": None, "bytes_down": 100}


def arrive(number: int, learner: str, at: float = 0.0) -> Record:
    fields = {"task": number, "learner": learner, "num_steps": 4}
    return {"kind": "arrive", "at": at, **fields, "bytes_up": 70}


def evaluate(number: int, judge: str, of: int, learner: str) -> Record:
    fields = {"evaluation": number, "judge": judge, "task": of, "learner": learner}
    return {"kind": "evaluate", "at": 0.0, **fields, "bytes_down": 30}


def score(number: int, **fields: Any) -> Record:
    return {"kind": "score", "at": 0.0, "evaluation": number, "counts": None, **fields}


def fail(number: int, learner: str) -> Record:
    return {"kind": "fail", "at": 0.0, "learner": learner, "task": number, "reason": "disk full"}


def refuse(number: int, learner: str) -> Record:
    return {"kind": "refuse", "at": 0.0, "learner": learner, "task": number, "reason": "late"}


def version(number: int, *folds: tuple[str, float, int, int]) -> Record:
    names = ("learner", "weight", "versions_behind", "steps_behind")
    told = [dict(zip(names, fold, strict=True)) for fold in folds]
    return {"kind": "version", "at": 0.0, "version": number, "folds": told}


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return parsed(generate_latest(metrics.registry).decode())


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Return samples by name and label values; when a series began is left out."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def scrape(port: int, accept: str = "*/*") -> tuple[str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """A run in which a learner crashes, comes back, and another withdraws."""
    return run(load(FAULTS, horizon={"seconds": 270})).records


# ---- a whole run --------------------------------------------------------------------------------


def test_a_run_is_counted_as_its_journal_tells_it(records: list[Record]) -> None:
    metrics = told(*records)

    shown = values(metrics)
    versions = [record for record in records if record["kind"] == "version"]
    folds = Counter(fold["learner"] for record in versions for fold in record["folds"])
    judges = Counter(record["judge"] for record in records if record["kind"] == "evaluate")
    assert shown["metis_version",] == len(versions) > 10
    assert shown["metis_members",] == 5  # of six, one withdrew
    assert shown["metis_ended",] == 1
    assert shown["metis_commit_versions_behind_count",] == folds.total()
    for learner in folds:
        assert shown["metis_updates_folded_total", learner] == folds[learner]
        assert shown["metis_evaluations_asked_total", learner] == judges[learner]
        assert shown["metis_upload_bytes_total", learner] == sum(
            record["bytes_up"]
            for record in records
            if record["kind"] == "arrive" and record["learner"] == learner
        )
        assert shown["metis_download_bytes_total", learner] == sum(
            record["bytes_down"]
            for record in records
            if "bytes_down" in record and record.get("judge", record["learner"]) == learner
        )


def test_the_crash_in_a_run_is_seen(records: list[Record]) -> None:
    shown = values(told(*records))

    assert shown["metis_leases_expired_total", "learner-02"] == 1
    assert shown["metis_leases_expired_total", "learner-03"] == 0
    assert shown["metis_evaluations_expired_total", "learner-02"] == 6


def test_prometheus_reads_the_same_numbers_over_http(records: list[Record]) -> None:
    metrics = told(*records)
    stop, port = serve(metrics, "127.0.0.1:0")

    try:
        text, kind = scrape(port)
        strict, strict_kind = scrape(port, "application/openmetrics-text; version=1.0.0")
    finally:
        stop()

    ours = {key: value for key, value in parsed(text).items() if key[0].startswith("metis_")}
    assert kind.startswith("text/plain")
    assert strict_kind.startswith("application/openmetrics-text")
    assert ours == {k: v for k, v in values(metrics).items() if k[0].startswith("metis_")}
    names = {family.name for family in open_metrics(strict)}  # type: ignore[no-untyped-call]
    assert names >= {"metis_version", "metis_members"}


def test_names_and_help_follow_the_conventions(records: list[Record]) -> None:
    families = list(told(*records).registry.collect())

    ours = [family for family in families if family.name.startswith("metis_")]
    assert len(ours) > 20
    for family in ours:
        assert family.documentation[0].isupper() or family.documentation[0].isdigit(), family
        assert family.documentation.endswith("."), family
        labels = {name for sample in family.samples for name in sample.labels}
        assert labels <= {"learner", "what", "le"}, family
        for unit in ("seconds", "bytes"):
            if unit in family.name:
                assert family.name.endswith(unit), family
        if family.type == "counter":
            assert {s.name for s in family.samples} <= {
                f"{family.name}_total",
                f"{family.name}_created",
            }


def test_the_document_lists_every_metric_and_no_other() -> None:
    ours = {family.name: family.type for family in Metrics().registry.collect()}
    text = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")

    table = dict(re.findall(r"^\| `(metis_\w+)` \| (\w+) \|", text, re.MULTILINE))
    rules = text[text.index("groups:") : text.index("## Logs")]

    assert table == {
        name + ("_total" if kind == "counter" else ""): kind
        for name, kind in ours.items()
        if name.startswith("metis_")
    }
    used = {name.removesuffix("_bucket") for name in re.findall(r"metis_[a-z_]+", rules)}
    assert len(used) > 3
    assert used <= set(table)


def test_the_global_registry_is_left_alone() -> None:
    before = {family.name for family in REGISTRY.collect()}

    first, second = Metrics(), Metrics()
    told(join("a"), metrics=first)

    assert {family.name for family in REGISTRY.collect()} == before
    assert values(second)["metis_members",] == 0


# ---- single things ------------------------------------------------------------------------------


def test_a_learner_shows_zeros_as_soon_as_it_joins() -> None:
    shown = values(told(join("a")))

    assert shown["metis_leases_expired_total", "a"] == 0
    assert shown["metis_updates_failed_total", "a"] == 0
    assert shown["metis_evaluations_expired_total", "a"] == 0


def test_turnaround_runs_from_handing_out_to_arrival_through_a_reconnection() -> None:
    shown = values(
        told(join("a"), task(1, "a", at=10.0), task(1, "a", at=14.0), arrive(1, "a", at=17.5))
    )

    assert shown["metis_update_turnaround_seconds_count", "a"] == 1
    assert shown["metis_update_turnaround_seconds_sum", "a"] == 7.5
    assert shown["metis_tasks_handed_out_total", "a"] == 2
    assert shown["metis_download_bytes_total", "a"] == 200


def test_a_failure_is_not_a_refusal_too() -> None:
    metrics = told(join("a"), task(1, "a"), fail(1, "a"), refuse(1, "a"))

    told(refuse(1, "a"), metrics=metrics)  # the site tells it once more

    shown = values(metrics)
    assert shown["metis_updates_failed_total", "a"] == 1
    assert shown["metis_updates_refused_total", "a"] == 1


def test_an_answer_too_late_is_a_refusal_and_brings_the_learner_back() -> None:
    expired: Record = {"kind": "task-expired", "at": 9.0, "task": 1}
    metrics = told(join("a"), join("b"), task(1, "a"), expired)
    before = values(metrics)["metis_members",]

    told(fail(1, "a"), refuse(1, "a"), metrics=metrics)

    shown = values(metrics)
    assert (before, shown["metis_members",]) == (1, 2)
    assert shown["metis_leases_expired_total", "a"] == 1
    assert shown["metis_updates_failed_total", "a"] == 0
    assert shown["metis_updates_refused_total", "a"] == 1


def test_a_lease_of_an_answered_task_does_not_expire() -> None:
    expired: Record = {"kind": "task-expired", "at": 9.0, "task": 1}

    shown = values(told(join("a"), task(1, "a"), arrive(1, "a"), expired))

    assert shown["metis_leases_expired_total", "a"] == 0
    assert shown["metis_members",] == 1


def test_scores_are_counted_and_timed_by_judge() -> None:
    asked = [join("a"), join("b"), evaluate(1, "b", 1, "a"), evaluate(2, "b", 2, "a")]
    overdue: Record = {"kind": "evaluation-expired", "at": 0.0, "evaluation": 2}

    shown = values(told(*asked, score(1, wall_waited=0.7), overdue, score(2)))

    assert shown["metis_evaluations_asked_total", "b"] == 2
    assert shown["metis_evaluations_answered_total", "b"] == 1
    assert shown["metis_evaluations_expired_total", "b"] == 1
    assert shown["metis_evaluation_latency_seconds_sum", "b"] == 0.7
    assert shown["metis_evaluation_latency_seconds_bucket", "0.5", "b"] == 0
    assert shown["metis_evaluation_latency_seconds_bucket", "1.0", "b"] == 1
    assert shown["metis_download_bytes_total", "b"] == 60


def test_a_version_shows_weights_and_staleness() -> None:
    folds = [("a", 0.25, 0, 40), ("b", 0.75, 3, 400)]

    shown = values(told(join("a"), join("b"), version(7, *folds)))

    assert shown["metis_version",] == 7
    assert shown["metis_last_version_timestamp_seconds",] == 1000.0
    assert shown["metis_commit_weight", "b"] == 0.75
    assert shown["metis_commit_versions_behind_bucket", "0.0"] == 1
    assert shown["metis_commit_versions_behind_sum",] == 3
    assert shown["metis_commit_steps_behind_sum",] == 440


def test_starts_syncs_and_audits_are_shown() -> None:
    start: Record = {"kind": "start", "at": 0.0, "recovered_events": 12}
    audit: Record = {"kind": "audit", "at": 0.0, "what": "revoked", "who": "x", "reason": "old"}
    metrics = told({**start, "wall_recovery_seconds": 0.5}, audit, audit)

    metrics.observe_sync(0.004)

    shown = values(metrics)
    assert shown["metis_starts_total",] == 1
    assert shown["metis_recovered_events",] == 12
    assert shown["metis_recovery_seconds",] == 0.5
    assert shown["metis_audit_events_total", "revoked"] == 2
    assert shown["metis_journal_sync_seconds_bucket", "0.0025"] == 0
    assert shown["metis_journal_sync_seconds_bucket", "0.005"] == 1


def test_a_new_process_takes_up_how_things_stand_and_counts_from_zero() -> None:
    start: Record = {"kind": "start", "at": 0.0, "recovered_events": 0}
    stand = {"version": 3, "members": ["a", "b"], "tasks": [[9, "a"]], "evaluations": []}
    metrics = Metrics()

    told({**start, **stand}, {"kind": "task-expired", "at": 2.0, "task": 9}, metrics=metrics)

    shown = values(metrics)
    assert shown["metis_version",] == 3
    assert shown["metis_members",] == 1
    assert shown["metis_starts_total",] == 1
    assert shown["metis_leases_expired_total", "a"] == 1
    assert shown["metis_updates_folded_total", "a"] == 0


def test_the_time_the_controller_was_away_is_no_turnaround() -> None:
    metrics = Metrics()
    stand: Record = {"members": ["a"], "tasks": [[9, "a"]]}
    told({"kind": "start", "at": 50.0, **stand}, metrics=metrics)

    told(join("a", at=90.0), task(9, "a", at=91.0), arrive(9, "a", at=95.0), metrics=metrics)

    assert values(metrics)["metis_update_turnaround_seconds_sum", "a"] == 4.0


# ---- bounds -------------------------------------------------------------------------------------


def test_strangers_share_one_label_and_cannot_make_series() -> None:
    names = [f"nobody-{number}" for number in range(100)]
    metrics = told(join("a"), *(refuse(number, name) for number, name in enumerate(names)))
    audit: Record = {"kind": "audit", "at": 0.0, "what": "refused", "reason": "wrong CA"}

    told(*({**audit, "who": name} for name in names), metrics=metrics)

    shown = values(metrics)
    assert shown["metis_updates_refused_total", STRANGER] == 100
    assert shown["metis_audit_events_total", "refused"] == 100
    assert not any("nobody" in part for key in shown for part in key)


def rounds(first: int, last: int) -> Iterable[Record]:
    """A federation in which somebody leaves in the middle of being asked, every round."""
    for number in range(first, last):
        yield join("b")
        yield task(2 * number, "a", at=float(number))
        yield task(2 * number + 1, "b", at=float(number))
        yield arrive(2 * number, "a", at=number + 0.5)
        yield evaluate(2 * number, "b", 2 * number, "a")
        yield {"kind": "leave", "at": 0.0, "learner": "b", "withdraw": False}
        yield evaluate(2 * number + 1, "a", 2 * number + 1, "b")
        yield refuse(2 * number + 1, "b")
        yield version(number, ("a", 0.5, 0, 4))


def test_memory_does_not_grow_with_the_number_of_records() -> None:
    metrics = told(join("a"), *rounds(0, 300))
    before = len(values(metrics))
    tracemalloc.start()

    try:
        for record in rounds(300, 2300):
            metrics(record)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(values(metrics)) == before
    assert grown < 30_000  # bytes, after 18,000 records


# ---- the endpoint -------------------------------------------------------------------------------


def test_a_stopped_endpoint_answers_no_more_and_frees_its_port() -> None:
    stop, port = serve(Metrics(), "127.0.0.1:0")
    stop()

    again, same = serve(Metrics(), f"127.0.0.1:{port}")

    again()
    assert same == port
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_a_taken_address_is_said_to_be_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(ConfigError, match=f"'127.0.0.1:{port}' is taken: .* another port"):
            serve(Metrics(), f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address",
    ["", "9100", ":9100", "host:", "host:http", "host:-1", "host:65536", "::1:9100", "host:²"],
)
def test_a_malformed_address_is_told_what_one_looks_like(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT, such as "):
        serve(Metrics(), address)


@pytest.mark.parametrize("host", ["203.0.113.7", "a..b", "x" * 70 + ".org"])
def test_an_address_that_is_not_of_this_machine_is_refused_in_words(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot serve metrics at "):
        serve(Metrics(), f"{host}:0")
