"""The names of what a run's directory holds."""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.toml"  # resolved: every default filled in
JOURNAL = "journal.jsonl"
SUMMARY = "summary.json"  # there when the run is finished
CHECKPOINT = "checkpoint.safetensors"  # there while it is not
FINAL = "model.safetensors"
BEST = "best.safetensors"
INITIAL = "initial.safetensors"  # kept with the updates, for a replay
UPDATES = "updates"
LATEST = "latest"  # each learner's latest model, while the run is not finished


def update_path(directory: Path, task: int) -> Path:
    """Return where the update that answered a task is kept."""
    return directory / UPDATES / f"task-{task}.packet"
