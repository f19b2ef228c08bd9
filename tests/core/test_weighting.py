from __future__ import annotations

import math

import numpy as np
import pytest

from metis.core.errors import ConfigError
from metis.core.types import ClassCounts, ErrorSums, LearnerId, Update
from metis.core.weighting import ByExamples, ByStaleness, ByValidation, Equal
from tests.core.federation import counted, vector


def update(num_examples: int = 10) -> Update:
    return Update(LearnerId("a"), 1, vector(1, 2), 0, num_examples=num_examples, num_steps=3)


def test_equal_weights_look_at_nothing() -> None:
    assert Equal().judged_by == "nobody"
    assert Equal().weigh(update(7), None, 3) == Equal().weigh(update(7000), None, 0) == 1.0


def test_fedavg_weighs_training_examples() -> None:
    assert ByExamples().judged_by == "nobody"
    assert [ByExamples().weigh(update(n), None, 9) for n in (1, 45_000)] == [1.0, 45_000.0]


def test_validation_weighs_the_score_of_the_pooled_counts() -> None:
    # TP = 3 + 4, FP = FN = 1 + 2: 14 / (14 + 3 + 3)
    pooled = ClassCounts(np.array([[3, 1], [2, 4]], np.int64))

    assert ByValidation().weigh(update(), pooled, 5) == 0.7


def test_validation_does_not_look_at_sizes_or_staleness() -> None:
    pooled = counted(3, 1)

    weights = {ByValidation().weigh(update(n), pooled, s) for n in (1, 900) for s in (0, 40)}

    assert weights == {0.75}


def test_a_model_that_gets_nothing_right_weighs_nothing_whatever_its_size() -> None:
    assert ByValidation().weigh(update(50_000), counted(0, 9), 0) == 0.0
    assert ByValidation().weigh(update(50_000), counted(0, 0), 0) == 0.0
    assert ByValidation().weigh(update(50_000), None, 0) == 0.0


def test_a_negative_score_is_clipped_at_zero() -> None:
    always_wrong = ClassCounts(np.array([[0, 5], [5, 0]], np.int64))

    assert ByValidation("mcc").weigh(update(), always_wrong, 0) == 0.0


def test_a_regression_is_weighed_by_its_errors() -> None:
    sums = ErrorSums(4, squared_error=12.0, absolute_error=6.0, target=8.0, target_squared=24.0)

    assert ByValidation("inverse_mse").weigh(update(), sums, 0) == 1 / (1 + 3)
    assert ByValidation("r2").weigh(update(), sums, 0) == 0.0  # 1 - 12/8, clipped


def test_a_metric_that_does_not_fit_the_counts_is_a_mistake_in_the_config() -> None:
    with pytest.raises(ConfigError, match="for regression"):
        ByValidation("r2").weigh(update(), counted(1, 1), 0)


@pytest.mark.parametrize(
    ("staleness", "weight"), [(0, 0.5), (1, 0.5 / math.sqrt(2)), (3, 0.25), (8, 0.5 / 3)]
)
def test_fedasync_discounts_polynomially(staleness: int, weight: float) -> None:
    assert ByStaleness(0.5, 0.5).weigh(update(), None, staleness) == pytest.approx(weight)


def test_the_mixing_rate_depends_on_nothing_but_the_staleness() -> None:
    """Plato lowers the rate itself, so that later fresh updates suffer for earlier stale ones."""
    weighting = ByStaleness(0.5, 0.5)
    before = weighting.weigh(update(), None, 0)
    for _ in range(100):
        weighting.weigh(update(), None, 50)

    assert weighting.weigh(update(), None, 0) == before == 0.5


def test_fedbuff_discounts_by_one_over_the_root_of_one_plus_staleness() -> None:
    """NVFlare has 1/(1 + sqrt(s)): 1/3 where 1/sqrt(5) is right."""
    assert ByStaleness(1.0, 0.5).weigh(update(), None, 4) == pytest.approx(1 / math.sqrt(5))
