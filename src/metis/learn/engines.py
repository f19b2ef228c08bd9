"""Which way learners are computed: a fixed rule of the config and the model, never of a timing."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from metis.core.errors import ConfigError, unknown
from metis.core.local_run import Learners
from metis.learn import graphs, stack
from metis.learn.cohort import Cohort, Trainer
from metis.learn.graphs import Graphs
from metis.learn.loop import Loop
from metis.learn.processes import Processes, can_fork
from metis.learn.settings import ENGINES
from metis.learn.stack import Stack
from metis.learn.workbench import Workbench

#: A model with at most so many values is stacked on a CPU: calls cost more than arithmetic.
STACKED_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Choice:
    """How a federation is computed, and why not as it was asked for."""

    engine: str
    threads: int
    at_work: int
    memory_gib: float
    note: str | None = None


def choose(
    bench: Workbench, engine: str, threads: int | None, at_work: int, memory_gib: float
) -> Choice:
    """Settle what was left open. `at_work`: how many learners can be at work at once.

    What was asked for and cannot be had is replaced by the loop, and the choice says why.
    """
    # On a GPU the CPU only copies and averages models, for which many threads are a hindrance.
    cores = threads or (1 if bench.device.type == "cuda" else os.cpu_count() or 1)
    note = None
    if engine == "auto":
        engine = _rule(bench, cores, at_work)
    elif engine != "loop":
        note = _why_not(bench, engine)
        if note is not None:
            engine, note = "loop", f"engine = loop instead of {engine}: {note}"
    _check_memory(bench, at_work)
    if threads is None and engine == "stack":
        cores = 1  # its operations are too small to be shared out
    return Choice(engine, cores, at_work, memory_gib, note)


def _check_memory(bench: Workbench, at_work: int) -> None:
    """Raise ConfigError if the models of all learners at work cannot be in memory together."""
    training = bench.training
    copies = 1 + bool(training.momentum) + bool(training.proximal)
    needed = 4 * bench.layout.size * copies * at_work
    there = _memory(bench)
    if needed > there:
        raise ConfigError(
            f"{at_work:,} learners at work at once need {needed / 2**30:,.0f} GiB, but there are "
            f"{there / 2**30:,.0f} GiB: use fewer learners, or let fewer work at once "
            "(recipe.sample)"
        )


def _memory(bench: Workbench) -> int:
    if bench.device.type == "cuda":
        return torch.cuda.get_device_properties(bench.device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rule(bench: Workbench, cores: int, at_work: int) -> str:
    if bench.device.type == "cuda":
        return "loop" if graphs.why_not(bench) else "graphs"
    if at_work == 1:
        return "loop"
    if bench.layout.size <= STACKED_VALUES and stack.why_not(bench) is None:
        return "stack"
    # Where torch sees a GPU, one backward pass in this process keeps a forked one from its own.
    safe = can_fork() and not torch.cuda.is_available()
    return "processes" if cores > 1 and safe else "loop"


def _why_not(bench: Workbench, engine: str) -> str | None:
    match engine:
        case "stack":
            return stack.why_not(bench)
        case "graphs":
            return graphs.why_not(bench)
        case "processes":
            if bench.device.type == "cuda":
                return "several processes do not share a GPU well"
            return None if can_fork() else "processes need Linux"
    raise ConfigError(unknown("engine", engine, ENGINES))


class Shared:
    """The trainers of several runs: one for all whose learners can be trained together."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._known: list[tuple[Workbench, str, Trainer]] = []

    def trainers(self) -> list[Trainer]:
        return [trainer for _, _, trainer in self._known]

    def trainer(self, bench: Workbench, choice: Choice) -> Trainer:
        """Return the trainer for a run: that of an earlier one, where it fits."""
        for other, engine, trainer in self._known:
            if engine == choice.engine and bench.is_kin_of(other):
                return trainer
        trainer = _trainer(bench, replace(choice, at_work=choice.at_work * self._num_runs))
        self._known.append((bench, choice.engine, trainer))
        return trainer


def start(bench: Workbench, choice: Choice, shared: Shared | None = None) -> Learners:
    """Return the learners, ready to compute; close them afterwards."""
    if choice.engine == "processes":
        return Processes(bench, Loop(bench), choice.threads, choice.at_work)
    if shared is not None and choice.engine != "loop":
        return Cohort(bench, shared.trainer(bench, choice))
    return Cohort(bench, _trainer(bench, choice))


def _trainer(bench: Workbench, choice: Choice) -> Trainer:
    match choice.engine:
        case "stack":
            return Stack(bench, fitting(bench, choice))
        case "graphs":
            return Graphs(bench, min(graphs.MAX_SLOTS, fitting(bench, choice)))
    return Loop(bench)


def fitting(bench: Workbench, choice: Choice) -> int:
    """Return how many learners may be computed at once. Raises ConfigError if not even one fits."""
    # Weights, gradient, velocity and start; what the backward pass needs, and as much in transit.
    each = 4 * 4 * bench.layout.size + 2 * bench.step_bytes()
    if choice.engine == "graphs":
        each += graphs.PREPARED_BYTES
    budget = choice.memory_gib * 2**30
    if each > budget:
        raise ConfigError(
            f"memory_gib = {choice.memory_gib}: one learner alone needs {each / 2**30:.2g} GiB "
            f"with batches of {bench.training.batch_size}; allow for more, or use smaller batches"
        )
    return min(choice.at_work, int(budget // each))
