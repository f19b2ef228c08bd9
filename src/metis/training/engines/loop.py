"""Learners trained one after another, each as plain PyTorch would: any module, any optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from metis.training.jobs import Job, settle, settle_validation
from metis.training.module import ModuleOnDevice
from metis.training.step import new_optimizer, train_step


class Loop:
    """The engine that all others are measured against. Each learner is computed alone.

    On one kind of machine with one number of threads the same task gives the same bytes, whatever
    was computed before it.
    """

    together = False

    def __init__(
        self, module: ModuleOnDevice, pulse: Callable[[int], None] = lambda num_steps: None
    ) -> None:
        """`pulse` is called after each step with the number of the task's steps that are done."""
        self._module = module
        self._pulse = pulse

    def new_optimizer(self, rate_factor: float, kept: object | None) -> torch.optim.Optimizer:
        optimizer = new_optimizer(self._module.training, self._module.network, rate_factor)
        if kept is not None:
            rates = [group["lr"] for group in optimizer.param_groups]
            assert isinstance(kept, dict)
            # A copy: if the task is abandoned, what was kept must be as it was.
            optimizer.load_state_dict(copy.deepcopy(kept))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    # Fused steps take it that a parameter and its state lie in the same order.
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        state[name] = torch.empty_like(parameter).copy_(value)
        return optimizer

    def state_of(self, optimizer: torch.optim.Optimizer) -> object:
        return optimizer.state_dict()

    def train(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._train(job)

    def _train(self, job: Job) -> None:
        module, run = self._module, job.run
        module.flat.point_to(run.weights)
        _copy_all(module.counters, run.counters)
        if run.with_loss and run.steps.computed == 0:
            settle_validation(run, float(job.data.validation_loss(run.learner)))
        losses = self._steps(job)
        _copy_all(run.counters, module.counters)
        # One look per job: looking at each loss would make an accelerator wait at every step.
        settle(run, losses.cpu().numpy(), job.steps_per_epoch())
        if run.with_loss and run.steps.failure is None:
            settle_validation(run, float(job.data.validation_loss(run.learner)))

    def _steps(self, job: Job) -> Tensor:
        """Train the network, which holds the run's weights; return the loss of each step."""
        module, run = self._module, job.run
        anchors = module.anchors(run.start)
        losses: list[Tensor] = []
        module.network.train()
        with module.chance() as seed_torch, module.arithmetic():
            for stretch in job.stretches():
                examples = stretch.epoch.examples.to(module.device)
                draws = stretch.epoch.draws.to(module.device)
                for step in range(stretch.first, stretch.last):
                    rows = slice(step * stretch.batch_size, (step + 1) * stretch.batch_size)
                    batch = job.data.feed_training(examples[rows], draws[rows])
                    seed_torch(stretch.epoch.seeds[step])
                    losses.append(
                        train_step(
                            module.network,
                            run.optimizer,
                            module.loss,
                            batch,
                            module.training,
                            anchors,
                        )
                    )
                    self._pulse(run.steps.computed + len(losses))
        return torch.stack(losses)


def _copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
