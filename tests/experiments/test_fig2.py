"""Figure 2: the networks it is of, and federations that do not fit into memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metis.core.errors import RunError
from metis.experiments import fig2
from metis.experiments.cells import Setting
from metis.experiments.study import Choice
from metis.models import build
from metis.training.flat import layout_of


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("resnet50_cifar", (3, 32, 32), 100), ("resnet50", (3, 224, 224), 1000)],
)
def test_sizes_are_those_of_the_networks(name: str, shape: tuple[int, ...], classes: int) -> None:
    network = build(name, shape, classes, seed=0)

    assert fig2.NETWORKS[name].parameters == sum(one.numel() for one in network.parameters())
    assert fig2.NETWORKS[name].values == layout_of(network).size


def test_the_figure_is_of_the_papers_network_and_of_the_large_one() -> None:
    networks, learners, _ = fig2.SIZES["full"]

    assert networks == tuple(fig2.NETWORKS) == ("resnet50_cifar", "resnet50")
    assert (min(learners), max(learners)) == (10, 1000)


def test_a_federation_never_takes_more_memory_than_there_may_be() -> None:
    for name in fig2.NETWORKS:
        values = fig2.NETWORKS[name].values
        for learners in (10, 1000):
            models = fig2.different_models(values, learners)
            assert 2 <= models <= learners
            assert 4 * values * models <= fig2.MOST_BYTES
    assert fig2.different_models(768_084, 1000) == 1000
    assert fig2.different_models(25_610_152, 1000) == 39


def test_learners_that_share_models_are_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fig2, "NETWORKS", {"resnet50_cifar": fig2.Network(900, 1000)})
    monkeypatch.setattr(fig2, "MOST_BYTES", 4 * 1000 * 15)

    text = fig2.report(Setting(tmp_path, scale="smoke"), Choice()).text

    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    (ten, forty) = [line[1:6] for line in lines if line[1:2] == ["resnet50_cifar"]]
    assert ten == ["resnet50_cifar", "900", "1,000", "10", "10"]
    assert forty == ["resnet50_cifar", "900", "1,000", "40", "15"]
    assert "From 40 learners on, those of resnet50_cifar share so many models" in text


def test_a_measurement_of_other_columns_is_refused(tmp_path: Path) -> None:
    old = {"parameters": 759_540, "learners": 10, "cached": 0.1, "without": 0.2}
    kept = {"scale": "smoke", "device": "a", "commit": "b", "rows": [old]}
    (tmp_path / "fig2.json").write_text(json.dumps(kept))

    with pytest.raises(RunError, match=r"is no measurement of Figure 2.*remove it"):
        fig2.report(Setting(tmp_path, scale="smoke"), Choice())
