"""The same federation in virtual and in real time comes to the same models, byte for byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from metis.codecs.choose import codec_of
from metis.config import Config, load
from metis.core.events import Arrived, Command, Event
from metis.core.types import LearnerId, Snapshot, Task, Update, Vector, dense
from metis.deploy.equip import equip
from metis.learn.threads import num_threads
from metis.live.agree import agreed, digest_of
from metis.live.desk import Terms
from metis.live.direct import DirectLine
from metis.live.ledger import Ledger
from metis.live.library import Library
from metis.live.line import Line, TrainOrder
from metis.live.service import Service
from metis.live.site import Memory, Site
from metis.runtime.assemble import Parts, assemble, lay_out
from metis.runtime.compose import controller_of
from metis.runtime.journal import Journal, Record
from metis.runtime.run import run
from metis.store.packets import InMemory
from metis.transport.dial import RpcLine
from metis.transport.rpc import Opening, serve


def federation(policy: str, **values: Any) -> Config:
    chosen: dict[str, Any] = {
        "policy": policy,
        "learners": 4,
        "engine": "loop",
        "threads": 1,
        "model": {"name": "linear"},
        "train": {"epochs": 1, "keep_momentum": True},
        "horizon": {"versions": 4},
    }
    return load(None, **{**chosen, **values})


def service_of(parts: Parts, journal: Journal) -> Service:
    config = parts.config
    bench = parts.bench(parts.module(), parts.shares)
    start = Snapshot(0, bench.flat.to_vector())
    controller = controller_of(config, start, bench.layout, parts.dataset.num_classes)
    terms = Terms(
        layout=bench.layout,
        config=digest_of(agreed(config)),
        upload=codec_of(config.upload, bench.layout),
        lease_seconds=config.train.lease_seconds,
        deadline_seconds=config.validation.deadline_seconds,
        latest_models="memory",
        max_versions=config.horizon.versions,
        num_classes=parts.dataset.num_classes,
    )
    return Service(terms, Ledger(controller), InMemory(), journal, time.monotonic)


def lived(
    config: Config,
    over: str = "memory",
    note: Callable[[Task, Update], None] = lambda task, update: None,
) -> tuple[Service, list[Record]]:
    """Run a federation in this process, a thread or three for each learner."""
    records: list[Record] = []
    parts = lay_out(config)
    service = service_of(parts, Journal(None, (records.append,)))
    tell = service._desk.tell

    def noted(event: Event, **more: object) -> list[Command]:
        if isinstance(event, Arrived):
            note(service.ledger.controller.tasks[event.update.task], event.update)
        return tell(event, **more)

    service._desk.tell = noted  # type: ignore[method-assign]
    with ExitStack() as stack:
        port = 0
        if over == "rpc":
            server, port = serve(service, Opening("127.0.0.1:0", len(parts.shares)))
            stack.callback(lambda: server.stop(grace=None).wait())
        sites = []
        for learner in parts.shares:
            equipment, mirror = equip(parts, learner, digest_of(agreed(parts.config)))
            line: Line = DirectLine(service, learner)
            if over == "rpc":
                line = RpcLine(f"127.0.0.1:{port}", learner)
                stack.callback(line.close)
            sites.append(Site(equipment, line, mirror, Memory()))
        _attend(sites)
    return service, records


def _attend(sites: list[Site]) -> None:
    threads = [threading.Thread(target=site.attend, daemon=True) for site in sites]
    with num_threads(1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)


def versions(records: list[Record]) -> list[tuple[Any, ...]]:
    """Each version: its digest, and who was folded with which weight."""
    return [
        (r["digest"], sorted((f["learner"], f["weight"]) for f in r["folds"]))
        for r in records
        if r["kind"] == "version"
    ]


CODECS: dict[str, dict[str, Any]] = {
    "dense": {},
    "packed": {
        "upload": {"codec": "stc", "sparsity": 0.1, "error_feedback": True},
        "download": {"codec": "int8", "error_feedback": True},
    },
}


@pytest.mark.parametrize("over", ["memory", "rpc"])
@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("policy", ["sync-fedavg", "sync-dvw", "fedadam"])
def test_a_synchronous_federation_is_the_same_live_as_simulated(
    policy: str, codecs: str, over: str
) -> None:
    config = federation(policy, **CODECS[codecs])

    simulated = run(config)
    service, records = lived(config, over)

    assert service.over == "versions"
    assert versions(records) == versions(simulated.records)
    assert service.ledger.controller.current.weights.tobytes() == simulated.weights.tobytes()


@pytest.mark.parametrize("over", ["memory", "rpc"])
@pytest.mark.parametrize("schedule", ["step", "plateau"])
def test_a_site_trains_at_the_rate_that_its_task_says(schedule: str, over: str) -> None:
    falling = {"schedule": schedule, "schedule_versions": 1, "schedule_improvement": 9.0}
    config = federation("sync-dvw", train={"epochs": 1, **falling})

    simulated = run(config)
    service, records = lived(config, over)

    assert sorted({r["rate_factor"] for r in records if r["kind"] == "task"})[-2:] == [0.1, 1.0]
    assert versions(records) == versions(simulated.records)
    assert service.ledger.controller.current.weights.tobytes() == simulated.weights.tobytes()


def test_sites_train_on_what_they_held_out_in_the_last_rounds() -> None:
    ends = {}
    for last in (2, None):
        config = federation("sync-dvw", validation={"fraction": 0.3, "release_last": last})
        simulated = run(config)
        service, records = lived(config, "rpc")
        assert service.over == "versions"
        assert versions(records) == versions(simulated.records)
        full = [r["all_examples"] for r in records if r["kind"] == "task"]
        assert full == [last is not None and n >= 8 for n in range(16)]
        ends[last] = simulated.weights.tobytes()

    assert ends[2] != ends[None]


NORMED = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)]
    return nn.Sequential(*head)
"""


def test_statistics_that_stay_at_their_site_come_to_the_same_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normed.py").write_text(NORMED)
    ends = {}
    start_of = Library.start_of

    def slowly(library: Library, order: TrainOrder) -> Vector:
        if order.ordinal > 1 and order.task % 4 == 1:
            time.sleep(0.5)  # the others are through meanwhile, and ask this one to judge them
        return start_of(library, order)

    monkeypatch.setattr(Library, "start_of", slowly)
    for statistics in ("local", "shared"):
        config = federation(
            "sync-dvw",
            model={"name": f"{tmp_path}/normed.py:make"},
            train={"epochs": 1, "batch_norm_statistics": statistics},
        )
        simulated = run(config)
        _, records = lived(config)
        assert versions(records) == versions(simulated.records)
        ends[statistics] = simulated.weights.tobytes()

    assert ends["local"] != ends["shared"]


@pytest.mark.parametrize("over", ["memory", "rpc"])
@pytest.mark.parametrize("policy", ["async-dvw", "async-fedavg", "fedbuff", "fedasync"])
def test_an_asynchronous_federation_lives_to_its_last_version(policy: str, over: str) -> None:
    config = federation(policy, horizon={"versions": 12}, upload=CODECS["packed"]["upload"])

    service, records = lived(config, over)

    assert service.ledger.controller.current.version >= 12  # one event may bring two versions
    assert [r["kind"] for r in records if r["kind"] in ("refuse", "fail", "task-expired")] == []


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("policy", ["async-dvw", "async-fedavg", "fedasync"])
def test_under_the_order_in_which_they_arrived_live_the_simulators_learners_send_the_same(
    policy: str, codecs: str
) -> None:
    config = federation(policy, horizon={"versions": 12}, upload=CODECS[codecs].get("upload", {}))
    arrived: list[tuple[Task, Update]] = []
    service, _ = lived(config, note=lambda task, update: arrived.append((task, update)))
    simulated = assemble(config)
    learners, codec = simulated.learners, codec_of(config.upload, service.terms.layout)
    left_out: dict[LearnerId, Vector | None] = {}

    with num_threads(1):
        for task, update in arrived:
            me, base = task.learner, task.start.weights
            learners.begin(task, with_loss=False)
            learners.expect(me, update.num_steps)
            learners.advance(me, update.num_steps)
            packet, left_out[me] = codec.encode(learners.finish(me), base, left_out.get(me))
            assert dense(codec.decode(packet, base)).tobytes() == dense(update.weights).tobytes()

    assert len(arrived) >= 12
    assert len({task.start.version for task, _ in arrived}) > 3


def test_a_site_that_is_started_again_goes_on_with_the_momentum_it_had() -> None:
    parts = lay_out(federation("sync-fedavg"))
    service = service_of(parts, Journal(None))
    memory, learner = Memory(), LearnerId("learner-01")
    sites = []
    for name in parts.shares:
        equipment, mirror = equip(parts, name, digest_of(agreed(parts.config)))
        kept = memory if name == learner else Memory()
        sites.append(Site(equipment, DirectLine(service, name), mirror, kept))
    _attend(sites)

    again, mirror = equip(parts, learner, digest_of(agreed(parts.config)))
    Site(again, DirectLine(service, learner), mirror, memory)

    state: Any = again.trainer.state()
    before: Any = memory.learner_state
    assert list(state["kept"]) == [learner]
    assert repr(state["kept"]) == repr(before["kept"])
