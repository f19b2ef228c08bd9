"""The public names of `metis`: what a user composes with, and nothing by accident."""

from __future__ import annotations

import inspect
from dataclasses import fields

import metis
from metis.config import Config

NAMES = """
    simulate load_into recipe
    Recipe Choices
    Community RoundAverage CachedAverage Mixing Buffer Stepped NextModel
    ServerStep FedAvgM Adaptive
    Weighting Judges ByExamples ByValidation ByStaleness Equal
    Pacing Rounds Continuous Sync SemiSync Async Buffered
    Trigger Progress AfterEpochs ValidationCycle WhenStale AnyOf
    Update Counts Vector LearnerId
    Dataset Advice Learner Values MetisError
"""


def test_the_public_names_are_these() -> None:
    assert metis.__all__ == sorted(metis.__all__)
    assert set(metis.__all__) == set(NAMES.split())
    assert all(getattr(metis, name) is not None for name in metis.__all__)


def test_every_public_class_and_function_says_what_it_is() -> None:
    for name in metis.__all__:
        value = getattr(metis, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def test_simulate_takes_every_key_of_a_config() -> None:
    named = {"policy", "model", "data"}

    assert set(metis.Values.__annotations__) | named == {one.name for one in fields(Config)}
