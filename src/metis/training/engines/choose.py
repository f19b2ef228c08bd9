"""Which engine computes the learners: a fixed rule of the config and the model, never a timing."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from metis.core.errors import ConfigError, unknown
from metis.training.cohort import Cohort
from metis.training.engines import graphs, stack
from metis.training.engines.graphs import Graphs
from metis.training.engines.loop import Loop
from metis.training.engines.pool import can_fork
from metis.training.engines.processes import Processes
from metis.training.engines.stack import Stack
from metis.training.jobs import Engine
from metis.training.learner_data import LearnerData
from metis.training.module import ModuleOnDevice
from metis.training.settings import ENGINES

#: The largest model that is stacked on a CPU: below it calls cost more than arithmetic.
STACKED_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """How a federation is computed; `note` says why not by the engine of the config."""

    engine: str
    threads: int
    at_work: int
    memory_gib: float
    note: str | None = None


def choose(
    module: ModuleOnDevice,
    data: LearnerData,
    engine: str,
    threads: int | None,
    at_work: int,
    memory_gib: float,
) -> EngineChoice:
    """Choose an engine and its threads. `at_work`: how many learners can be at work at once.

    An engine that cannot compute these learners is replaced by the loop; `note` says why.
    """
    # On a GPU the CPU only copies and averages models, for which many threads are a hindrance.
    cores = threads or (1 if module.device.type == "cuda" else os.cpu_count() or 1)
    note = None
    if engine == "auto":
        engine = _rule(module, data, cores, at_work)
    elif engine != "loop":
        note = _why_not(module, data, engine)
        if note is not None:
            engine, note = "loop", f"engine = loop instead of {engine}: {note}"
    _check_memory(module, at_work)
    if threads is None and engine == "stack":
        cores = 1  # its operations are too small to be shared out
    return EngineChoice(engine, cores, at_work, memory_gib, note)


def _check_memory(module: ModuleOnDevice, at_work: int) -> None:
    """Raise ConfigError if the models of all learners at work cannot be in memory together."""
    training = module.training
    copies = 1 + bool(training.momentum) + bool(training.proximal)
    needed = 4 * module.layout.size * copies * at_work
    there = _memory(module)
    if needed > there:
        raise ConfigError(
            f"{at_work:,} learners at work at once need {needed / 2**30:,.0f} GiB, but there are "
            f"{there / 2**30:,.0f} GiB: use fewer learners, or let fewer work at once "
            "(recipe.sample)"
        )


def _memory(module: ModuleOnDevice) -> int:
    if module.device.type == "cuda":
        return torch.cuda.get_device_properties(module.device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rule(module: ModuleOnDevice, data: LearnerData, cores: int, at_work: int) -> str:
    if module.device.type == "cuda":
        return "loop" if graphs.why_not(module) else "graphs"
    if at_work == 1:
        return "loop"
    if module.layout.size <= STACKED_VALUES and stack.why_not(module, data) is None:
        return "stack"
    # Where torch sees a GPU, one backward pass in this process keeps a forked one from its own.
    safe = can_fork() and not torch.cuda.is_available()
    return "processes" if cores > 1 and safe else "loop"


def _why_not(module: ModuleOnDevice, data: LearnerData, engine: str) -> str | None:
    match engine:
        case "stack":
            return stack.why_not(module, data)
        case "graphs":
            return graphs.why_not(module)
        case "processes":
            if module.device.type == "cuda":
                return "several processes do not share a GPU well"
            return None if can_fork() else "processes need Linux"
    raise ConfigError(unknown("engine", engine, ENGINES))


#: All learners of a simulation: each is a `Trainer`, a `Judge` and `Durable` (core.learners).
Learners: TypeAlias = Cohort | Processes


class SharedEngines:
    """The engines of several runs: one for all whose learners can be trained together."""

    def __init__(self, num_runs: int) -> None:
        self._num_runs = num_runs
        self._known: list[tuple[LearnerData, str, Engine]] = []

    def all(self) -> list[Engine]:
        return [engine for _, _, engine in self._known]

    def engine_for(self, module: ModuleOnDevice, data: LearnerData, choice: EngineChoice) -> Engine:
        """Return the engine for a run: that of an earlier run, if it fits."""
        for other, name, engine in self._known:
            if name == choice.engine and data.is_kin_of(other):
                return engine
        engine = _engine(module, data, replace(choice, at_work=choice.at_work * self._num_runs))
        self._known.append((data, choice.engine, engine))
        return engine


def start(
    module: ModuleOnDevice,
    data: LearnerData,
    choice: EngineChoice,
    shared: SharedEngines | None = None,
) -> Learners:
    """Return the learners, ready to compute; close them afterwards."""
    if choice.engine == "processes":
        return Processes(module, data, Loop(module), choice.threads, choice.at_work)
    if shared is not None and choice.engine != "loop":
        return Cohort(module, data, shared.engine_for(module, data, choice))
    return Cohort(module, data, _engine(module, data, choice))


def _engine(module: ModuleOnDevice, data: LearnerData, choice: EngineChoice) -> Engine:
    match choice.engine:
        case "stack":
            return Stack(module, data, fitting(module, choice))
        case "graphs":
            return Graphs(module, data, min(graphs.MAX_SLOTS, fitting(module, choice)))
    return Loop(module)


def fitting(module: ModuleOnDevice, choice: EngineChoice) -> int:
    """Return how many learners may be computed at once. Raises ConfigError if not even one fits."""
    # Weights, gradient, velocity and start; what the backward pass needs, and as much in transit.
    each = 4 * 4 * module.layout.size + 2 * module.step_bytes()
    if choice.engine == "graphs":
        each += graphs.PREPARED_BYTES
    budget = choice.memory_gib * 2**30
    if each > budget:
        raise ConfigError(
            f"memory_gib = {choice.memory_gib}: one learner alone needs {each / 2**30:.2g} GiB "
            f"with batches of {module.training.batch_size}; allow for more, or use smaller batches"
        )
    return min(choice.at_work, int(budget // each))
