"""A controller's numbers for Prometheus, counted from the journal's records alone.

Labels are names of learners that have joined, so there are never more series than the federation
has learners. docs/observe.md lists them, with alerts worth having.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    start_http_server,
)

from metis.core.errors import ConfigError
from metis.journal.file import Record
from metis.journal.membership import Attendance

#: The label of whoever never joined: a stranger's name must not make a new series.
STRANGER = "(never joined)"

_WAITS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_SYNCS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_VERSIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_STEPS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000)


class Metrics:
    """Listens to a journal and keeps counts in a registry of its own.

    A record costs microseconds, a version as many as it has folds. What is kept does not grow with
    the number of records. Records come from one thread at a time; scrapes from any.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._attendance = Attendance()
        self._counters: list[Counter] = []  # those that every learner has
        self._make_progress()
        self._make_updates()
        self._make_evaluations()
        self._make_operation()
        ProcessCollector(registry=self.registry)
        self._version_time.set(clock())  # else a new controller looks as if it were stuck

    # ---- what there is ------------------------------------------------------------------------

    def _make_progress(self) -> None:
        self._version = self._gauge("version", "The current version of the community model.")
        self._version_time = self._gauge(
            "last_version_timestamp_seconds",
            "When this controller last made a version, or when it started if it made none yet.",
        )
        self._ended = self._gauge("ended", "1 when the federation has come to its end, else 0.")
        self._members = self._gauge("members", "Learners that take part at present.")
        self._weight = Gauge(
            "metis_commit_weight",
            "The weight of a learner's last folded update.",
            ["learner"],
            registry=self.registry,
        )
        self._versions_behind = Histogram(
            "metis_commit_versions_behind",
            "How many versions old the model was that a folded update had started from.",
            buckets=_VERSIONS,
            registry=self.registry,
        )
        self._steps_behind = Histogram(
            "metis_commit_steps_behind",
            "The effective staleness of a folded update, in mini-batches.",
            buckets=_STEPS,
            registry=self.registry,
        )

    def _make_updates(self) -> None:
        self._tasks = self._counter(
            "tasks_handed_out", "Tasks handed out, again after a reconnection included."
        )
        self._folded = self._counter("updates_folded", "Updates folded into a version.")
        self._refused = self._counter("updates_refused", "Updates that the controller refused.")
        self._failed = self._counter(
            "updates_failed", "Tasks that a learner could not do, or answered unreadably."
        )
        self._leases = self._counter("leases_expired", "Tasks given up since nothing was heard.")
        self._turnaround = Summary(
            "metis_update_turnaround_seconds",
            "Time from handing out a task to the arrival of its update.",
            ["learner"],
            registry=self.registry,
        )
        self._up = self._counter("upload_bytes", "Bytes of the updates that a learner sent.")
        self._down = self._counter(
            "download_bytes", "Bytes of the models meant for a learner, to train or to score."
        )

    def _make_evaluations(self) -> None:
        self._asked = self._counter(
            "evaluations_asked", "Scores asked of a learner, again after a reconnection included."
        )
        self._answered = self._counter("evaluations_answered", "Scores that a learner gave.")
        self._overdue = self._counter(
            "evaluations_expired", "Scores given up since the learner's answer did not come."
        )
        self._latency = Histogram(
            "metis_evaluation_latency_seconds",
            "Real time from asking a learner for a score to its answer.",
            ["learner"],
            buckets=_WAITS,
            registry=self.registry,
        )

    def _make_operation(self) -> None:
        self._starts = Counter(
            "metis_starts",
            "Starts of this federation's controller, after crashes included.",
            registry=self.registry,
        )
        self._recovery = self._gauge(
            "recovery_seconds", "How long the last start took to read the journal again."
        )
        self._recovered = self._gauge(
            "recovered_events", "Events that the last start took up from the journal."
        )
        self._sync = Histogram(
            "metis_journal_sync_seconds",
            "How long the journal took to be on disk, each time.",
            buckets=_SYNCS,
            registry=self.registry,
        )
        self._audits = Counter(
            "metis_audit_events",
            "Audit lines of the journal, by what they tell of.",
            ["what"],
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"metis_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"metis_{name}", text, ["learner"], registry=self.registry)
        self._counters.append(counter)
        return counter

    # ---- what is told -------------------------------------------------------------------------

    def observe_sync(self, seconds: float) -> None:
        """Hear how long the journal took to be on disk."""
        self._sync.observe(seconds)

    def __call__(self, record: Record) -> None:
        since = self._since(record)
        whom = self._attendance.note(record)
        self._members.set(len(self._attendance.members))
        if whom is None:
            return  # it was settled before: nothing happened
        name = self._label(whom)
        for field, counter in (("bytes_up", self._up), ("bytes_down", self._down)):
            if record.get(field):
                counter.labels(name).inc(record[field])
        match record["kind"]:
            case "join":
                self._begin(name)
            case "task":
                self._tasks.labels(name).inc()
            case "arrive":
                if since is not None and record["at"] >= since:
                    self._turnaround.labels(name).observe(record["at"] - since)
            case "refuse":
                self._refused.labels(name).inc()
            case "fail":
                self._failed.labels(name).inc()
            case "task-expired":
                self._leases.labels(name).inc()
            case "evaluate":
                self._asked.labels(name).inc()
            case "score":
                self._answered.labels(name).inc()
                if record.get("wall_waited") is not None:
                    self._latency.labels(name).observe(record["wall_waited"])
            case "evaluation-expired":
                self._overdue.labels(name).inc()
            case "version":
                self._publish(record)
                self._commit(record)
            case "start":
                self._version.set(record.get("version", 0))
                for learner in self._attendance.known:
                    self._begin(learner)
                self._starts.inc()
                self._recovered.set(record.get("recovered_events") or 0)
                self._recovery.set(record.get("wall_recovery_seconds") or 0.0)
            case "audit":
                self._audits.labels(record["what"]).inc()
            case "end":
                self._ended.set(1)

    def _begin(self, learner: str) -> None:
        """Show zeros from the start: Prometheus sees no increase in a series that begins at 1."""
        for counter in self._counters:
            counter.labels(learner)

    def _since(self, record: Record) -> float | None:
        """Return when the task that an update answers was handed out, if it is still open."""
        if record["kind"] != "arrive":
            return None
        learner, since = self._attendance.tasks.get(record["task"], ("", None))
        return since if learner == record["learner"] else None

    def _publish(self, record: Record) -> None:
        self._version.set(record["version"])
        for fold in record["folds"]:
            self._weight.labels(self._label(fold["learner"])).set(fold["weight"])

    def _commit(self, record: Record) -> None:
        self._version_time.set(self._clock())
        for fold in record["folds"]:
            self._folded.labels(self._label(fold["learner"])).inc()
            self._versions_behind.observe(fold["versions_behind"])
            self._steps_behind.observe(fold["steps_behind"])

    def _label(self, learner: str) -> str:
        return learner if learner in self._attendance.known else STRANGER


def serve(metrics: Metrics, address: str) -> tuple[Callable[[], None], int]:
    """Answer scrapes at HOST:PORT from a thread of its own; return how to stop it, and the port.

    Port 0 takes any that is free. Plain HTTP for whoever can reach the address: it shows names and
    numbers, no models; bind it to loopback or to the network of your Prometheus.
    """
    host, port = _host_and_port(address)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except (OSError, ValueError) as error:  # a name that cannot be one is a ValueError
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"metrics address {address!r} is taken: another process listens there; "
                "choose another port, or 0 for any that is free"
            ) from None
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot serve metrics at {address!r}: {why}") from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop, server.server_port


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # an address of IP version 6 needs its brackets, else its end looks like a port
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(
            f"metrics address {address!r} is not HOST:PORT, such as 127.0.0.1:9100 or [::1]:9100"
        )
    return host, int(port)
