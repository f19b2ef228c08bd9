"""The config: what is right comes back equal, what is wrong is named by its path."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metis import paper
from metis.config import Config, Group, Incident, Model, dump, load
from metis.core.errors import ConfigError
from metis.learn.settings import TrainSettings

# ---- what is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # names
        ("polcy=fedasync", "polcy: unknown key 'polcy'; did you mean 'policy'?"),
        ("trian.epochs=2", "trian: unknown key 'trian'; did you mean 'train'?"),
        ("train.epoch=2", "train.epoch: unknown key 'epoch'; did you mean 'epochs'?"),
        ("groups.fast.lerners=2", "groups.fast.lerners: unknown key 'lerners'; did you mean 'lear"),
        ("incidents=[{lerner='x'}]", "incidents[0].lerner: unknown key 'lerner'; did you mean 'le"),
        (".epochs=2", "unknown key ''"),
        # values out of a list
        ("policy=sync-fedavgg", "'sync-fedavgg'; did you mean 'sync-fedavg'? (known: async-dvw,"),
        ("partition.sizes=uniforme", "partition.sizes: unknown value 'uniforme'; did you mean 'un"),
        ("validation.metric=micro-f1", "validation.metric: unknown value 'micro-f1'; did you mean"),
        ("device=gpu", "device: unknown value 'gpu'; did you mean 'cpu'? (known: cpu, cuda)"),
        (
            "incidents=[{learner='learner-01', kind='crush'}]",
            "incidents[0].kind: unknown value 'cr",
        ),
        # types
        ("learners=ten", "learners: expected a whole number, got 'ten' (a string)"),
        ("learners=true", "learners: expected a whole number, got True (true or false)"),
        ("learners=2.0", "learners: expected a whole number, got 2.0 (a number)"),
        ("learners.x=3", "learners: expected a whole number, got {'x': 3} (a table)"),
        ("train.learning_rate=fast", "train.learning_rate: expected a number, got 'fast' (a strin"),
        ("train.learning_rate=true", "train.learning_rate: expected a number, got True"),
        ("train.keep_momentum=1", "train.keep_momentum: expected true or false, got 1"),
        ("data.name=7", "data.name: expected a string, got 7 (a whole number)"),
        ("data.name=2020-01-01", "data.name: expected a string, got datetime.date"),
        ("partition.classes=1.5", "partition.classes: expected a whole number or a string, got 1."),
        ("train=3", "train: expected a table, got 3"),
        ("groups.fast=3", "groups.fast: expected a table, got 3"),
        ("groups=3", "groups: expected a table, got 3"),
        ("incidents={}", "incidents: expected a list, got {} (a table)"),
        ("incidents=[3]", "incidents[0]: expected a table, got 3"),
        ("train.weight_decay_on=fc1", "train.weight_decay_on: expected a list, got 'fc1' (a strin"),
        ("train.weight_decay_on=[1]", "train.weight_decay_on[0]: expected a string, got 1"),
        ("train.optimizer_options.eps=small", "train.optimizer_options.eps: expected true or"),
        ("model.options.lrn=no", "model.options.lrn: expected true or false or a whole number or"),
        # ranges
        ("learners=0", "learners = 0: must be at least 1"),
        ("seed=-1", "seed = -1: must be at least 0"),
        ("seed=99999999999999999999", "seed = 99999999999999999999: must be at least 0 and at mo"),
        ("train.learning_rate=0", "train.learning_rate = 0.0: must be more than 0"),
        ("train.learning_rate=nan", "train.learning_rate = nan: must be a finite number"),
        ("train.learning_rate=inf", "train.learning_rate = inf: must be a finite number"),
        (f"train.learning_rate={'9' * 400}", "train.learning_rate: the number is too large"),
        (f"learners={'9' * 5000}", "learners: expected a whole number"),
        ("train.momentum=1", "train.momentum = 1.0: must be at least 0 and less than 1"),
        ("train.momentum=1.5", "train.momentum = 1.5: must be at least 0 and less than 1"),
        ("validation.fraction=0.95", "validation.fraction = 0.95: must be at least 0 and at most"),
        ("groups.fast.seconds_per_step=0", "groups.fast.seconds_per_step = 0.0: must be more tha"),
        ("horizon.versions=0", "horizon.versions = 0: must be at least 1"),
        ("recipe.sample=11", "recipe.sample = 11: there are only 10 learners"),
        ("recipe.min_learners=11", "recipe.min_learners = 11: there are only 10 learners"),
        # groups and incidents
        ("groups={}", "groups: at least one is needed"),
        ("groups={fast={learners=3}, slow={learners=3}}", "groups hold 6 learners together, but"),
        ("groups={a={learners=9}, b={learners=2}}", "groups hold 11 learners together, but lear"),
        ("groups={a={learners=10}, b={}}", "groups: of 10 learners 0 are left for b"),
        ("groups={a={learners=12}, b={}}", "groups: of 10 learners 0 are left for b"),
        ("incidents=[{learner='learner-3'}]", "incidents[0].learner: there is no 'learner-3'; lea"),
        ("incidents=[{learner='learner-11'}]", "learners are called learner-01 to learner-10"),
        ("incidents=[{}]", "incidents[0].learner: there is no ''"),
        # wrong labels
        ("partition.wrong_labels={learner-1=1, learner-02=1}", "there is no 'learner-1'; learners"),
        (
            "partition.wrong_labels.learner-03=1.5",
            "partition.wrong_labels.learner-03 = 1.5: must b",
        ),
        ("partition.wrong_labels.learner-03=-1", "at least 0 and at most 1"),
        ("partition.wrong_labels={learner-01='x'}", "partition.wrong_labels.learner-01: expected"),
        ("partition.mistake=net", "partition.mistake: unknown value 'net'; did you mean 'next'?"),
        # not a key and a value
        ("train.epochs", "--set 'train.epochs': expected key=value, such as train.epochs=2"),
        ("=3", "--set '=3': expected key=value"),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_value_is_named_with_what_would_be_right(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(None, [override])

    assert "\n" not in str(caught.value)


def test_a_key_cannot_be_set_inside_a_value() -> None:
    with pytest.raises(ConfigError, match=r"--set learners\.x: 'learners' is not a table"):
        load(None, ["learners=10", "learners.x=3"])
    with pytest.raises(ConfigError, match=r"--set train\.epochs\.x: 'epochs' is not a table"):
        load(None, ["train.epochs=10", "train.epochs.x=3"])


def test_a_file_that_is_not_there_not_toml_or_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fed.toml"
    with pytest.raises(ConfigError, match=r"fed\.toml: No such file"):
        load(path)
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)
    for content in (b"learners = \n", b"[train\n", b"\xff\xfe\x00", b"a = 1\na = 2\n"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"fed\.toml: not valid TOML: .+"):
            load(path)


def test_a_wrong_key_in_a_file_is_named_like_one_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "fed.toml"
    path.write_text("[train]\nepoch = 4\n")

    with pytest.raises(ConfigError, match=r"train\.epoch: unknown key 'epoch'; did you mean 'epo"):
        load(path)


# ---- what is right ----------------------------------------------------------------------------


def test_overrides_go_before_the_file_and_keywords_before_both(tmp_path: Path) -> None:
    path = tmp_path / "fed.toml"
    path.write_text("learners = 4\nseed = 1\n[train]\nepochs = 1\nmax_epochs = 7\n")

    config = load(
        path, ["seed=2", "train.epochs=2", "data.name=mnist"], seed=3, train={"epochs": 3}
    )

    assert (config.learners, config.seed, config.data.name) == (4, 3, "mnist")
    assert (config.train.epochs, config.train.max_epochs) == (3, 7)


def test_overrides_are_toml_where_they_can_be_and_plain_text_elsewhere() -> None:
    config = load(
        None,
        [
            "data.name=a file.npz",
            "partition.classes=8,4,3x8",
            "train.weight_decay_on=['fc1.*', \"fc2.*\"]",
            " train.keep_momentum = true ",
            "groups.only.seconds_per_step=1e-3",
        ],
    )

    assert config.data.name == "a file.npz"
    assert config.partition.classes == "8,4,3x8"
    assert config.train.weight_decay_on == ("fc1.*", "fc2.*")
    assert config.train.keep_momentum is True
    assert config.groups == {"only": Group(seconds_per_step=0.001)}


def test_whole_numbers_are_taken_where_numbers_are_expected() -> None:
    config = load(None, ["train.learning_rate=1", "horizon.seconds=10"])

    assert isinstance(config.train.learning_rate, float)
    assert isinstance(config.horizon.seconds, float)


def test_keywords_may_be_tables_dataclasses_or_mappings_of_them() -> None:
    incident = Incident(5.0, "learner-02", "slow", 3.0)

    config = load(
        learners=4,
        train=TrainSettings(epochs=2),
        groups={"a": Group(learners=1), "b": {"learners": 3}},
        incidents=[incident],
        threads=None,
    )

    assert config.train == TrainSettings(epochs=2)
    assert config.groups == {"a": Group(learners=1), "b": Group(learners=3)}
    assert config.incidents == (incident,)


def test_groups_left_open_share_the_rest_evenly_the_first_taking_what_is_over() -> None:
    config = load(learners=8, groups={"a": {}, "b": {"learners": 3}, "c": {}})

    assert config.group_sizes() == {"a": 3, "b": 3, "c": 2}
    assert Config().group_sizes() == {"fast": 5, "slow": 5}


def test_learners_are_named_so_that_they_sort() -> None:
    assert Config().learner_names()[::9] == ["learner-01", "learner-10"]
    names = load(learners=1000).learner_names()
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("learner-0001", "learner-1000")


# ---- round trips ------------------------------------------------------------------------------

FULL = load(
    policy="fedasync",
    learners=6,
    seed=2**63 - 1,
    threads=2,
    data={"name": 'smörgås/"quoted" \\ \t\x7f.npz', "directory": "/tmp/数据"},
    model={"name": "cifar_cnn", "options": {"lrn": False, "depth": 3, "rate": 1e-30}},
    partition={"classes": "8,4,3x8", "exponent": 1e-2},
    groups={
        "fast": {"learners": 1, "seconds_per_step": 0.03, "vc_tomb": 0},
        "sehr langsam, größer.": {"learners": 2, "bandwidth_bytes_per_second": 1e6},
        "": {},
    },
    train={
        "optimizer": "adam",
        "optimizer_options": {"eps": 1e-8, "größe": 2.0, "a.b": 3},
        "weight_decay_on": ["fc*.weight", "a\nb", ""],
        "learning_rate": 1,
    },
    horizon={"seconds": 1e-5},
    incidents=(
        Incident(1.5, "learner-03", "slow", 5.0),
        Incident(0.0, "learner-01", "join"),
    ),
)


@pytest.mark.parametrize("config", [Config(), FULL], ids=["defaults", "everything"])
@pytest.mark.parametrize("comments", [False, True], ids=["bare", "commented"])
def test_what_is_dumped_loads_back_equal(tmp_path: Path, config: Config, comments: bool) -> None:
    path = tmp_path / "config.toml"
    path.write_text(dump(config, comments), encoding="utf-8")

    found = load(path)

    assert found == config
    assert list(found.groups) == list(config.groups)  # the order decides who is in which group
    assert dump(found, comments) == dump(config, comments)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.floats(0, 1e300)),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_any_text_survives_a_round_trip(
    name: str, options: dict[str, float], patterns: list[str]
) -> None:
    config = Config(
        model=Model(name=name),
        train=TrainSettings(optimizer_options={**options}, weight_decay_on=tuple(patterns)),
    )

    raw: dict[str, Any] = tomllib.loads(dump(config))
    assert load(**raw) == config


def test_the_commented_default_names_and_explains_every_key() -> None:
    lines = dump(Config(), comments=True).splitlines()
    named = {line.lstrip("# ").partition(" =")[0]: line for line in lines if " =" in line}

    for kind in tables_of(Config):
        for f in dataclasses.fields(kind):
            if f.name in named:
                assert named[f.name].rstrip().partition("  # ")[2], f"{f.name} is not explained"
            else:
                assert any(re.match(rf"(# )?\[+{f.name}\b", line) for line in lines), f.name


def test_every_key_has_a_line_for_people() -> None:
    for kind in tables_of(Config):
        for f in dataclasses.fields(kind):
            assert f.metadata.get("doc"), f"{kind.__name__}.{f.name} has no doc"


def tables_of(hint: Any) -> list[type]:
    """Return every config class inside a type, itself included."""
    if dataclasses.is_dataclass(hint):
        inside = typing.get_type_hints(hint).values()
        return [typing.cast(type, hint), *(kind for inner in inside for kind in tables_of(inner))]
    return [kind for inner in typing.get_args(hint) for kind in tables_of(inner)]


def test_the_walk_over_the_config_classes_finds_them_all() -> None:
    assert {kind.__name__ for kind in tables_of(Config)} == {
        *("Config", "Data", "Model", "PartitionSettings", "Group", "TrainSettings"),
        *("ValidationSettings", "RecipeSettings", "Horizon", "CodecSettings", "CostSettings"),
        *("Incident", "Output", "CallLimits"),
    }


# ---- the authors' constants -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "classes", "fast", "slow"),
    [
        # spec section 4: fast tomb, slow tomb, fast %, slow %
        ("uniform", "iid", (4, 0), (2, 1)),
        ("uniform", 5, (4, 3), (2, 3)),
        ("uniform", 3, (4, 3), (2, 3)),
        ("skewed", "iid", (4, 0), (2, 1)),
        ("skewed", 5, (6, 3), (1, 3)),
        ("skewed", 3, (6, 3), (1, 3)),
        ("powerlaw", "iid", (4, 0), (2, 1)),
        ("powerlaw", 5, (4, 1), (2, 1)),
        ("powerlaw", "8,7,6,5x7", (4, 1), (2, 1)),
        ("powerlaw", 3, (4, 3), (1, 1)),
        ("powerlaw", "8,4,3x8", (4, 3), (1, 1)),
    ],
)
def test_validation_cycles_are_the_papers_for_its_ten_classes(
    sizes: str, classes: int | str, fast: tuple[int, float], slow: tuple[int, float]
) -> None:
    assert paper.validation_cycle(sizes, classes, 10, "fast") == fast
    assert paper.validation_cycle(sizes, classes, 10, "slow") == slow


def test_other_data_takes_the_row_of_the_same_distribution() -> None:
    assert paper.validation_cycle("powerlaw", 50, 100, "slow") == (2, 1)  # half the classes
    assert paper.validation_cycle("powerlaw", "84,76,68,64,55,50x5", 100, "fast") == (4, 1)
    assert paper.validation_cycle("powerlaw", 30, 100, "slow") == (1, 1)  # three tenths of them
    assert paper.validation_cycle("geometric", 3, 10, "fast") == (4, 3)  # a reading of power law
    assert paper.validation_cycle("powerlaw", "dirichlet", 10, "fast") == (4, 1)
    assert paper.validation_cycle("uniform", "natural", 62, "slow") == (2, 1)
    assert paper.validation_cycle("powerlaw", "iid", 0, "slow") == (2, 1)  # a regression
    assert paper.validation_cycle("skewed", 3, 10, "phones") == (6, 3)  # not slow is fast


def test_the_clock_of_the_paper() -> None:
    assert paper.SEED == 1990
    assert paper.REQUEST_OVERHEAD_SECONDS == 44.0
    assert paper.STEP_SECONDS == {
        "cifar10": (0.03, 0.3),
        "cifar100": (0.06, 2.0),
        "emnist_byclass": (0.05, 0.8),
    }


def test_setting_one_default_group_leaves_the_other_there() -> None:
    config = load(None, ["groups.slow.seconds_per_step=2", "learners=5"])

    assert config.group_sizes() == {"fast": 3, "slow": 2}
    assert config.groups["slow"].seconds_per_step == 2.0


def test_a_default_group_that_takes_all_learners_is_alone() -> None:
    assert load(None, ["groups.fast.learners=10"]).group_sizes() == {"fast": 10}


def test_a_single_learner_needs_no_groups() -> None:
    assert load(None, ["learners=1"]).group_sizes() == {"fast": 1}


def test_a_group_of_another_name_replaces_the_defaults() -> None:
    assert load(None, ["groups.phone.seconds_per_step=2"]).group_sizes() == {"phone": 10}
