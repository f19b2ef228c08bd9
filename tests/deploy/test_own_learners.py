"""Sites that bring a model and data of their own, and what they remember."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import metis
from metis.codecs.dense import Dense
from metis.config import Config, load
from metis.core.errors import JournalError
from metis.core.types import Layout, LearnerId, Snapshot, Tensor
from metis.deploy.equip import Learner, equip_own
from metis.deploy.found import found
from metis.deploy.memory_file import MemoryFile
from metis.live.direct import DirectLine
from metis.live.line import Delivery
from metis.live.site import Memory, Site
from metis.runtime.replay import replay
from metis.store.weights import save_first
from metis.training.flat import layout_of, vector_of
from metis.training.threads import num_threads


def own(seed: int, group: str = "site") -> Learner:
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * chance.normal(size=60) > 0).astype(np.int64)
    data = metis.Dataset(f"site {seed}", x[:50], y[:50], x[50:], y[50:], num_classes=2)
    return Learner(nn.Linear(4, 2), data, group)


def federation(**values: object) -> Config:
    chosen = {
        "policy": "async-dvw-adaptive",
        "learners": 2,
        "horizon": {"versions": 6},
        "train": {"max_epochs": 3},
        "output": {"keep_updates": True},
    }
    config: Config = load(None, (), **{**chosen, **values})
    return config


def test_sites_with_data_of_their_own_train_one_model_that_replays(tmp_path: Path) -> None:
    config = federation()
    first = own(0).model
    save_first(tmp_path / "first.safetensors", vector_of(first), layout_of(first), 2)
    service = found(tmp_path / "state", config, tmp_path / "first.safetensors")
    sites = []
    for number in (1, 2):
        name = LearnerId(f"hospital-{number}")
        equipment, mirror = equip_own(config, name, own(number))
        sites.append(Site(equipment, DirectLine(service, name), mirror, Memory()))
    threads = [threading.Thread(target=site.attend, daemon=True) for site in sites]
    with num_threads(1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    service.journal.close()

    assert not any(thread.is_alive() for thread in threads)
    assert service.over == "versions"
    assert replay(tmp_path / "state").num_versions == service.ledger.controller.current.version
    start = Snapshot(0, vector_of(first)).weights
    assert not np.array_equal(service.ledger.controller.current.weights, start)


def test_a_sites_group_gives_it_the_cycles_that_the_config_has_for_it() -> None:
    config = federation(groups={"ward": {"vc_tomb": 7, "vc_loss": 2.5}, "lab": {}})

    equipment, _ = equip_own(config, LearnerId("a"), own(1, "ward"))
    other, _ = equip_own(config, LearnerId("b"), own(1, "elsewhere"))

    assert "ValidationCycle(vc_loss=2.5, vc_tomb=7" in repr(equipment.trigger)
    assert repr(equipment.trigger) != repr(other.trigger)
    assert equipment.profile.group == "ward"
    assert equipment.profile.num_examples == 48  # of 50, five in a hundred are held out


@pytest.mark.parametrize("wrong", ["model", "data"])
def test_a_learner_of_something_else_is_refused_in_words(wrong: str) -> None:
    good = own(1)
    parts = {"model": good.model, "data": good.data, wrong: 7}

    with pytest.raises(metis.MetisError, match=r"metis\.Learner"):
        Learner(**parts)  # type: ignore[arg-type]


def test_a_memory_comes_back_and_that_of_another_federation_is_set_aside(tmp_path: Path) -> None:
    delivery = Delivery(7, 3, 10, 20, 0.5, None)
    memory = Memory([3, 4], np.ones(3, np.float32), {"kept": {}}, (delivery, b"packet"), 7)
    file = MemoryFile(tmp_path, "one", "site-a")
    file.keep(memory)

    again = file.read()
    other = MemoryFile(tmp_path, "another", "site-a").read()

    assert (again.cycles, again.answer, again.last_task) == ([3, 4], (delivery, b"packet"), 7)
    assert again.residual is not None
    assert again.residual.tolist() == [1.0, 1.0, 1.0]
    assert other == Memory()
    assert (tmp_path / "memory.old").exists()
    assert file.read() == Memory()


def test_an_answer_in_parts_is_remembered_as_the_bytes_it_was(tmp_path: Path) -> None:
    layout = Layout((Tensor("w", (3,), "plain", 0),))
    model = np.arange(3, dtype=np.float32)
    parts = Dense(layout).parts(model)
    file = MemoryFile(tmp_path, "one", "site-a")
    file.keep(Memory(answer=(Delivery(7, 3, 10, 20, 0.5, None), *parts)))

    answer = file.read().answer

    assert answer is not None
    assert b"".join(answer[1:]) == Dense(layout).encode(model, model)[0]


def test_a_damaged_memory_is_an_error_and_not_forgotten_silently(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path, "one", "site-a")
    file.keep(Memory())
    path = tmp_path / "memory.safetensors"
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(JournalError, match=r"memory\.safetensors"):
        file.read()
