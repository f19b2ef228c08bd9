"""Whole runs whose models travel in packets: real bytes, the same bytes again, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metis.codecs.dense import Dense
from metis.codecs.ternary import Ternary
from metis.config import Config, load
from metis.core.codec import Published
from metis.core.community import CachedAverage, RoundAverage
from metis.core.controller import Controller
from metis.core.errors import ConfigError, Interrupted
from metis.core.events import Arrived, Evaluate, Joined, Publish, Scored
from metis.core.pacing import Async
from metis.core.types import (
    ClassCounts,
    Layout,
    LearnerId,
    Model,
    Profile,
    Snapshot,
    Sparse,
    Tensor,
    Update,
    dense,
    frozen,
)
from metis.core.weighting import ByValidation
from metis.runtime.journal import Record, read_journal
from metis.runtime.post import Mail, Post
from metis.runtime.replay import replay
from metis.runtime.run import resume, run
from metis.runtime.simulate import Simulation
from tests.runtime.test_run import StopAfter, assert_same_run, small, without_wall

UPLOADS: dict[str, dict[str, Any]] = {
    "float16": {"codec": "float16"},
    "int8": {"codec": "int8", "error_feedback": True},
    "stc": {"codec": "stc", "sparsity": 0.05},
    "sstc": {"codec": "sstc", "sparsity": 0.05, "kernels": 0.25, "error_feedback": True},
}
A, B = LearnerId("a"), LearnerId("b")


def packed(policy: str, upload: str, download: dict[str, Any] | None = None) -> Config:
    """A few learners with a small convolutional network."""
    return small(
        policy,
        model={"name": "digits_cnn"},
        horizon={"versions": 5},
        upload=UPLOADS[upload],
        download=download or {},
    )


def of_kind(path: Path, kind: str) -> list[Record]:
    return [record for record in read_journal(path / "journal.jsonl") if record["kind"] == kind]


@pytest.mark.parametrize(
    ("policy", "upload"),
    [
        ("sync-dvw", "sstc"),
        ("sync-fedavg", "int8"),
        ("async-dvw", "stc"),
        ("async-dvw", "float16"),
        ("fedbuff", "sstc"),
        ("fedasync", "stc"),
        ("fedadam", "stc"),
    ],
)
def test_a_replay_of_packets_gives_the_same_bytes(policy: str, upload: str, tmp_path: Path) -> None:
    run(packed(policy, upload, {"codec": "stc", "sparsity": 0.2}), tmp_path / "run")

    assert replay(tmp_path / "run").num_versions == 5


@pytest.mark.parametrize("policy", ["sync-dvw", "async-dvw", "fedbuff"])
def test_an_interrupted_run_with_packets_ends_as_if_it_had_not_been(
    policy: str, tmp_path: Path
) -> None:
    feedback = policy != "async-dvw"
    download = {"codec": "stc", "sparsity": 0.2, "error_feedback": feedback}
    config = packed(policy, "sstc", download)
    run(config, tmp_path / "whole")
    length = len(without_wall(tmp_path / "whole"))

    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(config, cut, listeners=(StopAfter(length // 3),))
    with pytest.raises(Interrupted):
        resume(cut, listeners=(StopAfter(2 * length // 3),))
    resume(cut)

    assert_same_run(tmp_path / "whole", cut)


@pytest.mark.parametrize("upload", UPLOADS)
def test_bytes_told_are_the_bytes_of_the_packets(upload: str, tmp_path: Path) -> None:
    result = run(packed("sync-fedavg", upload), tmp_path / "run")

    told = [record["bytes_up"] for record in of_kind(tmp_path / "run", "arrive")]
    packets = sorted((tmp_path / "run" / "updates").iterdir())
    assert sorted(told) == sorted(path.stat().st_size for path in packets)
    assert result.summary["bytes_up"] == sum(told) < len(told) * Dense(result.layout).num_bytes


def test_judges_that_hold_the_base_are_sent_the_packet_and_others_the_model(
    tmp_path: Path,
) -> None:
    run(packed("sync-dvw", "stc"), tmp_path / "sync")
    run(packed("async-dvw", "stc"), tmp_path / "async")

    for policy, in_packets in (("sync", True), ("async", False)):
        arrived = {r["task"]: r["bytes_up"] for r in of_kind(tmp_path / policy, "arrive")}
        asked = of_kind(tmp_path / policy, "evaluate")
        as_packet = [record["bytes_down"] == arrived[record["task"]] for record in asked]
        assert all(as_packet) if in_packets else not all(as_packet)
        dense_bytes = of_kind(tmp_path / policy, "task")[0]["bytes_down"]
        others = [r["bytes_down"] for r, small in zip(asked, as_packet, strict=True) if not small]
        assert all(num_bytes == dense_bytes for num_bytes in others)


def test_a_late_joiner_is_sent_a_snapshot_and_the_others_what_has_changed(tmp_path: Path) -> None:
    config = load(
        None,
        policy="async-fedavg",
        learners=6,
        model={"name": "digits_cnn"},
        groups={"fast": {"seconds_per_step": 0.05}, "slow": {"seconds_per_step": 0.15}},
        horizon={"versions": 30},
        download={"codec": "stc", "sparsity": 0.01},
        incidents=[
            {"at_seconds": 0.5, "learner": "learner-06", "kind": "join"},
            {"at_seconds": 2.0, "learner": "learner-02", "kind": "restart"},
        ],
    )
    result = run(config, tmp_path / "run")

    snapshot = Dense(result.layout).num_bytes
    by_learner: dict[str, list[tuple[float, int]]] = {}
    for record in of_kind(tmp_path / "run", "task"):
        by_learner.setdefault(record["learner"], []).append((record["at"], record["bytes_down"]))
    assert all(sent[0][1] == snapshot for sent in by_learner.values())
    assert all(num_bytes < snapshot / 5 for _, num_bytes in by_learner["learner-01"][1:])
    again = [num_bytes for at, num_bytes in by_learner["learner-02"] if at >= 2.0]
    assert again[0] == snapshot
    assert again[1] < snapshot / 5
    assert by_learner["learner-06"][0][0] == 0.5


def _after_versions(*lengths: int) -> tuple[Post, Mail]:
    """A snapshot takes 100 bytes; so many versions were published, in packets of such lengths."""
    layout = _layout()
    post, mail = Post(Ternary(layout, 0.1), snapshot_bytes=100), Mail()
    for version, length in enumerate(lengths, 1):
        post.publish(mail, version, b"." * length)
    return post, mail


def test_a_learner_is_sent_the_packets_it_lacks_or_a_snapshot_if_that_is_shorter() -> None:
    post, mail = _after_versions(30, 30, 30, 30)
    mail.holds = {A: (1, 1), B: (3, 3)}

    assert 1 not in mail.packets  # 120 bytes would be more than a snapshot
    assert post.to_learner(mail, A, 4).num_bytes == 90
    assert post.to_learner(mail, B, 4).num_bytes == 30
    assert post.to_learner(mail, B, 4).num_bytes == 0  # it has that one
    assert mail.holds == {A: (1, 4), B: (3, 4)}
    mail.holds = {A: (0, 0)}
    assert post.to_learner(mail, A, 4).num_bytes == 100
    assert post.to_learner(mail, B, 4).num_bytes == 100
    assert mail.holds == {A: (4, 4), B: (4, 4)}


def test_a_judge_is_sent_the_update_and_what_it_lacks_to_make_its_base() -> None:
    post, mail = _after_versions(30, 20, 10)
    mail.holds = {A: (1, 2)}

    assert post.to_judge(mail, A, 1, packet_bytes=5).num_bytes == 5
    assert post.to_judge(mail, A, 2, packet_bytes=5).num_bytes == 5
    assert post.to_judge(mail, A, 3, packet_bytes=5).num_bytes == 15
    assert mail.holds == {A: (1, 3)}
    assert post.to_judge(mail, A, 0, packet_bytes=5).num_bytes == 100  # before its snapshot
    assert post.to_judge(mail, B, 3, packet_bytes=5).num_bytes == 100  # holds nothing
    exact = Post(Dense(_layout()), snapshot_bytes=100)
    assert exact.to_judge(mail, A, 3, packet_bytes=100).num_bytes == 100


def test_what_a_judge_can_make_reaches_no_further_back_than_the_packets_kept() -> None:
    post, mail = _after_versions(40, 40)
    mail.holds = {A: (0, 2)}
    assert post.to_judge(mail, A, 0, packet_bytes=5).num_bytes == 5

    post.publish(mail, 3, b"." * 40)  # the first packet is forgotten, by both

    assert post.to_judge(mail, A, 0, packet_bytes=5).num_bytes == 100
    assert post.to_judge(mail, A, 1, packet_bytes=5).num_bytes == 5


def test_without_packets_every_task_brings_a_snapshot() -> None:
    post, mail = Post(Ternary(_layout(), 0.1), snapshot_bytes=100), Mail()

    assert [post.to_learner(mail, A, version).num_bytes for version in (0, 1, 1)] == [100, 100, 100]
    assert post.to_judge(mail, A, 1, packet_bytes=5).num_bytes == 5
    assert post.to_judge(mail, A, 0, packet_bytes=5).num_bytes == 100


def test_a_published_model_is_what_its_packet_says_and_follows_the_average() -> None:
    layout = _layout()
    codec = Ternary(layout, sparsity=0.25)
    published = Published(CachedAverage(), codec)
    rng = np.random.default_rng(1)
    current = frozen(np.zeros(layout.size))
    target = frozen(rng.normal(size=layout.size))
    published.fold(_update(A, target), 1.0, current)

    distances = []
    for _ in range(200):
        before, made = current, published.model(current)
        current = made.weights
        assert made.packet is not None
        assert dense(codec.decode(made.packet, before)).tobytes() == current.tobytes()
        distances.append(float(np.abs(current - target).max()))

    # What a packet leaves out is still in the average, so later ones bring it.
    assert distances[-1] < 0.05 * distances[0]


def test_each_of_two_versions_that_one_event_leads_to_carries_its_own_packet() -> None:
    """Two updates are judged; the scores of the first come last, so both are folded then."""
    layout = _layout()
    codec = Ternary(layout, sparsity=0.25)
    start = Snapshot(0, frozen(np.zeros(layout.size)))
    controller = Controller(
        Published(CachedAverage(), codec), ByValidation(), Async(), start, min_learners=2
    )
    for learner in (A, B):
        controller.handle(Joined(Profile(learner, num_examples=4, steps_per_epoch=1)))
    rng = np.random.default_rng(1)
    asked: dict[LearnerId, int] = {}
    for learner in (A, B):
        weights = frozen(rng.normal(size=layout.size))
        task = controller.task_of[learner]
        update = Update(learner, task, weights, 0, num_examples=4, num_steps=1)
        for command in controller.handle(Arrived(update)):
            assert isinstance(command, Evaluate)
            asked[command.learner] = command.evaluation
    right = ClassCounts(np.eye(2, dtype=np.int64))
    assert controller.handle(Scored(asked[B], right)) == []

    commands = controller.handle(Scored(asked[A], right))

    current = start.weights
    versions = [command for command in commands if isinstance(command, Publish)]
    assert [command.snapshot.version for command in versions] == [1, 2]
    for command in versions:
        assert command.packet is not None
        current = dense(codec.decode(command.packet, current))
        assert current.tobytes() == command.snapshot.weights.tobytes()


@pytest.mark.parametrize("error_feedback", [False, True])
def test_error_feedback_makes_up_for_what_rounds_left_out(error_feedback: bool) -> None:
    """Learners move all weights by one; without feedback the small ones are never sent."""
    layout = _layout()
    published = Published(
        RoundAverage(), Ternary(layout, sparsity=0.25, error_feedback=error_feedback)
    )
    current = first = frozen(np.zeros(layout.size))
    step = np.where(np.arange(layout.size) % 4 == 0, 1.0, 0.5).astype(np.float32)

    for _ in range(40):
        published.fold(_update(A, frozen(current + step)), 1.0, current)
        current = published.model(current).weights

    moved = (current - first) / (40 * step)
    weights = moved[:32]
    assert (weights.min() > 0.8) == error_feedback
    assert (weights.min() == 0.0) != error_feedback


def test_an_average_of_changes_is_the_average_of_the_models() -> None:
    layout = _layout()
    codec = Ternary(layout, sparsity=0.3)
    rng = np.random.default_rng(5)
    base = frozen(rng.normal(size=layout.size))
    sparse, whole = RoundAverage(), RoundAverage()
    backwards = RoundAverage()
    updates = []
    for name in "abcdefg":
        packet, _ = codec.encode(frozen(base + rng.normal(size=layout.size)), base)
        updates.append(_update(LearnerId(name), codec.decode(packet, base)))
    for weight, update in enumerate(updates, 1):
        sparse.fold(update, float(weight), base)
        whole.fold(_update(update.learner, dense(update.weights)), float(weight), base)
    for weight, update in reversed(list(enumerate(updates, 1))):
        backwards.fold(update, float(weight), base)

    found, right = sparse.model(base).weights, whole.model(base).weights
    assert found.tobytes() == backwards.model(base).weights.tobytes()
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6)
    touched = [u.weights.at for u in updates if isinstance(u.weights, Sparse)]
    untouched = np.setdiff1d(np.arange(32), np.concatenate(touched))
    assert len(untouched)
    assert found[untouched].tobytes() == base[untouched].tobytes()


def test_an_update_that_is_not_finite_fails_its_task_and_the_run_goes_on(tmp_path: Path) -> None:
    config = load(
        None,
        policy="sync-fedavg",
        learners=3,
        model={"name": "linear"},
        upload={"codec": "stc"},
        horizon={"versions": 2},
    )
    finish = Simulation._offer

    def broken(self: Simulation, run: Any) -> None:
        if run.task.number == 2:
            trained = self.learners.finish
            self.learners.finish = lambda learner: frozen(trained(learner) * np.nan)  # type: ignore[method-assign]
            finish(self, run)
            self.learners.finish = trained  # type: ignore[method-assign]
        else:
            finish(self, run)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Simulation, "_offer", broken)
        run(config, tmp_path / "run")

    failed = of_kind(tmp_path / "run", "fail")
    assert [record["task"] for record in failed] == [2]
    assert "not finite" in failed[0]["reason"]
    assert len(of_kind(tmp_path / "run", "version")) == 2


def test_feedback_on_downloads_is_refused_where_it_would_count_twice(tmp_path: Path) -> None:
    config = load(None, policy="async-fedavg", download={"codec": "stc", "error_feedback": True})

    with pytest.raises(ConfigError, match=r"download\.error_feedback: async-fedavg keeps whole"):
        run(config)


def _layout() -> Layout:
    return Layout((Tensor("weight", (4, 8), "dense", 0), Tensor("bias", (4,), "plain", 32)))


def _update(learner: LearnerId, weights: Model) -> Update:
    return Update(learner, 1, weights, base_version=0, num_examples=1, num_steps=1)
