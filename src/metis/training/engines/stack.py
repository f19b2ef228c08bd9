"""Learners trained as one batched computation: their parameters stacked, one program for all.

For models so small that a mini-batch costs more in calls than in arithmetic. `torch.func.vmap`
turns the module into its stacked form: a linear layer becomes a batched product, a convolution a
grouped one. Which learners are stacked together changes the last bits of a result, so that
follows from the order of calls alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, vmap

from metis.core.types import LearnerId
from metis.training.engines.loop import Loop
from metis.training.epochs import Stretch
from metis.training.jobs import Engine, Job, TrainingRun, settle, settle_validation
from metis.training.learner_data import LearnerData
from metis.training.module import ModuleOnDevice
from metis.training.step import decayed_names, not_plain_sgd

#: Examples that stacked models are validated on at once.
VALIDATION_BATCH = 4096


@dataclass(slots=True)
class Stacked:
    """The models of several runs, a row each, cut into tensors by name."""

    values: Tensor  # rows of weights and float buffers
    momentum: Tensor | None
    start: Tensor | None
    counters: list[Tensor]
    rates: Tensor  # the learning rate of each

    def rows(self, chosen: Tensor) -> Stacked:
        """Return a copy of some rows."""
        return Stacked(
            self.values[chosen],
            None if self.momentum is None else self.momentum[chosen],
            None if self.start is None else self.start[chosen],
            [counter[chosen] for counter in self.counters],
            self.rates[chosen],
        )

    def first(self, count: int) -> Stacked:
        """Return the first rows, not copied."""
        return Stacked(
            self.values[:count],
            None if self.momentum is None else self.momentum[:count],
            None if self.start is None else self.start[:count],
            [counter[:count] for counter in self.counters],
            self.rates[:count],
        )

    def put(self, chosen: Tensor, rows: Stacked) -> None:
        """Write back what `rows` copied and training has changed."""
        self.values[chosen] = rows.values
        if self.momentum is not None and rows.momentum is not None:
            self.momentum[chosen] = rows.momentum
        for counter, changed in zip(self.counters, rows.counters, strict=True):
            counter[chosen] = changed


class Stack:
    """Trains all jobs at once, as many as fit into memory. Knows SGD only, with all its options.

    Learners with fewer mini-batches drop out of the end of the stack as they are done. A last,
    partial batch is filled up with examples that count nothing.
    """

    together = True

    def __init__(self, module: ModuleOnDevice, data: LearnerData, max_learners: int) -> None:
        """`data` feeds the mini-batches of all jobs: those of its kin are the same."""
        self._module = module
        self._data = data
        self._max_learners = max_learners
        self._trained = [name for name, _ in module.trained]
        self._decayed = decayed_names(module.training, module.network)
        names = {id(buffer): name for name, buffer in module.network.named_buffers()}
        self._counter_names = [names[id(counter)] for counter in module.counters]
        self._buffers = [p.name for p in module.layout.tensors if p.kind == "buffer"]
        self._losses = vmap(self._loss_of_one)
        self._outputs = vmap(self._outputs_of_one)

    def new_optimizer(self, rate_factor: float, kept: object | None) -> dict[str, Any]:
        return self._module.new_velocity(kept)

    def state_of(self, optimizer: dict[str, Any]) -> object:
        return optimizer

    def train(self, jobs: Sequence[Job]) -> None:
        # Learners of about the same length side by side: the longest first, ties as they came.
        ordered = sorted(jobs, key=lambda job: -job.num_steps)
        for at in range(0, len(ordered), self._max_learners):
            self._train_together(ordered[at : at + self._max_learners])

    def _train_together(self, jobs: Sequence[Job]) -> None:
        runs = [job.run for job in jobs]
        stacked = self._stacked(runs)
        new = [row for row, run in enumerate(runs) if run.with_loss and run.steps.computed == 0]
        self._validate(jobs, new, stacked)
        plans = [list(job.stretches()) for job in jobs]
        losses: list[list[Tensor]] = [[] for _ in runs]
        with self._module.arithmetic():
            for number in range(max(map(len, plans))):
                self._epoch(
                    {row: plan[number] for row, plan in enumerate(plans) if number < len(plan)},
                    stacked,
                    losses,
                )
        for row, (run, job) in enumerate(zip(runs, jobs, strict=True)):
            run.weights.copy_(stacked.values[row])
            if stacked.momentum is not None:
                run.optimizer["momentum"].copy_(stacked.momentum[row])
            for counter, rows in zip(run.counters, stacked.counters, strict=True):
                counter.copy_(rows[row])
            found = torch.cat(losses[row]).cpu().numpy()
            settle(run, found, job.steps_per_epoch())
        sound = [row for row, run in enumerate(runs) if run.with_loss and run.steps.failure is None]
        self._validate(jobs, sound, stacked)

    def _stacked(self, runs: Sequence[TrainingRun]) -> Stacked:
        training = self._module.training
        rates = [training.learning_rate * run.rate_factor for run in runs]
        starts = [run.start for run in runs if run.start is not None]
        return Stacked(
            values=torch.stack([run.weights for run in runs]),
            momentum=torch.stack([run.optimizer["momentum"] for run in runs])
            if training.momentum
            else None,
            start=torch.stack(starts) if starts else None,
            counters=[torch.stack(same) for same in zip(*(r.counters for r in runs), strict=True)],
            rates=torch.tensor(rates, dtype=torch.float32, device=self._module.device),
        )

    # ---- one epoch ----------------------------------------------------------------------------

    def _epoch(
        self, stretches: dict[int, Stretch], stacked: Stacked, losses: list[list[Tensor]]
    ) -> None:
        """Train each row its stretch of an epoch."""
        size = self._module.training.batch_size
        if not self._module.has_batch_norm:
            steps = {row: stretch.last - stretch.first for row, stretch in stretches.items()}
            starts = {row: stretch.rows.start for row, stretch in stretches.items()}
            self._batches(stretches, starts, steps, size, stacked, losses)
            return
        # Batch-norm must see its own examples only, so nothing is padded: full batches first, then
        # the last ones, those of the same size together.
        full = {row: stretch.sizes().count(size) for row, stretch in stretches.items()}
        starts = {row: stretch.rows.start for row, stretch in stretches.items()}
        self._batches(stretches, starts, full, size, stacked, losses)
        rest: dict[int, list[int]] = defaultdict(list)
        for row, stretch in stretches.items():
            if full[row] < stretch.last - stretch.first:
                rest[stretch.sizes()[-1]].append(row)
        for last_size in sorted(rest):
            rows = rest[last_size]
            starts = {row: (stretches[row].first + full[row]) * size for row in rows}
            self._batches(stretches, starts, dict.fromkeys(rows, 1), last_size, stacked, losses)

    def _batches(
        self,
        stretches: dict[int, Stretch],
        starts: dict[int, int],
        steps: dict[int, int],
        size: int,
        stacked: Stacked,
        losses: list[list[Tensor]],
    ) -> None:
        """Train each row for its number of batches, from its start in the epoch on."""
        rows = sorted((row for row in steps if steps[row]), key=lambda row: -steps[row])
        if not rows:
            return
        chosen = torch.tensor(rows, device=self._module.device)
        part = stacked.rows(chosen)
        counts = [steps[row] for row in rows]
        batch = self._feed([(stretches[row], starts[row]) for row in rows], counts, size)
        found = torch.zeros(counts[0], len(rows), device=self._module.device)
        active = len(rows)
        for step in range(counts[0]):
            while counts[active - 1] <= step:
                active -= 1
            at = slice(step * size, (step + 1) * size)
            now = [values[:active, at] for values in batch]
            found[step, :active] = self._step(part.first(active), *now)
        stacked.put(chosen, part)
        for place, row in enumerate(rows):
            losses[row].append(found[: counts[place], place])

    def _feed(
        self, sources: Sequence[tuple[Stretch, int]], counts: Sequence[int], size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the examples of each row, the draws for them, and what each of them counts."""
        length = counts[0] * size
        width = sources[0][0].epoch.draws.shape[1]
        examples = torch.zeros(len(sources), length, dtype=torch.int64)
        draws = torch.zeros(len(sources), length, width)
        weights = torch.zeros(len(sources), length)
        for row, ((stretch, start), count) in enumerate(zip(sources, counts, strict=True)):
            these = slice(start, start + count * size)
            found = stretch.epoch.examples[these]
            examples[row, : len(found)] = found
            draws[row, : len(found)] = stretch.epoch.draws[these]
            weights[row, : len(found)] = 1.0
        device = self._module.device
        return examples.to(device), draws.to(device), weights.to(device)

    # ---- one step -----------------------------------------------------------------------------

    def _step(self, part: Stacked, examples: Tensor, draws: Tensor, weights: Tensor) -> Tensor:
        """Take one SGD step with every row; return their losses."""
        num_rows, size = examples.shape
        x, y = self._data.feed_training(examples.reshape(-1), draws.reshape(num_rows * size, -1))
        tensors = self._tensors(part)
        trained = [tensors[name].requires_grad_() for name in self._trained]
        # Batch-norm writes to its statistics only where rows of them lie next to each other.
        buffers = {name: tensors[name].contiguous() for name in self._buffers}
        tensors.update(buffers)
        self._module.network.train()
        x = x.view(num_rows, size, *x.shape[1:])
        losses = self._losses(tensors, x, y.view(num_rows, size), weights)
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
        named = zip(self._trained, gradients, strict=True)
        with torch.no_grad():
            # What the loss does not depend on has no gradient, and stays.
            self._descend(part, {name: g for name, g in named if g is not None})
            kept = self._module.flat.parts(part.values)
            for name, buffer in buffers.items():
                kept[name].copy_(buffer)
        return losses.detach()

    def _tensors(self, part: Stacked) -> dict[str, Tensor]:
        """Return stacked parameters and buffers by name. They share the memory of the rows."""
        tensors = self._module.flat.parts(part.values.detach())
        tensors.update(zip(self._counter_names, part.counters, strict=True))
        return tensors

    def _descend(self, part: Stacked, gradients: dict[str, Tensor]) -> None:
        """SGD as torch.optim has it, with the proximal term first, for every row at its rate."""
        training, parts = self._module.training, self._module.flat.parts
        weights = parts(part.values)
        if part.start is not None:
            starts = parts(part.start)
            for name, gradient in gradients.items():
                gradient.add_(weights[name] - starts[name], alpha=training.proximal)
        if training.clip_norm is not None:
            squares = [gradient.square().flatten(1).sum(1) for gradient in gradients.values()]
            norms = torch.stack(squares).sum(0).sqrt()
            shrink = (training.clip_norm / (norms + 1e-6)).clamp(max=1.0)
            for gradient in gradients.values():
                gradient.mul_(_like(shrink, gradient))
        velocities = {} if part.momentum is None else parts(part.momentum)
        for name, gradient in gradients.items():
            if name in self._decayed:
                gradient.add_(weights[name], alpha=training.weight_decay)
            step = gradient
            if velocities:
                step = velocities[name].mul_(training.momentum).add_(gradient)
                if training.optimizer_options.get("nesterov", False):
                    step = gradient + training.momentum * step
            weights[name].addcmul_(step, _like(part.rates, step), value=-1.0)

    def _loss_of_one(
        self, tensors: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor
    ) -> Tensor:
        losses = self._module.losses(functional_call(self._module.network, tensors, (x,)), y)
        return (losses * weights).sum() / weights.sum()

    def _outputs_of_one(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self._module.network, tensors, (x,))
        return outputs

    # ---- validation ---------------------------------------------------------------------------

    def _validate(self, jobs: Sequence[Job], rows: Sequence[int], stacked: Stacked) -> None:
        """Record the loss of each row's model on its own learner's validation set."""
        module = self._module
        sets = {row: jobs[row].data.validation_set(jobs[row].run.learner) for row in rows}
        module.network.eval()
        todo = sorted(rows, key=lambda row: -len(sets[row][1]))
        while todo:
            longest = len(sets[todo[0]][1])
            group = todo[: max(1, VALIDATION_BATCH // longest)]
            todo = todo[len(group) :]
            x = torch.stack([_filled(sets[row][0], longest) for row in group])
            part = stacked.rows(torch.tensor(group, device=module.device))
            with torch.no_grad(), module.arithmetic():
                outputs = self._outputs(self._tensors(part), x).float()
            for place, row in enumerate(group):
                y = sets[row][1]
                loss = float(module.loss(outputs[place, : len(y)], y))
                settle_validation(jobs[row].run, loss)


def _filled(x: Tensor, length: int) -> Tensor:
    """Return `length` inputs: these, then zeros."""
    return torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


def _like(values: Tensor, other: Tensor) -> Tensor:
    """Return one value per row in a shape that multiplies with rows of tensors."""
    return values.view(-1, *(1,) * (other.ndim - 1))


def why_not(module: ModuleOnDevice, data: LearnerData) -> str | None:
    """Say why the learners of a federation cannot be stacked; None if they can.

    Tries the stacked step on two different models and compares it with the ordinary one.
    """
    reason = not_plain_sgd(module.training)
    if reason is not None:
        return reason
    name = type(module.network).__name__
    if module.draws_chance:
        return f"{name} draws random numbers when it trains, and every learner has its own"
    learners = list(data.shares)[:2]
    try:
        with module.unchanged():
            held = module.flat.values.clone()
            one = _trial(module, data, Loop(module), learners, held)
            other = _trial(module, data, Stack(module, data, 2), learners, held)
    except Exception as error:  # whatever vmap or the user's own module raises
        first = str(error).strip().partition("\n")[0]
        return f"{name} cannot be stacked ({type(error).__name__}: {first})"
    if not all(np.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(one, other, strict=True)):
        return f"{name} gives other results when it is stacked"
    return None


def _trial(
    module: ModuleOnDevice,
    data: LearnerData,
    engine: Engine,
    learners: Sequence[LearnerId],
    held: Tensor,
) -> list[NDArray[np.float32]]:
    """Take one step with each learner, from models that differ; return the trained models."""
    jobs = []
    for place, learner in enumerate(learners):
        weights = held * (1.0 + 0.125 * place)
        run = TrainingRun(
            learner=learner,
            rate_factor=1.0,
            ordinal=0,
            with_loss=False,
            weights=weights,
            counters=[counter.clone() for counter in module.initial_counters],
            all_examples=False,
            start=weights.clone() if module.training.proximal else None,
            optimizer=engine.new_optimizer(1.0, None),
        )
        jobs.append(Job(run, 1, data))
    engine.train(jobs)
    return [job.run.weights.cpu().numpy() for job in jobs]
