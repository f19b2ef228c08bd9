"""Cells: what they ask for, where they lie, and that nothing published is without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from metis.core.errors import ConfigError
from metis.data.dataset import Dataset
from metis.experiments import (
    beliefs,
    cost,
    fig3,
    fig4,
    sstc,
    table1,
    table1_by_class,
    table2,
    table3,
    update_frequency,
    validation_size,
    wrong_labels,
)
from metis.experiments.cells import Cell, Horizon, Setting
from metis.experiments.published import ACCURACY
from metis.experiments.study import Choice
from metis.simulation.build import divide


def cell(setting: Setting, cluster: str, row: str, policy: str) -> Cell:
    (found,) = table1.GRID.cells(setting, Choice((cluster,), (row,), (policy,)))
    return found


def test_table_1_has_nine_rows_of_eleven_cells(tmp_path: Path) -> None:
    cells = table1.GRID.cells(Setting(tmp_path), Choice())

    assert len({one.name for one in cells}) == len(cells) == 9 * (3 + 8)


def test_every_published_number_has_a_cell(tmp_path: Path) -> None:
    cells = {
        (grid.name, one.cluster, one.row, one.policy)
        for grid in (table1.GRID, table2.GRID, table3.GRID)
        for one in grid.cells(Setting(tmp_path), Choice())
    }

    assert {key[:4] for key in ACCURACY} <= cells
    assert len(ACCURACY) == 9 * 10 + 6 * 4 + 3 * 4


def test_a_heterogeneous_cell_is_the_papers_federation(tmp_path: Path) -> None:
    config = cell(Setting(tmp_path), "heterogeneous", "powerlaw-3", "async-dvw").config

    assert config.group_sizes() == {"fast": 5, "slow": 5}
    assert [group.seconds_per_step for group in config.groups.values()] == [0.03, 0.3]
    assert (config.costs.profile, config.horizon.seconds) == ("paper", 14_000.0)
    assert (config.partition.sizes, config.partition.classes) == ("powerlaw", 3)
    assert (config.data.name, config.model.name, config.seed) == ("cifar10", "cifar_cnn", 1990)


def test_the_same_federations_can_be_had_with_data_for_a_laptop_under_a_name_of_their_own(
    tmp_path: Path,
) -> None:
    part = (("heterogeneous",), ("powerlaw-3",), ("async-dvw-adaptive",))
    (paper,) = table1.cells(Setting(tmp_path), Choice(*part))
    (small,) = table1.cells(Setting(tmp_path), Choice(*part, "fashion_mnist"))

    assert paper == cell(Setting(tmp_path), *(name for (name,) in part))
    assert small.name == "table1-fashion_mnist/heterogeneous/powerlaw-3/async-dvw-adaptive"
    ours, theirs = small.config, paper.config
    assert (ours.data.name, ours.model.name) == ("fashion_mnist", "mlp")
    assert (ours.groups, ours.costs, ours.horizon) == (theirs.groups, theirs.costs, theirs.horizon)
    assert ours.train.learning_rate == 0.05
    with pytest.raises(ConfigError, match="unknown data of table1 'fashion'"):
        table1.cells(Setting(tmp_path), Choice(data="fashion"))

    assert ours.train.momentum == 0.75
    assert ours.train.batch_size == 100

    (again,) = cost.cells(Setting(tmp_path), Choice(None, *part[1:], "fashion_mnist"))
    assert again == small
    rows = {one.row for one in cost.cells(Setting(tmp_path), Choice(data="fashion_mnist"))}
    assert rows == set(cost.ROWS)
    sizes = validation_size.cells(Setting(tmp_path), Choice(data="fashion_mnist"))
    assert {one.study for one in sizes} == {"validation-size-fashion_mnist"}
    assert {one.config.data.name for one in sizes} == {"fashion_mnist"}
    assert len({one.name for one in sizes}) == len(sizes) == 4 * 2 + 1


def test_figures_and_beliefs_are_tried_with_data_for_a_laptop(tmp_path: Path) -> None:
    setting, choice = Setting(tmp_path), Choice(data="fashion_mnist")

    (cycles,) = fig3.cells(setting, choice)
    assert cycles.name == "fig3-fashion_mnist/heterogeneous/uniform-iid/async-dvw-adaptive"
    assert [group.vc_tomb for group in cycles.config.groups.values()] == [4, 1]
    assert [group.vc_loss for group in cycles.config.groups.values()] == [0, 1]
    (staleness,) = fig4.cells(setting, choice)
    assert staleness in table1.cells(setting, choice)

    by_class = table1_by_class.cells(setting, choice)
    assert {one.study for one in by_class} == {"table1-by-class-fashion_mnist"}
    assert len({one.name for one in by_class}) == len(by_class) == 3 * (3 + 8)
    for train in (one.config.train for one in by_class):
        assert (train.shuffle_buffer, train.learning_rate) == (1000, 0.05)

    tried = beliefs.cells(setting, choice)
    assert {one.study for one in tried} == {"beliefs-fashion_mnist"}
    assert {one.config.data.name for one in (*tried, *by_class, cycles)} == {"fashion_mnist"}
    # Those that are about CIFAR-10's numbers of examples are not tried with other data.
    papers = beliefs.cells(setting, Choice())
    full = beliefs.cells(setting, replace(choice, clusters=("heterogeneous",)))
    assert [one.config.train.offer for one in full] == ["best"] * 2
    assert not any("last-two" in one.variant for one in tried)
    assert {one.variant for one in tried} < {one.variant for one in papers}


def test_local_epochs_are_varied_and_nothing_else(tmp_path: Path) -> None:
    cells = update_frequency.cells(Setting(tmp_path), Choice(data="mnist"))

    usual = table1.cells(
        Setting(tmp_path), Choice(("heterogeneous",), ("powerlaw-3",), data="mnist")
    )
    of = {one.policy: one.config for one in usual}
    assert {one.study for one in cells} == {"update-frequency-mnist"}
    for one in cells:
        theirs = of[one.policy]
        assert replace(one.config, train=theirs.train) == theirs
        assert replace(one.config.train, epochs=theirs.train.epochs) == theirs.train
    epochs = {one.variant: one.config.train.epochs for one in cells if one.variant}
    policies = ("sync-fedavg", "sync-dvw", "async-fedavg", "async-dvw")
    assert set(epochs) == {
        f"{policy}-{n}epochs" for policy in policies for n in (1, 2, 4, 8, 16, 32)
    }
    assert all(name.endswith(f"-{number}epochs") for name, number in epochs.items())


def test_local_epochs_of_some_policies_can_be_asked_for(tmp_path: Path) -> None:
    choice = Choice(policies=("sync-dvw", "sync-fedavg"))

    cells = update_frequency.cells(Setting(tmp_path), choice)

    assert len(cells) == 12
    assert {one.policy for one in cells} == {"sync-dvw", "sync-fedavg"}


def test_learners_are_mistaken_in_the_order_of_their_sizes(tmp_path: Path) -> None:
    cells = wrong_labels.cells(Setting(tmp_path), Choice(data="fashion_mnist"))

    names = [one.name for one in cells]
    # Six policies; without mistakes, and where sizes are equal, there is no order of learners.
    assert len(set(names)) == len(names) == 6 * (4 + 1 + 2 * 3)
    found = {one.name.split("/", 2)[2]: one.config for one in cells}
    at = {
        name: [*found[f"powerlaw-iid/async-dvw-{name}"].partition.wrong_labels]
        for name in ("0wrong", "2wrong-largest", "2wrong-smallest")
    }
    config = found["powerlaw-iid/async-dvw-0wrong"]
    labels = np.repeat(np.arange(10), 1000)
    x = np.zeros((len(labels), 1), np.float32)
    sizes = divide(config, Dataset("some", x, labels, x, labels, 10)).sizes
    by_size = sorted(config.learner_names(), key=lambda name: -sizes[int(name[-2:]) - 1])
    assert at == {"0wrong": [], "2wrong-largest": by_size[:2], "2wrong-smallest": by_size[:-3:-1]}
    (ours,) = (one for one in cells if one.name.endswith("uniform-iid/sync-dvw-1wrong"))
    assert ours.config.partition.wrong_labels == {"learner-01": 1.0}
    (like,) = table1.cells(
        Setting(tmp_path),
        Choice(("heterogeneous",), ("uniform-iid",), ("sync-dvw",), "fashion_mnist"),
    )
    changed = replace(like.config.partition, wrong_labels={"learner-01": 1.0})
    assert ours.config == replace(like.config, partition=changed)


def test_a_cell_has_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    usual = cell(Setting(tmp_path), "heterogeneous", "powerlaw-3", "async-dvw")
    asked = cell(Setting(tmp_path, precision="bf16"), "heterogeneous", "powerlaw-3", "async-dvw")

    assert (usual.config.precision, asked.config.precision) == ("tf32", "bf16")
    with pytest.raises(ConfigError, match="bf16"):
        cell(Setting(tmp_path, precision="b16"), "heterogeneous", "powerlaw-3", "async-dvw")


def test_a_run_of_codecs_has_the_precision_that_was_asked_for(tmp_path: Path) -> None:
    (one,) = sstc.cells(Setting(tmp_path, precision="bf16"), Choice(policies=("stc",)))

    assert one.config.precision == "bf16"


def test_a_homogeneous_cell_has_fast_learners_alone_and_200_rounds(tmp_path: Path) -> None:
    config = cell(Setting(tmp_path), "homogeneous", "uniform-iid", "sync-dvw").config

    assert config.group_sizes() == {"fast": 10}
    assert (config.horizon.versions, config.horizon.seconds) == (200, None)


def test_a_cell_has_a_directory_of_its_own_for_each_seed(tmp_path: Path) -> None:
    setting = Setting(tmp_path, seeds=(1990, 7))

    cells = table1.GRID.cells(setting, Choice(("homogeneous",), ("skewed-5",), ("sync-dvw",)))

    base = tmp_path / "table1" / "homogeneous" / "skewed-5"
    assert [one.directory(tmp_path) for one in cells] == [
        base / "sync-dvw",
        base / "sync-dvw-seed7",
    ]


@pytest.mark.parametrize(
    ("setting", "whole", "expected"),
    [
        (Setting(Path(), "full"), Horizon(rounds=200), "200 rounds"),
        (Setting(Path(), "short"), Horizon(rounds=200), "20 rounds"),
        (Setting(Path(), "short"), Horizon(seconds=14_000.0), "1,400 s"),
        (Setting(Path(), "short", rounds=7), Horizon(rounds=200), "7 rounds"),
        (Setting(Path(), "full", seconds=90.0), Horizon(seconds=14_000.0), "90 s"),
        (Setting(Path(), "full", seconds=90.0), Horizon(rounds=200), "200 rounds"),
    ],
)
def test_a_horizon_follows_the_scale_unless_it_is_given(
    setting: Setting, whole: Horizon, expected: str
) -> None:
    assert setting.horizon(whole).in_words() == expected


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (Choice(rows=("powerlaw3",)), "did you mean 'powerlaw-3'"),
        (Choice(policies=("async-dwv",)), "did you mean 'async-dvw'"),
        (Choice(clusters=("homogenous",)), "did you mean 'homogeneous'"),
    ],
)
def test_a_wrong_name_is_told_the_nearest_right_one(choice: Choice, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table1.GRID.cells(Setting(Path()), choice)


def test_the_other_reading_of_the_power_law_is_made_only_when_named(tmp_path: Path) -> None:
    setting = Setting(tmp_path)

    assert not [c for c in table1.GRID.cells(setting, Choice()) if "geometric" in c.row]
    (named, *_) = table1.GRID.cells(setting, Choice(rows=("geometric-3",)))
    assert named.config.partition.sizes == "geometric"


def test_other_data_for_table_3_has_its_own_name_and_half_of_its_classes(tmp_path: Path) -> None:
    cells = table3.cells(Setting(tmp_path), Choice(data="mnist_by_writer"))

    assert {one.study for one in cells} == {"table3-mnist_by_writer"}
    assert {one.row for one in cells} == {"uniform-iid", "skewed-5", "powerlaw-iid"}
    assert all(one.config.data.name.endswith("mnist_by_writer.npz") for one in cells)
    with pytest.raises(ConfigError, match="did you mean 'fashion_mnist'"):
        table3.grid_of("fashionmnist")


def test_sstc_has_a_cell_for_each_run_and_its_codecs_are_the_papers(tmp_path: Path) -> None:
    cells = {one.variant: one for one in sstc.cells(Setting(tmp_path), Choice())}

    assert set(cells) == set(sstc.RUNS)
    upload = cells["sstc-0.125"].config.upload
    assert (upload.codec, upload.sparsity, upload.kernels) == ("sstc", 0.01, 0.125)
    # An asynchronous run has a version for each update, of which a round has fifty.
    assert cells["dense"].config.horizon.versions == 1000
    assert cells["async-dvw-sstc"].config.horizon.versions == 50_000


def test_beliefs_that_are_about_nothing_that_was_asked_for_are_refused(tmp_path: Path) -> None:
    nobody = Choice(None, ("uniform-5",), ("async-dvw",))
    with pytest.raises(ConfigError, match="no belief is about these rows"):
        beliefs.cells(Setting(tmp_path), nobody)

    with pytest.raises(ConfigError, match="no belief is tried at scale smoke for these"):
        beliefs.cells(Setting(tmp_path, "smoke"), Choice(("heterogeneous",)))
    asked = Choice(None, ("powerlaw-3",), ("sync-dvw",))
    one = beliefs.cells(Setting(tmp_path, "smoke"), asked)[0]  # though it is no row's first
    assert one.name.endswith("powerlaw-3/sync-dvw-buffer-1000")


@pytest.mark.parametrize("study", [wrong_labels, update_frequency, validation_size])
def test_the_other_reading_of_the_power_law_is_made_where_it_is_named(
    study: ModuleType, tmp_path: Path
) -> None:
    cells = study.cells(Setting(tmp_path), Choice(None, ("geometric-3",)))

    assert {one.config.partition.sizes for one in cells} == {"geometric"}


def test_how_much_is_held_out_is_varied_and_nothing_else(tmp_path: Path) -> None:
    cells = validation_size.cells(Setting(tmp_path), Choice(data="mnist"))

    usual = table1.cells(
        Setting(tmp_path), Choice(("heterogeneous",), ("powerlaw-3",), data="mnist")
    )
    of = {one.policy: one.config for one in usual}
    for one in cells:
        theirs = of[one.policy]
        assert replace(one.config, validation=theirs.validation) == theirs
    held_out = [
        (one.config.validation.fraction, one.config.validation.stratified)
        for one in cells
        if one.variant
    ]
    assert sorted(held_out) == [(x, kind) for x in (0.01, 0.02, 0.05, 0.1) for kind in (0, 1)]
    assert [one.policy for one in cells if not one.variant] == ["async-uniform"]
