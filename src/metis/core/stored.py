"""The names by which values of the core are stored in a checkpoint.

A name is part of the file format and never changes; its class may be renamed and moved.
"""

from __future__ import annotations

from collections.abc import Mapping

from metis.core import community, events, pacing, schedules, server_step, triggers, types, weighting
from metis.core.codec import Published
from metis.core.controller import Controller, Ticket
from metis.core.local_run import LocalRun

#: What a learner's site keeps between two orders is made of these.
VALUES: Mapping[str, type] = {
    "tensor": types.Tensor,
    "layout": types.Layout,
    "sparse-model": types.Sparse,
    "snapshot": types.Snapshot,
    "profile": types.Profile,
    "task": types.Task,
    "class-counts": types.ClassCounts,
    "error-sums": types.ErrorSums,
    "update": types.Update,
}

EVENTS: Mapping[str, type] = {
    "joined": events.Joined,
    "left": events.Left,
    "arrived": events.Arrived,
    "failed": events.Failed,
    "scored": events.Scored,
    "task-expired": events.TaskExpired,
    "evaluation-expired": events.EvaluationExpired,
    "fold": events.Fold,
}

#: What a recipe is made of.
PARTS: Mapping[str, type] = {
    "round-average": community.RoundAverage,
    "cached-average": community.CachedAverage,
    "change": community.Change,
    "mixing": community.Mixing,
    "buffer": community.Buffer,
    "stepped": server_step.Stepped,
    "server-momentum": server_step.FedAvgM,
    "adaptive-step": server_step.Adaptive,
    "published": Published,
    "equal": weighting.Equal,
    "by-examples": weighting.ByExamples,
    "by-validation": weighting.ByValidation,
    "by-staleness": weighting.ByStaleness,
    "rounds": pacing.Rounds,
    "continuous": pacing.Continuous,
    "after-epochs": triggers.AfterEpochs,
    "validation-cycle": triggers.ValidationCycle,
    "when-stale": triggers.WhenStale,
    "any-of": triggers.AnyOf,
}

STORED: Mapping[str, type] = {
    **VALUES,
    **EVENTS,
    **PARTS,
    "controller": Controller,
    "ticket": Ticket,
    "local-run": LocalRun,
    "by-version": schedules.ByVersion,
    "plateau": schedules.Plateau,
}
