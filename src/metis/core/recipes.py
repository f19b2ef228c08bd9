"""Every policy by name. A recipe is a sentence: this community, this weighting, this pacing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metis.core.community import Buffer, CachedAverage, Community, Mixing, RoundAverage
from metis.core.errors import ConfigError, unknown
from metis.core.pacing import Async, Buffered, Pacing, SemiSync, Sync
from metis.core.server_step import Adaptive, FedAvgM, SecondMoment, Stepped
from metis.core.types import Spans
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal, Weighting


@dataclass(frozen=True, slots=True)
class Settings:
    """What a recipe leaves open. Defaults are the papers'."""

    metric: str = "micro_f1"
    self_score: bool = True  # a learner's own counts join the pool
    sample: int | None = None
    seed: int = 1990
    mixing_rate: float = 0.5  # FedAsync's alpha
    staleness_exponent: float = 0.5  # a of FedAsync+Poly and FedBuff
    proximal: float = 0.005  # rho of FedAsync's and FedProx's proximal term
    buffer_size: int = 5  # K of FedBuff
    server_rate: float | None = None  # 1, but 0.01 of an adaptive server step
    server_momentum: float = 0.9  # of FedAvgM
    epochs_of_slowest: float = 1.0  # lambda of SemiSync
    repair_every: int = 10_000  # commits between full recomputations of the cached sum
    buffers: Spans = ()  # parts of a model that are averaged and never stepped


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a federation is made of, and what its learners are asked to do."""

    community: Community  # fresh, owned by whoever asked for the recipe
    weighting: Weighting
    pacing: Pacing
    adaptive: bool = False  # learners follow validation cycles instead of a fixed epoch count
    holds_out: bool = False  # learners keep part of their data for validation
    proximal: float = 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A recipe with its name."""

    name: str
    summary: str
    recipe: Callable[[Settings], Recipe]


def _sync(s: Settings) -> Sync:
    return Sync(s.sample, s.seed)


def _semi_sync(s: Settings) -> SemiSync:
    return SemiSync(s.epochs_of_slowest, s.sample, s.seed)


def _async(s: Settings) -> Async:
    return Async(s.sample, s.seed)


def _cache(s: Settings) -> CachedAverage:
    return CachedAverage(s.repair_every)


def _by_validation(s: Settings) -> ByValidation:
    return ByValidation(s.metric, "everybody" if s.self_score else "others")


def _rate(s: Settings, usual: float = 1.0) -> float:
    return usual if s.server_rate is None else s.server_rate


def _adaptive(kind: SecondMoment, s: Settings) -> Recipe:
    community = Stepped(RoundAverage(), Adaptive(kind, _rate(s, 0.01)), s.buffers)
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
                ByStaleness(s.mixing_rate, s.staleness_exponent),
                _async(s),
                proximal=s.proximal,
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
                Buffer(_rate(s), s.buffers),
                ByStaleness(1.0, s.staleness_exponent),
                Buffered(s.buffer_size, s.sample, s.seed),
            ),
        ),
        Policy(
            "fedprox",
            "sync-fedavg with a proximal term that holds learners near the community model",
            lambda s: Recipe(RoundAverage(), ByExamples(), _sync(s), proximal=s.proximal),
        ),
        Policy(
            "fedavgm",
            "sync-fedavg with momentum at the server",
            lambda s: Recipe(
                Stepped(RoundAverage(), FedAvgM(_rate(s), s.server_momentum), s.buffers),
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


def recipe(policy: str, settings: Settings) -> Recipe:
    """Return a policy's recipe, with a community of its own."""
    if policy not in POLICIES:
        raise ConfigError(unknown("policy", policy, POLICIES))
    return POLICIES[policy].recipe(settings)
