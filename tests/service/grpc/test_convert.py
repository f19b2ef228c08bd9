"""Orders as messages and back: nothing is lost, and nonsense is refused."""

from __future__ import annotations

import math

import pytest

from metis.core.errors import ModelError
from metis.service.connection import PacketOf, SnapshotOf, TrainOrder
from metis.service.grpc.messages import order_message, order_of

ORDER = TrainOrder(
    task=7,
    version=3,
    committed_steps=40,
    max_steps=12,
    ordinal=2,
    rate_factor=0.1 + 0.2,  # a number that a float32 would round
    all_examples=True,
    items=(SnapshotOf(2), PacketOf(3)),
)


def test_an_order_to_train_comes_back_as_it_was_sent() -> None:
    assert order_of(order_message(ORDER)) == ORDER


@pytest.mark.parametrize("factor", [0.0, -0.5, math.inf, math.nan])
def test_a_factor_that_no_learning_rate_can_have_is_refused(factor: float) -> None:
    message = order_message(ORDER)
    message.train.rate_factor = factor

    with pytest.raises(ModelError, match=r"learning rate's factor of .*must be above 0"):
        order_of(message)
