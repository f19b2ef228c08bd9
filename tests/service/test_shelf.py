"""What a controller has ready for its sites."""

from __future__ import annotations

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.core.errors import GoneError
from metis.core.types import Layout, TensorSpec, read_only
from metis.service.downloads import Downloads
from metis.storage.packets import InMemory

LAYOUT = Layout((TensorSpec("w", (600_000,), "plain", 0),))


def test_all_who_start_from_a_version_are_given_the_same_views_of_it() -> None:
    shelf = Downloads(InMemory(), LAYOUT)
    model = read_only(np.arange(LAYOUT.size, dtype=np.float32))
    shelf.offer({3: model})

    one, other = list(shelf.snapshot_pieces(3)), list(shelf.snapshot_pieces(3))

    assert len(one) > 2
    assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))
    assert Dense(LAYOUT).decode(b"".join(one)).tobytes() == model.tobytes()


def test_a_version_that_is_not_offered_any_more_is_gone() -> None:
    shelf = Downloads(InMemory(), LAYOUT)
    shelf.offer({3: read_only(np.zeros(LAYOUT.size))})
    list(shelf.snapshot_pieces(3))
    shelf.offer({4: read_only(np.ones(LAYOUT.size))})

    with pytest.raises(GoneError, match="version 3"):
        shelf.snapshot_pieces(3)
