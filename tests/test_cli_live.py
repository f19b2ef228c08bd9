"""The verbs of a live federation: what they refuse, and a whole one on this machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from metis.cli.common import complain, tell
from metis.config import load
from metis.journal.file import read_journal
from metis.service.open_federation import found
from metis.storage.weights import read_first
from tests.command import Metis, assert_refused
from tests.service.hub import hub

SMALL = """
policy = "sync-dvw"
learners = 2
threads = 1
engine = "loop"
[model]
name = "linear"
[train]
epochs = 1
[horizon]
versions = 3
[output]
keep_updates = true
"""

SITE = """
import numpy as np
import torch
import metis

def make_learner(name):
    chance = np.random.default_rng(len(name))
    x = chance.normal(size=(40, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    data = metis.Dataset("mine", x[:30], y[:30], x[30:], y[30:], num_classes=2)
    return metis.Learner(model=torch.nn.Linear(6, 2), data=data)

def wrong():
    return 7
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("controller", "--certs DIR names the certificates"),
        ("controller --plain --certs c", "give one of them"),
        ("controller --plain --listen 0.0.0.0:7400", "--plain is for this machine alone"),
        ("controller --plain --listen nonsense", "expected HOST:PORT"),
        ("controller --plain --config none.toml", "none.toml: No such file"),
        ("controller --plain --log loud", "unknown log style 'loud'"),
        ("controller --plain --listen 127.0.0.1:0 --initial none.safetensors", "No such file"),
        ("learner --controller 127.0.0.1:1 --plain --name a", "needs --app or --config"),
        ("learner --controller hub:1 --plain --name a --app s.py:f", "this machine alone"),
        ("learner --controller 127.0.0.1:1 --plain --app s.py:f", "--name"),
        ("learner --controller 127.0.0.1:1 --certs c --app s.py:f", "c: holds no key"),
        ("status 127.0.0.1:1 --plain", "the controller cannot be reached"),
        ("stop 127.0.0.1:1 --plain", "the controller cannot be reached"),
        ("model test none.safetensors", "none.safetensors"),
        ("model init --app none.py:f", "there is no file none.py"),
    ],
)
def test_a_wrong_line_is_answered_by_what_would_be_right(
    metis: Metis, line: str, words: str
) -> None:
    outcome = metis(*line.split())

    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert not Path("state/config.toml").exists()


def test_what_others_wrote_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    line = "errors resolving hub:7400: [field:hostname lookup error], [/stopped], fe80::b:1"

    tell(line)
    complain("error: ", line)

    printed = capsys.readouterr()
    assert printed.out == f"{line}\n"
    assert printed.err == f"error: {line}\n"


def test_what_a_site_calls_its_group_is_shown_as_it_stands(metis: Metis, tmp_path: Path) -> None:
    with hub(tmp_path / "hub") as controller, controller.line("site") as line:
        hello = controller.hello("site")
        line.join(replace(hello, profile=replace(hello.profile, group="[/red] :b: [bold]")))

        outcome = metis("status", controller.address, "--plain")

    assert outcome.code == 0, outcome.err
    assert "[/red] :b: [bold]" in outcome.out


def test_plain_text_says_so_loudly(metis: Metis) -> None:
    outcome = metis("status", "127.0.0.1:1", "--plain")

    assert outcome.err.startswith("warning: plain text: no certificates, names are believed")


def test_the_first_model_holds_all_that_a_controller_needs(metis: Metis) -> None:
    Path("fed.toml").write_text(SMALL)

    outcome = metis("model", "init", "fed.toml", "--out", "first.safetensors")

    weights, layout, num_classes = read_first("first.safetensors")
    assert outcome.out == f"first.safetensors: 650 parameters, 10 classes, layout {layout.digest}\n"
    assert (weights.size, num_classes) == (650, 10)


def test_a_sites_own_function_makes_the_first_model_too(metis: Metis) -> None:
    Path("site.py").write_text(SITE)

    first = metis("model", "init", "--app", "site.py:make_learner", "--out", "a.safetensors")
    again = metis("model", "init", "--app", "site.py:make_learner", "--out", "b.safetensors")

    assert "14 parameters, 2 classes" in first.out
    assert again.code == 0
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    score = metis("model", "test", "a.safetensors", "--app", "site.py:make_learner", "--json").json
    assert 0.0 <= score["score"] <= 1.0
    assert score["examples"] == "10 test examples of mine"
    assert_refused(metis("model", "init", "--app", "site.py:wrong"), "returned a int", "Learner")


def test_a_file_without_a_layout_is_no_first_model(metis: Metis) -> None:
    Path("fed.toml").write_text(SMALL)
    run = metis("run", "fed.toml", "--out", "run", "--quiet")
    assert run.code == 0

    line = "controller --plain --listen 127.0.0.1:0 --config fed.toml --initial"
    outcome = metis(*line.split(), "run/model.safetensors")

    assert outcome.code == 2
    assert "make one with `metis model init`" in outcome.err


def test_a_controller_starts_without_torch_and_says_how_to_get_a_first_model(
    tmp_path: Path,
) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from metis.cli import main\n"
        "sys.argv = ['metis', 'controller', '--plain', '--listen', '127.0.0.1:0']\n"
        "main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.returncode == 2
    assert "error: --initial: torch is not installed here" in done.stderr
    assert "metis model init" in done.stderr


def test_up_runs_a_federation_of_real_processes_that_replays_and_goes_on(metis: Metis) -> None:
    Path("fed.toml").write_text(SMALL)

    outcome = metis("up", "fed.toml", "--out", "live", "--quiet")

    assert outcome.code == 0, outcome.err
    assert outcome.out == "over: versions; the model is live/state/model.safetensors\n"
    verified = metis("replay", "live/state", "--json").json
    assert verified["versions"] == 3
    records = list(read_journal(Path("live/state/journal.jsonl")))
    waits = [r["wall_waited"] for r in records if r["kind"] == "score"]
    assert len(waits) == 6
    assert all(0 <= wait < 10 for wait in waits)
    simulated = metis("run", "fed.toml", "--out", "simulated", "--quiet")
    assert simulated.code == 0
    digests = [
        [r["digest"] for r in read_journal(Path(at) / "journal.jsonl") if r["kind"] == "version"]
        for at in ("live/state", "simulated")
    ]
    assert digests[0] == digests[1]
    again = metis("up", "fed.toml", "--out", "live", "--quiet", "--set", "seed=3")
    assert_last_line(again.err, "was founded with another config: seed is 3 here, 1990 in")


def assert_last_line(text: str, words: str) -> None:
    assert words in text.strip().splitlines()[-1]


def test_a_config_that_differs_from_the_controllers_is_refused_by_its_key(
    metis: Metis, tmp_path: Path
) -> None:
    Path("fed.toml").write_text(SMALL)
    metis("model", "init", "fed.toml")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "metis", "controller", "--plain", "--config", "fed.toml"),
            *("--listen", "127.0.0.1:0", "--initial", "initial.safetensors"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[2].decode()
    Path("site.py").write_text(SITE)
    caller = ["learner", "--controller", address, "--plain", "--name", "learner-01"]

    other = metis(*caller, "--config", "fed.toml", "--set", "train.epochs=9")
    nobody = metis(*caller[:-1], "stranger", "--config", "fed.toml")
    own = metis(*caller, "--app", "site.py:make_learner")
    stand = metis("status", address, "--plain", "--json").json
    shown = metis("status", address, "--plain")
    stopped = metis("stop", address, "--plain", "--reason", "lunch")

    assert "the configs differ: train.epochs is 9 here, 1 at the controller" in other.err
    assert "unknown learner 'stranger'" in nobody.err
    assert "this site's model has layout" in own.err
    assert stand["version"] == 0
    assert stand["members"] == []
    assert "sync-dvw: version 0 of 3" in shown.out
    assert stopped.code == 0
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    kinds = [r for r in read_journal(tmp_path / "state" / "journal.jsonl") if r["kind"] == "audit"]
    assert [(r["what"], r["who"], r["reason"]) for r in kinds] == [("stop", "operator", "lunch")]


def test_when_held_out_examples_are_released_cannot_be_changed_afterwards(metis: Metis) -> None:
    Path("fed.toml").write_text(SMALL + "[validation]\nrelease_last = 1\n")
    Path("more.toml").write_text(
        Path("fed.toml").read_text().replace("versions = 3", "versions = 9")
    )
    found(Path("state"), load("fed.toml")).journal.close()
    found(Path("state"), load("fed.toml")).journal.close()

    outcome = metis("controller", "--plain", "--listen", "127.0.0.1:0", "--config", "more.toml")

    assert outcome.code == 2
    assert "versions = 3 and validation.release_last = 1" in outcome.err
    assert "leave both as they were" in outcome.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('policy = "sync-fedavg"\n[train]\nschedule = "plateau"\n', "train.schedule = 'plateau'"),
        ('[train]\nbatch_norm_statistics = "local"\n', "train.batch_norm_statistics = 'local'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_federation_is_founded(
    metis: Metis, settings: str, words: str
) -> None:
    Path("fed.toml").write_text('learners = 2\n[model]\nname = "linear"\n[horizon]\nversions = 3\n')
    metis("model", "init", "fed.toml")
    Path("fed.toml").write_text(f"learners = 2\n{settings}")
    line = "controller --plain --listen 127.0.0.1:0 --initial initial.safetensors --config fed.toml"

    outcome = metis(*line.split())

    assert outcome.code == 2
    assert words in outcome.err
    assert not list(Path().glob("state/*.*"))


def test_the_state_directory_holds_one_federation_only(metis: Metis) -> None:
    Path("fed.toml").write_text(SMALL)
    Path("other.toml").write_text(SMALL.replace("sync-dvw", "sync-fedavg"))
    Path("state").mkdir()
    found(Path("state"), load("fed.toml")).journal.close()

    line = "controller --plain --listen 127.0.0.1:0 --config other.toml"
    outcome = metis(*line.split())

    assert outcome.code == 2
    assert "was founded with another config: policy is" in outcome.err
