"""Where and with what a cell was made: its config in words, its precision, code and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from metis.config import Config
from metis.federation.build import recipe_of

PRECISIONS = ("float32", "tf32", "bf16")
_LAST_BATCH = {
    "fill": "last mini-batch filled up",
    "short": "last mini-batch short",
    "drop": "full mini-batches alone",
}


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
        _LAST_BATCH[train.last_batch],
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
    # A CPU has no tf32.
    on_cpu = config.precision == "tf32" and config.device == "cpu"
    return "float32" if on_cpu else config.precision


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
