"""Latest models on disk: a mapping like any other, that a checkpoint can rely on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from metis.core.community import CachedAverage
from metis.core.errors import RunError
from metis.core.types import LearnerId, Update, Vector, frozen
from metis.store.latest import STORED, LatestOnDisk
from metis.store.pack import Names, read_packed, write_packed

A, B, C = LearnerId("a"), LearnerId("b"), LearnerId("c")


def vector(*values: float) -> Vector:
    return frozen(np.array(values, np.float32))


def opened(directory: Path) -> LatestOnDisk:
    models = LatestOnDisk("")
    models.open(directory)
    return models


def files(directory: Path) -> int:
    return len(list(directory.iterdir()))


def test_a_model_comes_back_read_only_and_as_it_was(tmp_path: Path) -> None:
    models = opened(tmp_path / "latest")
    models[A] = vector(1, np.nextafter(np.float32(2), np.float32(3)), -0.0)

    assert (
        models[A].tobytes() == vector(1, np.nextafter(np.float32(2), np.float32(3)), -0.0).tobytes()
    )
    assert not models[A].flags.writeable
    assert models.get(B) is None
    assert (list(models), len(models)) == ([A], 1)


def test_a_model_that_is_replaced_stays_readable_for_whoever_has_it(tmp_path: Path) -> None:
    models = opened(tmp_path)
    models[A] = vector(1, 2)
    before = models[A]
    models[A] = vector(3, 4)

    assert before.tolist() == [1, 2]
    assert models[A].tolist() == [3, 4]
    assert files(tmp_path) == 1
    del models[A]
    assert files(tmp_path) == 0
    assert before.tolist() == [1, 2]


def test_what_a_checkpoint_names_is_there_whatever_was_folded_since(tmp_path: Path) -> None:
    models = opened(tmp_path / "latest")
    models[A], models[B] = vector(1), vector(2)
    models.sync()
    write_packed(tmp_path / "checkpoint", models, Names(STORED))
    models.pin()
    for value in (10, 20, 30):
        models[A] = vector(value)
    del models[B]
    models[C] = vector(5)
    assert files(tmp_path / "latest") == 4

    again = read_packed(tmp_path / "checkpoint", Names(STORED))
    (tmp_path / "latest").rename(tmp_path / "moved")
    again.open(tmp_path / "moved")

    assert {learner: again[learner].tolist() for learner in again} == {A: [1], B: [2]}
    assert files(tmp_path / "moved") == 2  # the rest came after the checkpoint


def test_the_next_checkpoint_lets_go_of_what_the_last_one_named(tmp_path: Path) -> None:
    models = opened(tmp_path)
    for value in range(5):
        models[A], models[B] = vector(value), vector(-value)
        models.sync()
        models.pin()
        assert files(tmp_path) == 2
    models[A] = vector(9)
    assert files(tmp_path) == 3


def test_what_an_earlier_life_left_is_dropped(tmp_path: Path) -> None:
    opened(tmp_path)[A] = vector(1)

    assert files(tmp_path) == 1
    assert len(opened(tmp_path)) == 0
    assert files(tmp_path) == 0


def test_a_full_disk_is_told_and_leaves_the_model_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = opened(tmp_path)
    models[A] = vector(1)

    def write(path: Path, mode: str, buffering: int) -> IO[bytes]:
        path.write_bytes(b"ha")  # as much as there is room for
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr("metis.store.latest.open", write, raising=False)
        with pytest.raises(RunError, match=r"cannot write .*2\.latest: No space left on device"):
            models[A] = vector(2)

    assert models[A].tolist() == [1]
    assert files(tmp_path) == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RunError, match=r"cannot write to .*file/latest: Not a directory"):
        opened(tmp_path / "file" / "latest")


def test_a_file_that_was_cut_or_taken_away_is_named(tmp_path: Path) -> None:
    models = opened(tmp_path)
    models[A], models[B], models[C] = vector(1, 2), vector(3, 4), vector(5, 6)
    (tmp_path / "1.latest").write_bytes(b"1234")
    (tmp_path / "2.latest").unlink()
    (tmp_path / "3.latest").write_bytes(b"")

    with pytest.raises(RunError, match=r"1\.latest has 4 bytes; it is no model of 2 values"):
        models[A]
    with pytest.raises(RunError, match=r"cannot read .*2\.latest: .*No such file"):
        models[B]
    with pytest.raises(RunError, match=r"cannot read .*3\.latest: cannot mmap an empty file"):
        models[C]


def test_a_cache_on_disk_gives_the_bytes_of_one_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    caches = [CachedAverage(7), CachedAverage(7, opened(tmp_path))]
    base = vector(*range(300))
    for k in range(400):
        learner, weight = LearnerId(str(rng.integers(70))), float(rng.random())
        model = frozen(rng.normal(size=300))
        chance = rng.random()
        found = []
        for cache in caches:
            if chance < 0.1:
                cache.drop(learner)
            else:
                update = Update(learner, k, model, 0, num_examples=1, num_steps=1)
                cache.fold(update, weight if chance < 0.9 else 0.0, base)
            if chance < 0.8:
                found.append((cache.model(base).weights.tobytes(), cache.repaired))
            if chance < 0.2:
                cache.reject(base)
        assert len(set(found)) <= 1
    assert files(tmp_path) == len(caches[0].latest) > 20
