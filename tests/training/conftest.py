"""Learners that are closed when a test ends, whatever happens in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import pytest
import torch

from tests.training.federation import ENGINES, Federate


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What is closed when the test ends."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=ENGINES)
def federation(request: pytest.FixtureRequest, opened: ExitStack) -> Federate:
    """Each way to compute learners in turn."""
    return Federate(request.param, opened)


@pytest.fixture(params=product(ENGINES, repeat=2), ids="-then-".join)
def federations(request: pytest.FixtureRequest, opened: ExitStack) -> tuple[Federate, Federate]:
    """Each way to begin, with each way to go on."""
    begun, gone_on = request.param
    return Federate(begun, opened), Federate(gone_on, opened)
