"""Every policy by name: a recipe whose numbers come from the config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metis.core.community import Buffer, CachedAverage, Mixing, RoundAverage
from metis.core.errors import ConfigError, unknown
from metis.core.pacing import Async, Buffered, Continuous, Rounds, SemiSync, Sync
from metis.core.recipes import Recipe
from metis.core.server_step import Adaptive, FedAvgM, SecondMoment, Stepped
from metis.core.settings import Choices
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal


@dataclass(frozen=True, slots=True)
class Policy:
    """A recipe with its name."""

    name: str
    summary: str
    recipe: Callable[[Choices], Recipe]


def _sync(s: Choices) -> Rounds:
    return Sync(s.recipe.sample, s.seed)


def _semi_sync(s: Choices) -> Rounds:
    return SemiSync(s.recipe.epochs_of_slowest, s.recipe.sample, s.seed)


def _async(s: Choices) -> Continuous:
    return Async(s.recipe.sample, s.seed)


def _cache(s: Choices) -> CachedAverage:
    return CachedAverage(s.recipe.repair_every)


def _by_validation(s: Choices) -> ByValidation:
    return ByValidation(
        s.validation.metric or "micro_f1",
        "everybody" if s.validation.self_score == "include" else "others",
    )


def _rate(s: Choices, usual: float = 1.0) -> float:
    return usual if s.recipe.server_rate is None else s.recipe.server_rate


def _adaptive(kind: SecondMoment, s: Choices) -> Recipe:
    community = Stepped(RoundAverage(), Adaptive(kind, _rate(s, 0.01)))
    return Recipe(community, ByExamples(), _sync(s))


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "sync-fedavg",
            "rounds; each model weighs as many examples as it was trained on",
            lambda s: Recipe(RoundAverage(), ByExamples(), _sync(s)),
        ),
        Policy(
            "sync-dvw",
            "rounds; each model weighs what it scores on everybody's validation sets",
            lambda s: Recipe(RoundAverage(), _by_validation(s), _sync(s), holds_out=True),
        ),
        Policy(
            "sync-uniform",
            "rounds; equal weights, same hold-out as DVW: the control for sync-dvw",
            lambda s: Recipe(RoundAverage(), Equal(), _sync(s), holds_out=True),
        ),
        Policy(
            "async-fedavg",
            "each alone, cached average; weighs examples",
            lambda s: Recipe(_cache(s), ByExamples(), _async(s)),
        ),
        Policy(
            "async-dvw",
            "each alone, cached average; weighs validation scores; fixed epochs",
            lambda s: Recipe(_cache(s), _by_validation(s), _async(s), holds_out=True),
        ),
        Policy(
            "async-dvw-adaptive",
            "as async-dvw, but each learner decides by validation cycles when to update",
            lambda s: Recipe(
                _cache(s), _by_validation(s), _async(s), adaptive=True, holds_out=True
            ),
        ),
        Policy(
            "async-uniform",
            "each alone, cached average; equal weights: the control for async-dvw",
            lambda s: Recipe(_cache(s), Equal(), _async(s), holds_out=True),
        ),
        Policy(
            "fedasync",
            "FedAsync+Poly: each alone, mixed in at a rate that falls with staleness; proximal",
            lambda s: Recipe(
                Mixing(),
                ByStaleness(s.recipe.mixing_rate, s.recipe.staleness_exponent),
                _async(s),
                proximal=s.recipe.proximal,
            ),
        ),
        Policy(
            "semisync-fedavg",
            "rounds of equal time: steps per learner follow its speed; weighs examples",
            lambda s: Recipe(RoundAverage(), ByExamples(), _semi_sync(s)),
        ),
        Policy(
            "semisync-dvw",
            "rounds of equal time; weighs validation scores",
            lambda s: Recipe(RoundAverage(), _by_validation(s), _semi_sync(s), holds_out=True),
        ),
        Policy(
            "fedbuff",
            "each alone; every K updates make a version, discounted by staleness",
            lambda s: Recipe(
                Buffer(_rate(s)),
                ByStaleness(1.0, s.recipe.staleness_exponent),
                Buffered(s.recipe.buffer_size, s.recipe.sample, s.seed),
            ),
        ),
        Policy(
            "fedprox",
            "sync-fedavg with a proximal term that holds learners near the community model",
            lambda s: Recipe(RoundAverage(), ByExamples(), _sync(s), proximal=s.recipe.proximal),
        ),
        Policy(
            "fedavgm",
            "sync-fedavg with momentum at the server",
            lambda s: Recipe(
                Stepped(RoundAverage(), FedAvgM(_rate(s), s.recipe.server_momentum)),
                ByExamples(),
                _sync(s),
            ),
        ),
        Policy(
            "fedadagrad",
            "sync-fedavg with Adagrad at the server",
            lambda s: _adaptive("adagrad", s),
        ),
        Policy("fedadam", "sync-fedavg with Adam at the server", lambda s: _adaptive("adam", s)),
        Policy("fedyogi", "sync-fedavg with Yogi at the server", lambda s: _adaptive("yogi", s)),
    )
}


def recipe(policy: str, choices: Choices) -> Recipe:
    """Return a policy's recipe, with a community of its own."""
    if policy not in POLICIES:
        raise ConfigError(unknown("policy", policy, POLICIES))
    return POLICIES[policy].recipe(choices)
