"""Learners side by side on a GPU: each in its own stream, its mini-batch one CUDA graph.

A mini-batch of a small network leaves most of a GPU idle and costs more to launch than to compute.
So a few slots hold a copy of the module each; a slot's whole step (batch, forward, backward,
optimizer) is captured once and then replayed with one call, and the steps of different slots
overlap. A learner is always computed alone, so its result does not depend on its company.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from metis.training.epochs import Stretch
from metis.training.flat import flatten
from metis.training.jobs import Job, TrainingRun, settle, settle_validation
from metis.training.learner_data import LearnerData
from metis.training.module import ModuleOnDevice
from metis.training.step import new_optimizer, not_plain_sgd, train_step

#: More streams than this do not make an H200 any busier.
MAX_SLOTS = 16
#: Mini-batches are prepared together, as many as fit in here.
PREPARED_BYTES = 64 * 2**20


@dataclass(slots=True)
class JobLosses:
    """The losses of a job, on the device until all jobs are done."""

    job: Job
    before: Tensor | None  # validation loss
    losses: list[Tensor]
    after: Tensor | None


class Slot:
    """A copy of the network with everything a step touches, at addresses that never change."""

    def __init__(self, module: ModuleOnDevice, data: LearnerData, max_steps: int) -> None:
        self._module = module
        self._data = data
        device = module.device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.network: nn.Module = copy.deepcopy(module.network)
        self._flat = flatten(self.network, channels_last=bool(module.flat.channels_last))
        self._counters = [b for b in self.network.buffers() if not b.is_floating_point()]
        training = module.training
        self._momentum = torch.zeros_like(self._flat.values) if training.momentum else None
        self._start = torch.zeros_like(self._flat.values) if training.proximal else None
        self._anchors = module.anchors(self._start, self.network)
        self._rate = torch.zeros((), device=device)
        self._optimizer = new_optimizer(training, self.network)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
        if self._momentum is not None:
            # u = 0 at first, in memory that can be written to from outside.
            velocities = self._flat.parts(self._momentum)
            for name, parameter in self.network.named_parameters():
                if parameter.requires_grad:
                    self._optimizer.state[parameter]["momentum_buffer"] = velocities[name]
        self._x: Tensor | None = None  # prepared inputs; made when their shape is known
        self._y: Tensor | None = None
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._losses = torch.zeros(max_steps, device=device)
        self._max_steps = max_steps
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._offsets: dict[int, Tensor] = {}  # kept, since graphs read them
        self._pool = torch.cuda.graph_pool_handle()

    def load(self, run: TrainingRun) -> None:
        """Copy a run's state into this slot."""
        self._flat.values.copy_(run.weights)
        for counter, value in zip(self._counters, run.counters, strict=True):
            counter.copy_(value)
        if self._momentum is not None:
            self._momentum.copy_(run.optimizer["momentum"])
        if self._start is not None and run.start is not None:
            self._start.copy_(run.start)
        self._rate.fill_(self._module.training.learning_rate * run.rate_factor)

    def store(self, run: TrainingRun) -> None:
        """Copy the state of this slot back into a run."""
        run.weights.copy_(self._flat.values)
        for counter, value in zip(self._counters, run.counters, strict=True):
            value.copy_(counter)
        if self._momentum is not None:
            run.optimizer["momentum"].copy_(self._momentum)

    def prepare(self, stretch: Stretch, first: int, last: int) -> None:
        """Make the inputs of some mini-batches of a stretch ready, to be stepped through."""
        rows = slice(first * stretch.batch_size, last * stretch.batch_size)
        device = self._module.device
        # From pinned memory, so that this does not wait for what the stream has yet to do.
        examples = stretch.epoch.examples[rows].pin_memory().to(device, non_blocking=True)
        draws = stretch.epoch.draws[rows].pin_memory().to(device, non_blocking=True)
        x, y = self._data.feed_training(examples, draws)
        if self._module.flat.channels_last and x.ndim == 4:
            x = x.permute(0, 2, 3, 1)
        if self._x is None or self._y is None:
            num_rows = self._max_steps * stretch.batch_size
            self._x, self._y = x.new_zeros(num_rows, *x.shape[1:]), y.new_zeros(num_rows)
        self._x[: len(x)].copy_(x)
        self._y[: len(y)].copy_(y)
        self._row.zero_()
        self._step.zero_()

    def step(self, size: int) -> None:
        """Train on the next `size` prepared examples."""
        if size not in self._graphs:
            self._graphs[size] = self._captured(size)
        self._graphs[size].replay()

    def losses(self, count: int) -> Tensor:
        """Return the losses of the steps since `prepare`, still on the device."""
        return self._losses[:count].clone()

    def _captured(self, size: int) -> torch.cuda.CUDAGraph:
        state = [self._flat.values, self._row, self._step, self._losses, *self._counters]
        state += [] if self._momentum is None else [self._momentum]
        before = [tensor.clone() for tensor in state]
        self._offsets[size] = offsets = torch.arange(size, device=self._module.device)
        self.network.train()
        with self._module.arithmetic():
            for _ in range(2):  # libraries set themselves up on first use, which is not captured
                self._compute(offsets)
            torch.cuda.synchronize(self._module.device)
            graph = torch.cuda.CUDAGraph()
            with _no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
                self._compute(offsets)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        return graph

    def _compute(self, offsets: Tensor) -> None:
        assert self._x is not None
        assert self._y is not None
        rows = offsets + self._row
        x = self._x.index_select(0, rows)
        if self._module.flat.channels_last and x.ndim == 4:
            x = x.permute(0, 3, 1, 2)
        batch = (x, self._y.index_select(0, rows))
        loss = train_step(
            self.network,
            self._optimizer,
            self._module.loss,
            batch,
            self._module.training,
            self._anchors,
        )
        self._losses.index_copy_(0, self._step, loss.float().reshape(1))
        self._row += len(offsets)
        self._step += 1


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from freeing the graphs of an earlier run now: that would spoil a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graphs:
    """Trains all jobs, a few at a time side by side. Knows SGD only, with all its options."""

    together = True

    def __init__(self, module: ModuleOnDevice, data: LearnerData, num_slots: int) -> None:
        """`data` feeds the mini-batches of all jobs: those of its kin are the same."""
        self._module = module
        self._max_steps = max(1, min(256, PREPARED_BYTES // data.batch_bytes()))
        self._slots = [Slot(module, data, self._max_steps) for _ in range(num_slots)]

    def new_optimizer(self, rate_factor: float, kept: object | None) -> dict[str, Any]:
        return self._module.new_velocity(kept)

    def state_of(self, optimizer: dict[str, Any]) -> object:
        return optimizer

    def train(self, jobs: Sequence[Job]) -> None:
        now = torch.cuda.current_stream(self._module.device)
        outcomes: list[JobLosses] = []
        driven = []
        for slot, queue in zip(self._slots, self._dealt(jobs), strict=True):
            slot.stream.wait_stream(now)
            driven.append((slot, self._drive(slot, queue, outcomes)))
        while driven:  # a launch for each slot in turn, so that all streams stay fed
            still = []
            for slot, work in driven:
                with torch.cuda.stream(slot.stream):
                    if next(work, None) is not None:
                        still.append((slot, work))
            driven = still
        for slot in self._slots:
            now.wait_stream(slot.stream)
        self._settle(outcomes)

    def _dealt(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Deal jobs to slots, the longest first, each to the slot with least to do."""
        queues: list[list[Job]] = [[] for _ in self._slots]
        loads = [0] * len(self._slots)
        for job in sorted(jobs, key=lambda job: -job.num_steps):
            slot = loads.index(min(loads))
            queues[slot].append(job)
            loads[slot] += job.num_steps
        return queues

    def _drive(self, slot: Slot, queue: Sequence[Job], outcomes: list[JobLosses]) -> Iterator[bool]:
        """Launch a slot's work, giving way after each step."""
        for job in queue:
            run, data = job.run, job.data
            slot.load(run)
            outcome = JobLosses(job, None, [], None)
            if run.with_loss and run.steps.computed == 0:
                outcome.before = data.validation_loss(run.learner, slot.network)
            for stretch in job.stretches():
                sizes = stretch.sizes()
                for first in range(stretch.first, stretch.last, self._max_steps):
                    last = min(stretch.last, first + self._max_steps)
                    slot.prepare(stretch, first, last)
                    for step in range(first, last):
                        slot.step(sizes[step - stretch.first])
                        yield True
                    outcome.losses.append(slot.losses(last - first))
            slot.store(run)
            if run.with_loss:
                outcome.after = data.validation_loss(run.learner, slot.network)
            outcomes.append(outcome)

    def _settle(self, outcomes: Sequence[JobLosses]) -> None:
        """Look at all losses: the one moment at which the CPU waits for the GPU."""
        for outcome in outcomes:
            run = outcome.job.run
            if outcome.before is not None:
                settle_validation(run, float(outcome.before))
            losses: np.ndarray[Any, np.dtype[np.float32]] = torch.cat(outcome.losses).cpu().numpy()
            settle(run, losses, outcome.job.steps_per_epoch())
            if outcome.after is not None and run.steps.failure is None:
                settle_validation(run, float(outcome.after))


def why_not(module: ModuleOnDevice) -> str | None:
    """Say why learners cannot be computed by CUDA graphs; None if they can."""
    if module.device.type != "cuda":
        return "CUDA graphs need device = cuda"
    reason = not_plain_sgd(module.training)
    if reason is None and module.draws_chance:
        name = type(module.network).__name__
        reason = f"{name} draws random numbers when it trains, and every learner has its own"
    return reason
