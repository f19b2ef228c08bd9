"""The command line: what it prints and writes, and what it says to bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from metis import cli
from metis.config import load
from metis.core.policies import POLICIES
from metis.data.sources import SOURCES
from metis.journal.file import Record, read_journal
from tests.command import Metis, Outcome, assert_refused

SMALL = (
    *("--set", "model.name=linear", "--set", "learners=4", "--set", "train.epochs=1"),
    *("--set", "horizon.versions=2", "--quiet"),
)


def kinds(directory: Path, *wanted: str) -> list[Record]:
    return [r for r in read_journal(directory / "journal.jsonl") if r["kind"] in wanted]


# ---- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "async-dwv"], ["unknown policy 'async-dwv'", "did you mean 'async-dvw'?"]),
        (["--set", "policy=fedasink"], ["did you mean 'fedasync'?"]),
        (["--set", "train.epoch=2"], ["train.epoch", "did you mean 'epochs'?"]),
        (["--set", "learners=many"], ["learners: expected a whole number, got 'many'"]),
        (["--set", "train.epochs"], ["--set 'train.epochs': expected key=value"]),
        (["--seed", "-1"], ["seed = -1: must be at least 0"]),
        (["--device", "tpu"], ["device: unknown value 'tpu'"]),
        (["nowhere.toml"], ["nowhere.toml: No such file"]),
        (["--set", "model.name=liner"], ["unknown model 'liner'; did you mean 'linear'?"]),
        (["--set", "model.options.lrn=true"], ["lrn"]),
        (["--set", "model.initial=no.safetensors"], ["no.safetensors"]),
        (["--set", "train.optimizer=sdg"], ["unknown optimizer 'sdg'; did you mean 'sgd'?"]),
        (["--set", "train.optimizer_options.foo=1"], ["sgd", "foo"]),
        (["--set", "partition.classes=11"], ["cannot hold 11 classes", "10"]),
        (["--set", "partition.classes=many"], ["many", "iid", "8,4,3x8"]),
        (["--set", "partition.classes=natural"], ["no owners"]),
        (["--set", "learners=2000"], ["2000 learners cannot share 1438 examples"]),
        (
            ["--set", "learners=500", "--set", "partition.classes=iid"],
            ["learners without an example", "use fewer learners"],
        ),
        (
            # Eight examples of eight classes: not one can be spared for validation.
            [
                *("--set", "learners=200", "--set", "partition.classes=iid"),
                *("--set", "partition.sizes=uniform", "--policy", "async-dvw-adaptive"),
            ],
            ["none of which can be held out", "async-dvw-adaptive", "use fewer learners"],
        ),
        (
            ["--policy", "async-dvw-adaptive", "--set", "validation.fraction=0"],
            ["validation.fraction = 0", "async-dvw-adaptive needs held-out examples"],
        ),
        (
            ["--policy", "async-dvw", "--set", "train.offer=best"],
            ["train.offer = 'best'", "learners of async-dvw do not compute", "adaptive"],
        ),
        (
            ["--policy", "sync-fedavg", "--set", "train.schedule=plateau"],
            ["train.schedule = 'plateau'", "sync-fedavg does not have", "cosine", "sync-dvw"],
        ),
        (
            [
                *("--policy", "sync-dvw", "--set", "train.schedule=plateau"),
                *("--set", "train.schedule_factor=1"),
            ],
            ["train.schedule_factor = 1: must be below 1", "plateau"],
        ),
        (
            ["--set", "train.batch_norm_statistics=local"],
            ["train.batch_norm_statistics = 'local'", "no batch normalization", "use 'shared'"],
        ),
        (["--set", "train.batch_norm_statistics=own"], ["train.batch_norm_statistics", "shared"]),
        (
            ["--policy", "sync-fedavg", "--set", "validation.release_last=2"],
            ["validation.release_last = 2", "sync-fedavg holds out no examples", "sync-dvw"],
        ),
        (
            ["--policy", "async-dvw", "--set", "validation.release_last=2"],
            ["validation.release_last = 2 counts back from horizon.versions", "is only 2"],
        ),
        (
            [
                *("--policy", "sync-dvw", "--set", "validation.release_last=3"),
                *("--set", "horizon.versions=3"),
            ],
            ["validation.release_last = 3", "is only 3", "more than 3"],
        ),
        (["--set", "validation.release_last=0"], ["validation.release_last = 0", "at least 1"]),
        (["--set", "train.schedule=platau"], ["train.schedule", "did you mean 'plateau'?"]),
        (["--set", "train.schedule_floor=0"], ["train.schedule_floor = 0", "must be more than 0"]),
        (
            ["--set", "train.schedule_improvement=-1"],
            ["train.schedule_improvement = -1", "must be at least 0"],
        ),
        (["--set", "train.offer=last"], ["train.offer: unknown value 'last'", "latest"]),
        (["--set", "validation.metric=inverse_mse"], ["does not score a classification", "mcc"]),
        (
            [
                *("--set", "data.name=diabetes", "--set", "partition.classes=iid"),
                *("--set", "validation.metric=micro_f1"),
            ],
            ["does not score a regression", "inverse_mse"],
        ),
        (["--set", "data.name=diabetes"], ["classes = 3 needs class labels", "'iid'"]),
        (["--set", "recipe.min_learners=5"], ["recipe.min_learners = 5: there are only 4"]),
        (["--set", "data.name=digit"], ["unknown data source 'digit'; did you mean 'digits'?"]),
        (["--set", "data.name=gone.npz"], ["gone.npz does not exist"]),
        (["--set", "data.name=gone.py:data"], ["data.name = 'gone.py:data'", "no file gone.py"]),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_a_wrong_setting_ends_a_run_before_it_began(
    metis: Metis, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    assert_refused(metis("run", *SMALL, "--out", "run", *arguments), *words)
    assert not (tmp_path / "run").exists()


def test_versions_are_not_counted_back_from_a_horizon_in_seconds(metis: Metis) -> None:
    line = "run --set validation.release_last=2 --set horizon.seconds=9 --out run"

    assert_refused(metis(*line.split()), "validation.release_last = 2", "which is not set")
    assert not Path("run").exists()


def test_a_dataset_that_is_missing_is_told_with_how_to_get_it(
    metis: Metis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METIS_DATA", str(tmp_path / "cache"))

    outcome = metis("run", *SMALL, "--set", "data.name=cifar10")

    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert "cifar10 is not prepared" in outcome.err
    assert "metis data prepare cifar10 --from PATH" in outcome.err
    assert f"put these into {tmp_path / 'cache' / 'cifar10'}" in outcome.err
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in outcome.err


def test_an_npz_that_cannot_be_used_is_told_with_what_one_must_hold(
    metis: Metis, tmp_path: Path
) -> None:
    path = tmp_path / "mine.npz"
    x, y = np.ones((20, 3), np.float32), np.arange(20) % 2

    path.write_bytes(b"this is no zip file")
    assert_refused(metis("run", *SMALL, "--set", f"data.name={path}"), "mine.npz", "cannot be read")
    np.savez(path, inputs=x, labels=y)
    assert_refused(metis("run", *SMALL, "--set", f"data.name={path}"), "lacks", "(it has inputs, ")
    np.savez(path, x=x, y=np.array([None] * 20, dtype=object))
    assert_refused(metis("run", *SMALL, "--set", f"data.name={path}"), "pickled")
    np.savez(path, x=x[:7], y=y)
    assert_refused(metis("run", *SMALL, "--set", f"data.name={path}"), "7 inputs in x but 20")
    np.savez(path, x=x * np.nan, y=y)
    assert_refused(metis("run", *SMALL, "--set", f"data.name={path}"), "not finite")


def test_an_out_directory_that_cannot_be_written_is_refused(metis: Metis, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    assert_refused(metis("run", *SMALL, "--out", "file/run"), "cannot write to file/run", "Not a d")
    assert_refused(metis("run", *SMALL, "--out", "file"), "cannot write to file")
    assert_refused(metis("data", "show", "--plot", "file/who.png"), "cannot write file/who.png")


def test_a_device_that_is_not_there_is_refused(metis: Metis) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert_refused(metis("run", *SMALL, "--device", "cuda"), "device = 'cuda'", "use 'cpu'")


def test_a_comparison_is_checked_as_a_whole_before_it_begins(metis: Metis, tmp_path: Path) -> None:
    assert_refused(metis("compare", "--policies", "sync-fedavg,sync"), "unknown policy 'sync'")
    assert_refused(metis("compare", "--policies", " , "), "--policies: name at least one")
    assert_refused(metis("compare", "--seeds", "1,two"), "--seeds '1,two': expected numbers")
    assert list(tmp_path.iterdir()) == []


def test_commands_that_read_a_run_refuse_what_is_none(metis: Metis, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert_refused(metis("report", "empty"), "empty", "journal.jsonl")
    assert_refused(metis("report", "nowhere"), "nowhere", "journal.jsonl")
    assert_refused(metis("replay", "empty"), "empty")
    assert_refused(metis("run", "--resume", "empty"), "empty holds no run")
    assert_refused(metis("run", "--resume", "empty", "--seed", "3"), "--resume takes its settings")


def test_data_that_cannot_be_prepared_is_told(metis: Metis) -> None:
    assert_refused(metis("data", "prepare", "digits"), "digits comes with scikit-learn")
    assert_refused(metis("data", "prepare", "cifar"), "unknown data source 'cifar'; did you mean")
    outcome = metis("data", "prepare", "mnist", "--from", "nowhere")
    assert outcome.code == 2
    assert "nowhere does not exist" in outcome.err


def test_a_verb_that_does_not_exist_is_refused(metis: Metis) -> None:
    outcome = metis("simulate")

    assert outcome.code == 2
    assert "No such command 'simulate'" in outcome.err


# ---- learners that cannot learn ---------------------------------------------------------------

POISONED = """
import numpy as np
import metis

def data():
    rng = np.random.default_rng(1990)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    owners = np.repeat(["a", "b", "c"], 30)
    test = x[:30].copy(), y[:30].copy()
    x[owners == "b", 1] = 3e38  # finite, but its logits are not
    return metis.Dataset("poisoned", x, y, *test, num_classes=2, owners=owners)
"""


@pytest.mark.parametrize("policy", ["sync-fedavg", "async-dvw-adaptive"])
def test_a_learner_whose_loss_is_no_number_is_refused_and_the_others_go_on(
    metis: Metis, tmp_path: Path, policy: str
) -> None:
    (tmp_path / "mine.py").write_text(POISONED)
    of_three = ("--set", "learners=3", "--set", "partition.classes=natural")

    summary = metis(
        *("run", *SMALL, *of_three, "--json", "--out", "run", "--policy", policy),
        *("--set", "data.name=mine.py:data", "--set", "horizon.versions=4"),
    ).json

    run = tmp_path / "run"
    assert (summary["ended"], summary["versions"]) == ("versions", 4)
    failed, refused = kinds(run, "fail"), kinds(run, "refuse")
    assert len(failed) == len(refused) >= 1
    (poisoned,) = {record["learner"] for record in failed}
    assert {record["learner"] for record in refused} == {poisoned}
    assert all(re.search("loss is (nan|inf)", record["reason"]) for record in refused)
    folders = {fold["learner"] for r in kinds(run, "version") for fold in r["folds"]}
    assert folders
    assert poisoned not in folders
    assert summary["learners"][poisoned]["updates"] == 0
    assert summary["refused_updates"] == len(refused)


def test_a_federation_in_which_nobody_can_learn_says_so_and_ends(
    metis: Metis, tmp_path: Path
) -> None:
    outcome = metis("run", *SMALL, "--out", "run", "--set", "train.learning_rate=1e38")

    assert_refused(outcome, "updates were all refused", "loss is")
    assert kinds(tmp_path / "run", "end")[0]["reason"] == "stuck"
    assert not (tmp_path / "run" / "summary.json").exists()


# ---- a run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A small run with its updates kept, made once by a real process."""
    folder = tmp_path_factory.mktemp("finished")
    arguments = ["run", *SMALL, "--json", "--out", "run", "--policy", "async-dvw-adaptive"]
    done = python("-m", "metis", *arguments, "--set", "output.keep_updates=true", cwd=folder)
    return folder / "run", done


def python(*arguments: str, cwd: Path) -> Outcome:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_run_prints_its_summary_as_json_and_nothing_else(
    finished: tuple[Path, Outcome],
) -> None:
    directory, outcome = finished

    assert outcome.err == ""
    assert outcome.json == json.loads((directory / "summary.json").read_text())


def test_a_run_leaves_all_that_was_promised(finished: tuple[Path, Outcome]) -> None:
    directory, _ = finished
    names = {path.name for path in directory.iterdir()}

    assert names >= {
        *("config.toml", "journal.jsonl", "summary.json", "report.html"),
        *("model.safetensors", "best.safetensors", "initial.safetensors", "updates"),
    }
    assert len([name for name in names if name.endswith(".png")]) >= 5
    assert not any(name.endswith(".tmp") or "checkpoint" in name for name in names)


def test_a_summary_holds_every_number_it_should(finished: tuple[Path, Outcome]) -> None:
    summary = finished[1].json

    assert summary.keys() >= {
        *("policy", "dataset", "partition", "seed", "virtual_seconds", "wall_seconds"),
        *("versions", "update_requests", "models_exchanged", "evaluation_models"),
        *("initial_broadcasts", "unanswered_tasks", "samples_trained", "bytes_up", "bytes_down"),
        *("final_accuracy", "best_accuracy", "curve", "learners"),
    }
    assert summary["policy"] == "async-dvw-adaptive"
    assert summary["dataset"] == "digits"
    assert summary["seed"] == 1990
    assert summary["versions"] == summary["update_requests"] == 2
    assert summary["evaluation_models"] == 2 * 3  # all others of four learners judge each update
    assert summary["models_exchanged"] == 2 * 2 + 2 * 3
    assert summary["initial_broadcasts"] == 4
    assert summary["curve"][-1] == [summary["virtual_seconds"], 2, summary["final_accuracy"]]
    assert set(summary["learners"]) == {f"learner-0{i}" for i in range(1, 5)}
    for learner in summary["learners"].values():
        assert learner.keys() >= {"examples", "classes", "group", "updates", "mean_weight"}
        assert learner["group"] in ("fast", "slow")
    updates = [learner["updates"] for learner in summary["learners"].values()]
    assert sum(updates) == 2


def test_the_resolved_config_leaves_nothing_open_that_matters(
    finished: tuple[Path, Outcome],
) -> None:
    path = finished[0] / "config.toml"
    raw = tomllib.loads(path.read_text())

    assert load(path).policy == "async-dvw-adaptive"
    assert raw["train"].keys() >= {"batch_size", "learning_rate", "momentum", "weight_decay"}
    assert raw["validation"]["metric"] == "micro_f1"
    assert raw["threads"] >= 1
    for group in raw["groups"].values():
        assert group.keys() >= {"learners", "seconds_per_step", "vc_tomb", "vc_loss"}


def test_a_run_is_verified_by_its_replay(metis: Metis, finished: tuple[Path, Outcome]) -> None:
    directory, _ = finished

    found = metis("replay", directory, "--json").json
    told = metis("replay", directory)

    last = kinds(directory, "version")[-1]
    assert (found["versions"], found["digest"]) == (2, last["digest"])
    assert told.code == 0
    assert "verified 2 versions" in told.out
    assert "taken as reported: " in told.out
    assert found["taken_as_reported"]["steps"] == ["loss"]
    assert found["records"]["version"] == 2
    assert "summary.json" in found["files"]


def test_a_finished_run_is_neither_resumed_nor_written_over(
    metis: Metis, finished: tuple[Path, Outcome]
) -> None:
    directory, _ = finished
    before = (directory / "journal.jsonl").read_bytes()

    assert_refused(metis("run", "--resume", directory, "--quiet"), "is finished")
    assert_refused(metis("run", *SMALL, "--out", directory), "already holds a run", "--resume")

    assert (directory / "journal.jsonl").read_bytes() == before


def test_a_report_can_be_made_again_elsewhere(
    metis: Metis, finished: tuple[Path, Outcome], tmp_path: Path
) -> None:
    directory, _ = finished

    outcome = metis("report", directory, "--out", "again")

    assert outcome.code == 0, outcome.err
    assert "async-dvw-adaptive" in outcome.out
    assert outcome.out.splitlines()[-1] == "report: again/report.html"
    page = (tmp_path / "again" / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert not re.search(r'(src|href)="https?://', page)


def test_a_run_without_kept_updates_cannot_be_replayed(metis: Metis, tmp_path: Path) -> None:
    (tmp_path / "fed.toml").write_text('policy = "fedasync"\nseed = 7\n')

    outcome = metis("run", "fed.toml", *SMALL)

    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == "report: runs/fedasync/report.html"
    assert json.loads(Path("runs/fedasync/summary.json").read_text())["seed"] == 7
    assert_refused(metis("replay", "runs/fedasync"), "output.keep_updates=true")


def test_a_comparison_shows_every_policy_with_its_spread(metis: Metis, tmp_path: Path) -> None:
    outcome = metis(
        *("compare", *SMALL, "--out", "runs", "--seeds", "1,2,1"),
        *("--policies", "sync-fedavg, async-fedavg,sync-fedavg"),
    )

    assert outcome.code == 0, outcome.err
    assert "sync-fedavg" in outcome.out
    assert "±" in outcome.out
    runs = sorted(path.parent.name for path in tmp_path.glob("runs/*/summary.json"))
    assert runs == [f"{p}-seed{s}" for p in ("async-fedavg", "sync-fedavg") for s in (1, 2)]
    assert (tmp_path / "runs" / "report.html").is_file()


def test_progress_is_plain_lines_when_nobody_watches(metis: Metis) -> None:
    small = [word for word in SMALL if word != "--quiet"]

    outcome = metis("run", *small, "--policy", "sync-fedavg")

    assert outcome.code == 0, outcome.err
    assert "\x1b" not in outcome.out
    assert "version 2" in outcome.out


# ---- what there is ----------------------------------------------------------------------------


def test_policies_are_listed_for_people_and_programs(metis: Metis) -> None:
    rows = metis("policies", "--json").json

    assert {row["name"] for row in rows} == set(POLICIES)
    assert {row["name"] for row in rows} >= {
        *("sync-fedavg", "sync-dvw", "async-fedavg", "async-dvw", "async-dvw-adaptive"),
        *("fedasync", "sync-uniform", "async-uniform", "semisync-fedavg", "semisync-dvw"),
        "fedbuff",
    }
    assert metis("policies").code == 0


def test_the_default_config_is_printed_and_loads_back(metis: Metis, tmp_path: Path) -> None:
    printed = metis("config").out
    (tmp_path / "all.toml").write_text(printed)

    assert "# cores to compute with" in printed
    assert load(tmp_path / "all.toml") == load()
    completed = metis("config", "all.toml", "--set", "train.epochs=7").out
    assert tomllib.loads(completed)["train"]["epochs"] == 7


def test_data_sources_are_listed(metis: Metis) -> None:
    rows = {row["name"]: row for row in metis("data", "list", "--json").json}

    assert set(rows) == set(SOURCES)
    assert rows["digits"]["ready"] is True
    assert metis("data", "list").code == 0


def test_who_holds_what_is_printed_and_drawn(metis: Metis, tmp_path: Path) -> None:
    outcome = metis("data", "show", "--set", "learners=4", "--plot", "who.png")

    assert outcome.code == 0, outcome.err
    assert "learner-04 slow" in outcome.out
    assert outcome.out.splitlines()[-1] == "picture: who.png"
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")


def test_who_is_mistaken_about_what_they_hold_is_shown(metis: Metis) -> None:
    even = ("--set", "learners=2", "--set", "partition.sizes=uniform")
    alike = ("--set", "partition.classes=5", "--set", "partition.class_rule=in-turn")
    wrong = ("--set", "partition.wrong_labels={learner-01=1.0}")

    right, mistaken = (metis("data", "show", *even, *alike, *more) for more in ((), wrong))

    def held(out: str, learner: str) -> list[str]:
        (line,) = (line for line in out.splitlines() if line.startswith(f" {learner} "))
        return line.split()[-10:]

    assert held(mistaken.out, "learner-02") == held(right.out, "learner-02")
    assert "100 % of the labels of learner-01 wrong" in " ".join(mistaken.out.split())
    # Each digit is called the next one.
    shifted = held(right.out, "learner-01")
    assert held(mistaken.out, "learner-01") == [shifted[-1], *shifted[:-1]]


def test_a_regression_is_shown_too(metis: Metis) -> None:
    regression = ("--set", "data.name=diabetes", "--set", "partition.classes=iid")

    outcome = metis("data", "show", *regression)

    assert outcome.code == 0, outcome.err
    assert "learner-10 slow" in outcome.out


# ---- a process of its own ---------------------------------------------------------------------


def test_a_process_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    outcome = python("-m", "metis", "run", "--policy", "fedasinc", cwd=tmp_path)

    assert_refused(outcome, "did you mean 'fedasync'?")
    assert outcome.out == ""


def test_without_torch_a_run_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['metis', 'run', *{SMALL!r}]\n"
        "from metis.cli import main\n"
        "main()"
    )

    assert_refused(python("-c", script, cwd=tmp_path), "torch", "pip install 'metis-fl[learn]'")
    assert os.listdir(tmp_path) == []


def test_tuning_tries_every_engine_and_writes_the_fastest(metis: Metis, tmp_path: Path) -> None:
    done = metis("tune", *SMALL[:-1], "--seconds", "0.1", "--out", "tuned.toml", "--json")

    trials = json.loads(done.out)
    assert {trial["engine"] for trial in trials} >= {"loop", "stack"}
    rates = [trial["samples_per_second"] for trial in trials]
    assert rates == sorted(rates, reverse=True)
    tuned = load(tmp_path / "tuned.toml")
    assert (tuned.engine, tuned.threads) == (trials[0]["engine"], trials[0]["threads"])


def test_tuning_says_what_cannot_be_tried(metis: Metis) -> None:
    done = metis("tune", *SMALL[:-1], "--seconds", "0.1", "--set", "train.optimizer=adam")

    assert done.code == 0
    assert re.search(r"stack +1 threads +.*the optimizer is adam, not sgd", done.out)
    assert "fastest: engine = " in done.out


def test_an_engine_that_cannot_be_had_is_told_beside_the_result(metis: Metis) -> None:
    done = metis("run", *SMALL, "--set", "engine=graphs", "--json")

    assert done.code == 0
    assert done.err == "note: engine = loop instead of graphs: CUDA graphs need device = cuda\n"
    assert json.loads(done.out)["policy"]


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        # They have 360, 360, 359, 359 examples: seven mini-batches of 51, then one of 3 or 2.
        (
            ["train.batch_size=51", "train.last_batch=short"],
            "2 of 4 learners end each epoch with a mini-batch of at most 2 examples",
        ),
        (["train.batch_size=51", "train.last_batch=drop"], ""),
        (["train.batch_size=51"], ""),  # filled up
        (["train.batch_size=40", "train.last_batch=short"], ""),
        (
            ["train.batch_size=1000", "train.last_batch=short"],
            "",
        ),  # small learners, rather than small mini-batches
    ],
)
def test_a_tiny_last_mini_batch_is_noted(settings: list[str], note: str, metis: Metis) -> None:
    even = ["learners=4", "partition.sizes=uniform", "partition.classes=iid"]
    chosen = [word for setting in (*even, *settings) for word in ("--set", setting)]

    done = metis("run", "--policy", "sync-fedavg", *SMALL, *chosen, "--out", "run")

    assert done.code == 0
    said = " ".join(done.err.split())
    assert note in said if note else not said
    if note:
        assert 'train.last_batch = "fill" fills it up' in said


def test_a_wrong_or_a_former_way_to_treat_the_last_mini_batch_is_refused(
    metis: Metis, tmp_path: Path
) -> None:
    for setting, said in (
        ("train.last_batch=cut", "train.last_batch: unknown value 'cut'"),
        ("train.drop_last=true", 'train.drop_last: this key is gone; write train.last_batch = "dr'),
    ):
        done = metis("run", *SMALL, "--set", setting, "--out", "run")

        assert done.code == 2
        assert said in done.err
        assert not (tmp_path / "run").exists()


def test_policies_compared_together_are_shown_side_by_side(metis: Metis, tmp_path: Path) -> None:
    names = "sync-fedavg,async-fedavg"
    done = metis("compare", *SMALL, "--together", "--policies", names, "--out", "pair")

    assert done.code == 0
    for name in names.split(","):
        assert name in done.out
        assert (tmp_path / "pair" / name / "summary.json").exists()
    assert (tmp_path / "pair" / "report.html").exists()


# ---- the papers' verb, which a distribution of its own brings ------------------------------------


@pytest.mark.parametrize("arguments", [("table1",), ("table1", "--rows", "x"), ("--help",), ()])
def test_without_metis_papers_reproduce_says_what_to_install(
    arguments: tuple[str, ...], metis: Metis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: ())

    assert_refused(metis("reproduce", *arguments), "pip install metis-papers")
    shown = metis("--help")
    assert shown.code == 0
    assert "reproduce   Make a table or figure of the papers. Needs metis-papers" in shown.out


@pytest.mark.parametrize("value", ["metis_nowhere:commands", "metis.cli:nothing", "metis:simulate"])
def test_a_reproduce_that_does_not_fit_spoils_no_other_verb(
    value: str, metis: Metis, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("reproduce", value, "metis.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: (broken,))

    assert metis("policies").code == 0
    assert_refused(metis("reproduce", "table1"), "metis-papers")
