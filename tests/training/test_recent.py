from __future__ import annotations

import numpy as np
import torch

from metis.core.types import frozen
from metis.training.recent import RecentTensors


def test_a_tensor_is_found_by_the_very_vector_it_was_put_with() -> None:
    recent = RecentTensors(2)
    one, equal = frozen(np.ones(3)), frozen(np.ones(3))
    tensor = torch.zeros(1)

    recent.put(one, tensor)

    assert recent.get(one) is tensor
    assert recent.get(equal) is None


def test_the_oldest_tensor_goes_when_there_are_too_many() -> None:
    recent = RecentTensors(2)
    vectors = [frozen(np.full(3, number)) for number in range(3)]

    for vector in vectors:
        recent.put(vector, torch.from_numpy(vector.copy()))

    assert [recent.get(vector) is None for vector in vectors] == [True, False, False]
