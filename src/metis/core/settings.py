"""The settings of a recipe: what a policy leaves open, and how models are judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from metis.core.community import REPAIR_EVERY
from metis.core.keys import key
from metis.core.scores import CLASS_SCORES, ERROR_SCORES


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """The numbers that a named recipe leaves open. Defaults are the papers'."""

    sample: int | None = key(
        None, "learners drawn per round, or at work at once; default: all", low=1, shared=True
    )
    min_learners: int | None = key(
        None, "the run begins when so many have joined; default: all", low=1, shared=True
    )
    mixing_rate: float = key(0.5, "FedAsync's alpha", above=0, high=1, shared=True)
    staleness_exponent: float = key(0.5, "a of FedAsync+Poly and FedBuff", low=0, shared=True)
    proximal: float = key(0.005, "rho of FedAsync and FedProx", low=0, shared=True)
    buffer_size: int = key(
        5, "FedBuff makes a version every so many updates (K)", low=1, shared=True
    )
    server_rate: float | None = key(
        None,
        "of FedBuff and FedAvgM, default 1; of FedAdagrad, FedAdam and FedYogi, default 0.01",
        above=0,
        shared=True,
    )
    server_momentum: float = key(0.9, "of FedAvgM", low=0, high=1, shared=True)
    epochs_of_slowest: float = key(
        1.0,
        "SemiSync's time budget, in epochs of the slowest (lambda)",
        above=0,
        high=10_000,
        shared=True,
    )
    repair_every: int = key(
        REPAIR_EVERY, "commits between full recomputations of the cached sum", low=1, shared=True
    )


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """The distributed validation set: what is held out, and how models are scored on it."""

    fraction: float = key(
        0.05,
        "of each learner's examples, held out where the policy needs it",
        low=0,
        high=0.9,
        shared=True,
    )
    stratified: bool = key(True, "hold out the same share of every class", shared=True)
    metric: str | None = key(
        None,
        "score of DVW; default micro_f1, or inverse_mse for regression",
        choices=(*CLASS_SCORES, *ERROR_SCORES),
        shared=True,
    )
    self_score: str = key(
        "include",
        "whether a learner's own counts join the pool",
        choices=("include", "exclude"),
        shared=True,
    )
    release_last: int | None = key(
        None,
        "in so many last versions of horizon.versions learners train on held-out examples, too, "
        "and keep the weights that they have",
        low=1,
    )
    deadline_seconds: float = key(
        600.0, "a judge that has not answered by then is left out", above=0, shared=True
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """All that a recipe may be made from."""

    recipe: RecipeSettings = field(default_factory=RecipeSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    seed: int = 0
