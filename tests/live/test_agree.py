"""What a site and its controller must have in common, and how a difference is told."""

from __future__ import annotations

from typing import Any

import pytest

from metis.config import load
from metis.core.errors import ConfigError
from metis.live.agree import agreed, differences, digest_of, read_agreed


def test_what_is_a_sites_own_business_is_not_agreed_on() -> None:
    one = load(None, data={"name": "digits"}, device="cpu")
    other = load(
        None,
        data={"name": "breast_cancer", "directory": "/elsewhere"},
        model={"name": "linear"},
        device="cuda",
        threads=7,
        output={"keep_updates": True},
        live={"calls_at_once": 5},
    )

    assert agreed(one) == agreed(other)


SLOW_LINK = {"fast": {"latency_seconds": 0.1, "seconds_per_step": 9.0}, "slow": {}}


@pytest.mark.parametrize(
    "values",
    [
        {"precision": "float32"},
        {"memory_gib": 1.0},
        {"engine": "loop"},
        {"costs": {"profile": "paper"}},
        {"groups": SLOW_LINK},
        {"incidents": [{"at_seconds": 9.0, "learner": "learner-01", "kind": "crash"}]},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_each_computes_for_itself_or_exists_in_virtual_time_keeps_no_two_sites_apart(
    values: dict[str, Any],
) -> None:
    assert agreed(load(None, **values)) == agreed(load(None))


@pytest.mark.parametrize(
    "values",
    [
        {"groups": {"fast": {"vc_tomb": 1}, "slow": {}}},
        {"groups": {"fast": {}, "phone": {}}},
        {"partition": {"alpha": 0.1}},
        {"validation": {"fraction": 0.2}},
        {"download": {"codec": "int8"}},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_the_others_would_notice_must_be_agreed_on(values: dict[str, Any]) -> None:
    assert agreed(load(None, **values)) != agreed(load(None))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"policy": "sync-dvw"}, "policy is"),
        ({"train": {"epochs": 2}}, "train.epochs is 2 here, 4 at the controller"),
        ({"seed": 7}, "seed is 7 here, 1990 at the controller"),
        ({"upload": {"codec": "stc"}}, 'upload.codec is "stc" here, "dense" at the controller'),
    ],
)
def test_a_difference_is_told_by_its_key_with_both_values(
    values: dict[str, Any], sentence: str
) -> None:
    ours, theirs = agreed(load(None, **values)), agreed(load(None))

    assert digest_of(ours) != digest_of(theirs)
    (found,) = differences(ours, theirs)
    assert sentence in found


def test_a_key_that_only_one_side_sets_is_told_too() -> None:
    ours, theirs = agreed(load(None, train={"batch_size": 16})), agreed(load(None))

    assert differences(ours, theirs) == [
        "train.batch_size is 16 here, not set at the controller",
    ]


def test_an_agreement_reads_back_to_the_same_agreement() -> None:
    text = agreed(load(None, policy="fedbuff", learners=7, recipe={"buffer_size": 3}))

    assert agreed(read_agreed(text)) == text


def test_an_agreement_that_is_none_is_an_error_that_says_whose() -> None:
    with pytest.raises(ConfigError, match="the controller's config: not valid TOML"):
        read_agreed("policy = ")
    with pytest.raises(ConfigError, match="unknown key"):
        read_agreed("polcy = 'x'")
