"""What a run came to, in numbers. Reads the journal's records and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from metis.journal.file import Record


class Tally:
    """Adds up records one by one, so that a live view and a finished run count the same way."""

    def __init__(self) -> None:
        self.run: Record = {}
        self.learners: dict[str, Record] = {}
        self.virtual_seconds = 0.0
        self.wall_seconds = 0.0
        self.versions = 0
        self.curve: list[tuple[float, int, float]] = []
        self.ended: str | None = None
        self.samples_trained = 0
        self.bytes_up = 0
        self.num_arrived = 0
        self.bytes_down = 0
        self.tasks: set[int] = set()  # handed out and not answered
        self.num_tasks = 0
        self.failed_tasks = 0
        self.expired_tasks = 0
        self.arrived: set[int] = set()  # arrived, neither folded nor refused
        self.judges_asked: Counter[int] = Counter()  # by task, while it waits
        self.update_requests = 0
        self.evaluation_models = 0
        self.folds: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.weights: defaultdict[str, list[float]] = defaultdict(list)
        self.first_tasks: set[str] = set()  # learners that were given a first model

    def add(self, record: Record) -> None:
        self.virtual_seconds = record["at"]
        self.wall_seconds = record["wall_seconds"]
        match record["kind"]:
            case "run":
                self.run = record
                self.learners = {one["learner"]: one for one in record.get("learners", [])}
            case "join":
                self.learners.setdefault(record["learner"], joined_learner(record))
            case "task":
                self.bytes_down += record["bytes_down"]
                self.num_tasks += record["task"] not in self.tasks
                self.tasks.add(record["task"])
                self.first_tasks.add(record["learner"])
            case "steps":
                self.samples_trained += record["samples"]
            case "arrive":
                self.bytes_up += record["bytes_up"]
                self.num_arrived += 1
                self.tasks.discard(record["task"])
                self.arrived.add(record["task"])
            case "fail":
                self.failed_tasks += record["task"] in self.tasks
                self.tasks.discard(record["task"])
            case "task-expired":
                self.expired_tasks += record["task"] in self.tasks
                self.tasks.discard(record["task"])
            case "evaluate":
                self.bytes_down += record["bytes_down"]
                self.judges_asked[record["task"]] += 1
            case "version":
                self.versions = record["version"]
                for fold in record["folds"]:
                    self._answered(fold["task"])
                    self.folds[fold["learner"]] += 1
                    self.weights[fold["learner"]].append(fold["weight"])
            case "refuse":
                self._answered(record["task"])
                self.refusals[record["learner"]] += 1
            case "test":
                if record["score"] is not None:
                    self.curve.append((record["at"], record["version"], record["score"]))
            case "end":
                self.ended = record["reason"]

    def _answered(self, task: int) -> None:
        """Count a request once, when its model was taken or turned down."""
        if task in self.arrived:
            self.arrived.remove(task)
            self.update_requests += 1
            self.evaluation_models += self.judges_asked.pop(task, 0)

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        scores = [score for _, _, score in self.curve]
        final, best = (scores[-1], max(scores)) if scores else (None, None)
        classifies = self.run.get("test_metric") == "accuracy"
        return {
            "policy": self.run.get("policy"),
            "dataset": self.run.get("dataset"),
            "partition": self.run.get("partition"),
            "upload": self.run.get("upload"),
            "download": self.run.get("download"),
            "seed": self.run.get("seed"),
            "ended": self.ended,
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "versions": self.versions,
            "update_requests": self.update_requests,
            "models_exchanged": 2 * self.update_requests + self.evaluation_models,
            "evaluation_models": self.evaluation_models,
            "initial_broadcasts": len(self.first_tasks),
            "tasks": self.num_tasks,
            "unanswered_tasks": len(self.tasks),
            "failed_tasks": self.failed_tasks,
            "expired_tasks": self.expired_tasks,
            "unanswered_updates": len(self.arrived),
            "unanswered_evaluations": sum(self.judges_asked.values()),
            "refused_updates": sum(self.refusals.values()),
            "samples_trained": self.samples_trained,
            "wall_samples_per_second": self.samples_trained / max(self.wall_seconds, 1e-9),
            "bytes_up": self.bytes_up,
            "mean_update_bytes": self.bytes_up / self.num_arrived if self.num_arrived else None,
            "bytes_down": self.bytes_down,
            "parameters": self.run.get("parameters"),
            "test_metric": self.run.get("test_metric"),
            "final_accuracy": final if classifies else None,
            "best_accuracy": best if classifies else None,
            "final_score": final,
            "best_score": best,
            "curve": [list(point) for point in self.curve],
            "learners": {
                one["learner"]: {
                    "examples": one["examples"],
                    "validation_examples": one["validation_examples"],
                    "classes": sum(n > 0 for n in one["holdings"]),
                    "group": one["group"],
                    "updates": self.folds[one["learner"]],
                    "refused": self.refusals[one["learner"]],
                    "mean_weight": _mean(self.weights[one["learner"]]),
                }
                for one in self.learners.values()
            },
        }


def joined_learner(record: Record) -> Record:
    """Return what is known of a learner that the first record does not list: in real time nobody
    knows beforehand who will come, and what they hold is not told."""
    return {
        "learner": record["learner"],
        "group": record["group"],
        "examples": record["num_examples"],
        "validation_examples": 0,
        "holdings": [],
    }


def summarise(records: Iterable[Record]) -> dict[str, Any]:
    """Return what a whole journal came to."""
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally.summary()


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
