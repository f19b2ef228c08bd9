from __future__ import annotations

import numpy as np
import pytest

from metis.core.community import Buffer, CachedAverage, Mixing, RoundAverage
from metis.core.controller import Controller
from metis.core.errors import ConfigError
from metis.core.events import Publish
from metis.core.pacing import Continuous, Rounds, SemiSync, Sync
from metis.core.policies import POLICIES, recipe
from metis.core.server_step import Adaptive, FedAvgM, Stepped
from metis.core.settings import Choices, RecipeSettings, ValidationSettings
from metis.core.types import Snapshot, Task, Update, Vector
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal
from tests.core.federation import answer, counted, run_toys, vector

NAMES = "abc"
TARGETS = {"a": (3.0, 0.0), "b": (0.0, 6.0), "c": (-3.0, 3.0)}


def train(task: Task) -> Update:
    """Go half of the way to what the learner alone would like best."""
    start, target = task.start.weights, np.array(TARGETS[task.learner])
    halfway = (start + target) / 2
    steps = 5 if task.max_steps is None else task.max_steps
    examples = 10 * (ord(task.learner) - 96)
    return answer(
        task,
        *halfway.tolist(),
        num_steps=steps,
        num_examples=examples,
        seconds=steps * examples / 10,
        counts=counted(3, 1),
    )


def run(policy: str, num_versions: int = 3) -> list[Publish]:
    made = recipe(policy, Choices(RecipeSettings(buffer_size=3)))
    start = Snapshot(0, vector(1, 1))
    controller = Controller(made.community, made.weighting, made.pacing, start, len(NAMES))
    return run_toys(
        controller,
        NAMES,
        num_versions,
        train,
        lambda asked: counted(ord(asked.judge) - 96, 2),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_three_versions(policy: str) -> None:
    versions = run(policy)

    assert [version.snapshot.version for version in versions] == [1, 2, 3]
    models = np.array([version.snapshot.weights for version in versions])
    assert np.isfinite(models).all()
    assert len({model.tobytes() for model in models}) == 3
    folds = [fold for version in versions for fold in version.folds]
    assert {fold.learner for fold in folds} == set(NAMES)
    assert all(fold.weight > 0 for fold in folds)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_repeatable_to_the_byte(policy: str) -> None:
    def trace() -> list[tuple[bytes, object]]:
        return [(v.snapshot.weights.tobytes(), v.folds) for v in run(policy, 6)]

    assert trace() == trace()


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_the_learners_are_better_off_than_at_the_start(policy: str) -> None:
    def loss(weights: Vector) -> float:
        return sum(float(((weights - np.array(t)) ** 2).sum()) for t in TARGETS.values())

    # Thirty versions: momentum at the server swings past the goal and back at first.
    assert loss(run(policy, 30)[-1].snapshot.weights) < loss(vector(1, 1)) - 0.5


@pytest.mark.parametrize(
    ("policy", "fixed_point"),
    [
        ("sync-uniform", (0, 3)),  # the plain mean of the targets
        ("sync-fedavg", (-1, 3.5)),  # weighed 10, 20, 30
        ("semisync-fedavg", (-1, 3.5)),
    ],
)
def test_rounds_end_where_the_weighted_learners_agree(
    policy: str, fixed_point: tuple[float, float]
) -> None:
    assert run(policy, 40)[-1].snapshot.weights == pytest.approx(fixed_point, abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_what_it_is(policy: str) -> None:
    assert POLICIES[policy].name == policy
    assert len(POLICIES[policy].summary) > 20


@pytest.mark.parametrize(
    ("policy", "community", "weighting", "pacing"),
    [
        ("sync-fedavg", RoundAverage, ByExamples, Rounds),
        ("sync-dvw", RoundAverage, ByValidation, Rounds),
        ("sync-uniform", RoundAverage, Equal, Rounds),
        ("async-fedavg", CachedAverage, ByExamples, Continuous),
        ("async-dvw", CachedAverage, ByValidation, Continuous),
        ("async-dvw-adaptive", CachedAverage, ByValidation, Continuous),
        ("async-uniform", CachedAverage, Equal, Continuous),
        ("fedasync", Mixing, ByStaleness, Continuous),
        ("semisync-fedavg", RoundAverage, ByExamples, Rounds),
        ("semisync-dvw", RoundAverage, ByValidation, Rounds),
        ("fedbuff", Buffer, ByStaleness, Continuous),
        ("fedprox", RoundAverage, ByExamples, Rounds),
        ("fedavgm", Stepped, ByExamples, Rounds),
        ("fedadagrad", Stepped, ByExamples, Rounds),
        ("fedadam", Stepped, ByExamples, Rounds),
        ("fedyogi", Stepped, ByExamples, Rounds),
    ],
)
def test_a_policy_is_this_composition(
    policy: str, community: type, weighting: type, pacing: type
) -> None:
    made = recipe(policy, Choices())

    assert type(made.community) is community
    assert type(made.weighting) is weighting
    assert type(made.pacing) is pacing


def test_only_what_is_scored_and_its_controls_hold_data_out() -> None:
    holding_out = {name for name in POLICIES if recipe(name, Choices()).holds_out}

    assert holding_out == {
        "sync-dvw",
        "sync-uniform",
        "async-dvw",
        "async-dvw-adaptive",
        "async-uniform",
        "semisync-dvw",
    }


def test_only_one_policy_is_adaptive_and_only_two_are_proximal() -> None:
    made = {name: recipe(name, Choices()) for name in POLICIES}

    assert [name for name in made if made[name].adaptive] == ["async-dvw-adaptive"]
    assert {name: m.proximal for name, m in made.items() if m.proximal} == {
        "fedasync": 0.005,
        "fedprox": 0.005,
    }


def test_defaults_are_the_papers() -> None:
    mixing = recipe("fedasync", Choices()).weighting
    buffered = recipe("fedbuff", Choices())
    scored = recipe("async-dvw", Choices()).weighting

    assert mixing == ByStaleness(rate=0.5, exponent=0.5)
    assert buffered.weighting == ByStaleness(rate=1.0, exponent=0.5)
    assert scored == ByValidation("micro_f1", "everybody")


def test_settings_reach_the_recipe() -> None:
    choices = Choices(
        RecipeSettings(sample=50, epochs_of_slowest=3.0),
        ValidationSettings(metric="mcc", self_score="exclude"),
        seed=4,
    )

    assert recipe("async-dvw", choices).weighting == ByValidation("mcc", "others")
    assert recipe("sync-fedavg", choices).pacing == Sync(50, 4)
    assert recipe("semisync-dvw", choices).pacing == SemiSync(3.0, 50, 4)


def test_one_server_rate_goes_with_every_server_step() -> None:
    def rates(choices: Choices) -> dict[str, float]:
        found = {}
        for name in ("fedbuff", "fedavgm", "fedadagrad", "fedadam", "fedyogi"):
            community = recipe(name, choices).community
            if isinstance(community, Stepped):
                assert isinstance(community.step, FedAvgM | Adaptive)
                found[name] = community.step.rate
            else:
                assert isinstance(community, Buffer)
                found[name] = community.server_rate
        return found

    adaptive = dict.fromkeys(("fedadagrad", "fedadam", "fedyogi"), 0.01)
    assert rates(Choices()) == {"fedbuff": 1.0, "fedavgm": 1.0, **adaptive}
    assert set(rates(Choices(RecipeSettings(server_rate=0.3))).values()) == {0.3}


def test_two_recipes_never_share_a_community() -> None:
    for policy in POLICIES:
        one, other = recipe(policy, Choices()), recipe(policy, Choices())
        assert one.community is not other.community


def test_an_unknown_policy_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sync-fedavg'"):
        recipe("sync-fedavgg", Choices())
