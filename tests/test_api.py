"""`metis.simulate` as a user calls it, rightly and wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import metis
from metis.core.errors import Interrupted
from tests.runtime.test_run import StopAfter, assert_same_run


def points(**changes: Any) -> metis.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    values: dict[str, Any] = {
        "x_train": x[:180],
        "y_train": y[:180],
        "x_test": x[180:],
        "y_test": y[180:],
        "num_classes": 3,
    }
    return metis.Dataset("points", **{**values, **changes})


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))


SMALL: dict[str, Any] = {
    "policy": "async-dvw",
    "learners": 4,
    "partition": {"sizes": "uniform", "classes": "iid"},
    "horizon": {"seconds": 4.0},
}


def test_a_module_and_a_dataset_of_ones_own_run_and_come_back() -> None:
    data, mine = points(), net()

    result = metis.simulate(model=net(), data=data, **SMALL)

    result.load_into(mine)
    with torch.no_grad():
        predicted = mine(torch.from_numpy(data.x_test)).argmax(dim=1).numpy()
    assert (predicted == data.y_test).mean() == pytest.approx(result.final_accuracy)
    assert result.best_accuracy > result.curve[0][2]


def test_lists_float_labels_and_numpy_numbers_are_taken() -> None:
    data = points()
    again = points(
        x_train=data.x_train.tolist(),
        y_train=data.y_train.astype(np.float64),
        num_classes=np.int64(3),
    )

    assert again.digest == data.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.full(180, 0.5)}, "whole class numbers"),
        ({"y_train": np.zeros((180, 3))}, "one number for each example"),
        ({"y_train": ["a"] * 180}, "one number for each example"),
        ({"y_train": np.full(180, 7)}, "labels span 7..7"),
        ({"y_train": np.zeros(179, int)}, "180 train inputs but 179 train targets"),
        ({"x_train": np.full((180, 3), np.nan)}, "x_train holds values that are not finite"),
        ({"x_test": np.zeros((60, 4))}, "test inputs"),
        ({"x_test": np.array([["a"] * 3] * 60)}, "x_test must hold numbers"),
        ({"x_train": np.zeros(180)}, "examples first"),
        ({"num_classes": 3.0}, "must be a whole number"),
        ({"num_classes": 10**9}, "at most 100,000"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, int)}, "no test examples"),
        ({"owners": ["a"]}, "1 owners for 180"),
    ],
)
def test_a_dataset_that_will_not_do_says_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(metis.MetisError, match=message):
        points(**changes)


class ReturnsAPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), x


class LooksUpAKey(ReturnsAPair):
    def forward(self, x: torch.Tensor) -> Any:
        raise KeyError("no such key")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": net(5)}, "gives outputs of shape"),
        ({"model": ReturnsAPair()}, "returns a tuple"),
        ({"model": LooksUpAKey()}, "KeyError"),
        ({"model": net().double()}, "float32|float"),
        ({"model": "mlp"}, "must be a torch.nn.Module, not a str"),
        ({"data": "digits"}, "must be a metis.Dataset, not a str"),
        ({"data": (1, 2)}, "must be a metis.Dataset, not a tuple"),
        ({"policy": "async-dwv"}, "did you mean 'async-dvw'"),
        ({"learner": 3}, "did you mean 'learners'"),
        ({"config": {"policy": "async-dvw"}}, "config is the path of a TOML file"),
        ({"learners": 1000}, "1000 learners cannot share 180 examples"),
        ({"validation": {"self_score": "exclude"}, "learners": 1}, "nobody to judge"),
        (
            {
                "policy": "fedasync",
                "incidents": [{"at_seconds": 1, "learner": "learner-01", "kind": "withdraw"}],
            },
            "none can be withdrawn",
        ),
    ],
)
def test_a_wrong_argument_is_a_metis_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(metis.MetisError, match=message):
        metis.simulate(**{**SMALL, "model": net(), "data": points(), **values})


@pytest.mark.parametrize("engine", ["loop", "stack", "processes"])
def test_a_module_that_is_passed_keeps_its_weights_so_a_second_run_is_the_same(
    engine: str,
) -> None:
    mine = net()
    before = {name: value.clone() for name, value in mine.state_dict().items()}

    one, other = (
        metis.simulate(model=mine, data=points(), engine=engine, **SMALL) for _ in range(2)
    )

    assert one.records[0]["initial"] == other.records[0]["initial"]
    assert one.weights.tobytes() == other.weights.tobytes()
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
    assert all(value.device.type == "cpu" for value in mine.state_dict().values())


def test_a_recipe_is_passed_by_value_by_name_or_by_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import metis\n\n\ndef recipe():\n"
        "    return metis.Recipe(metis.RoundAverage(), metis.ByExamples(), metis.Sync())\n"
    )
    values = {**SMALL, "policy": "sync-fedavg"}
    named = metis.simulate(model=net(), data=points(), **values)
    mine = metis.Recipe(metis.RoundAverage(), metis.ByExamples(), metis.Sync())

    for policy in (mine, f"{tmp_path}/mine.py:recipe"):
        made = metis.simulate(model=net(), data=points(), **{**values, "policy": policy})
        assert made.weights.tobytes() == named.weights.tobytes()


def test_a_run_of_ones_own_parts_is_resumed_with_the_same_parts(tmp_path: Path) -> None:
    from metis.config import load
    from metis.runtime.run import run

    metis.simulate(model=net(), data=points(), out=str(tmp_path / "whole"), **SMALL)
    cut = tmp_path / "cut"
    with pytest.raises(Interrupted):
        run(load(None, **SMALL), cut, model=net(), data=points(), listeners=(StopAfter(40),))

    with pytest.raises(metis.MetisError, match="passed in Python"):
        metis.simulate(resume=str(cut))
    with pytest.raises(metis.MetisError, match="another data"):
        metis.simulate(resume=str(cut), model=net(), data=points(y_test=np.zeros(60, int)))
    metis.simulate(resume=str(cut), model=net(), data=points())

    assert_same_run(tmp_path / "whole", cut)
