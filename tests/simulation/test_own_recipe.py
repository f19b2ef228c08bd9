"""A recipe of the user's own: passed, or named as `file.py:function`; through a crash, and back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import metis
from metis.config import Config, load
from metis.core.errors import ConfigError, Interrupted, JournalError, RunError
from metis.core.policies import recipe
from metis.federation.handshake import agreed
from metis.journal.file import read_journal
from metis.replay.verify import replay
from metis.report.runs import read_run, series_of
from metis.simulation.build import lay_out
from metis.simulation.run import resume, run
from tests.simulation.test_run import StopAfter, assert_same_run, small

#: A file with a weighting, a trigger and a community of its own. `Tally` is no dataclass, and has a
#: history that its weights depend on.
SOURCE = '''
from __future__ import annotations

from dataclasses import dataclass, field, replace

import metis


@dataclass(frozen=True, slots=True)
class ByRoot:
    judged_by: metis.Judges = "nobody"

    def weigh(self, update, pooled, versions_behind):
        return float(update.num_examples ** 0.5)


class Tally:
    """Counts what it weighed: a learner's second update weighs twice as much as its first."""

    judged_by = "nobody"

    def __init__(self):
        self.seen = {}

    def weigh(self, update, pooled, versions_behind):
        self.seen[update.learner] = self.seen.get(update.learner, 0) + 1
        return float(self.seen[update.learner])

    def state(self):
        return dict(self.seen)

    def restore(self, state):
        self.seen = dict(state)


@dataclass(frozen=True, slots=True)
class EveryOther:
    needs_loss: bool = False
    certain_epochs: int = 1

    def __call__(self, progress):
        return progress.epochs > len(progress.cycles) % 2


@dataclass(slots=True)
class Note:
    """Made while the community works, and not there at the start."""

    learner: str


@dataclass(slots=True)
class Noting:
    inner: metis.CachedAverage = field(default_factory=metis.CachedAverage)
    notes: list = field(default_factory=list)

    def fold(self, update, weight, base):
        self.notes = [*self.notes[-5:], Note(update.learner)]
        self.inner.fold(update, weight, base)

    def drop(self, learner):
        return self.inner.drop(learner)

    def model(self, current):
        assert all(isinstance(note, Note) for note in self.notes)
        return self.inner.model(current)

    def reject(self, current):
        self.inner.reject(current)


def by_root():
    return metis.Recipe(metis.RoundAverage(), ByRoot(), metis.Sync())


def all_own():
    return metis.Recipe(Noting(), Tally(), metis.Async(), trigger=EveryOther())


def sampled(choices):
    return metis.Recipe(metis.RoundAverage(), ByRoot(), metis.Sync(choices.recipe.sample))


def scored(choices):
    return metis.recipe("sync-dvw", choices)


def strict():
    return metis.Recipe(
        metis.RoundAverage(), metis.ByValidation("macro_f1", "others"), metis.Sync(), holds_out=True
    )


def no_recipe():
    return ByRoot()


class Forgetful:
    judged_by = "nobody"

    def weigh(self, update, pooled, versions_behind):
        return 1.0


def forgetful():
    return metis.Recipe(metis.RoundAverage(), Forgetful(), metis.Sync())
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@dataclass(frozen=True, slots=True)
class BySteps:
    """A weighting of this file, to be passed."""

    judged_by: metis.Judges = "nobody"

    def weigh(self, update: metis.Update, pooled: object, versions_behind: int) -> float:
        return float(update.num_steps)


def own(policy: str, **values: Any) -> Config:
    return small(policy, output={"keep_updates": True, "checkpoint_seconds": 0.0}, **values)


def test_a_recipe_that_is_passed_does_what_the_policy_of_the_same_parts_does() -> None:
    config = small("sync-fedavg")
    passed = metis.Recipe(metis.RoundAverage(), metis.ByExamples(), metis.Sync())

    one, other = run(config), run(config, recipe=passed)

    assert one.weights.tobytes() == other.weights.tobytes()
    assert other.config.policy == "passed in Python"
    assert passed.community == metis.RoundAverage()  # the run worked on a copy


def test_a_recipe_in_a_file_is_recorded_with_its_place_and_its_digest(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    made = run(own("mine.py:by_root"), tmp_path / "run")

    header = next(read_journal(tmp_path / "run" / "journal.jsonl"))
    assert load(tmp_path / "run" / "config.toml").policy == f"{mine}:by_root"
    assert header["policy"] == f"{mine}:by_root"
    assert len(header["policy_digest"]) == 64
    weights = {r["weight"] for r in _folds(tmp_path / "run")}
    examples = {row["examples"] ** 0.5 for row in header["learners"]}
    assert weights <= examples
    assert replay(tmp_path / "run").last_digest
    assert made.config.policy_label == "mine-by_root"
    assert [one.label for one in series_of([read_run(tmp_path / "run")])] == ["mine.py:by_root"]


@pytest.mark.parametrize("policy", ["by_root", "all_own"])
def test_a_run_with_a_recipe_of_ones_own_resumes_to_the_same_bytes(
    policy: str, mine: Path, tmp_path: Path
) -> None:
    config = own(f"{mine}:{policy}")
    run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", listeners=(StopAfter(60),))

    resume(tmp_path / "cut")

    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert replay(tmp_path / "cut").last_digest == replay(tmp_path / "whole").last_digest


def test_a_recipe_that_is_passed_is_passed_again_to_resume_and_replay(tmp_path: Path) -> None:
    config = own("sync-fedavg")
    mine = metis.Recipe(metis.RoundAverage(), BySteps(), metis.Sync())
    run(config, tmp_path / "whole", recipe=mine)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "cut", recipe=mine, listeners=(StopAfter(60),))

    with pytest.raises(ConfigError, match="recipe was passed in Python; pass it again there"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut", recipe=mine)

    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    with pytest.raises(ConfigError, match="pass it again there"):
        replay(tmp_path / "cut")
    assert replay(tmp_path / "cut", recipe=mine).last_digest


def test_a_file_that_changed_since_is_refused_by_resume_and_by_replay(
    mine: Path, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        run(own(f"{mine}:by_root"), tmp_path / "run", listeners=(StopAfter(60),))
    mine.write_text(SOURCE.replace("0.5", "0.4"))

    with pytest.raises(RunError, match=r"begun with another policy_digest: .*file of its policy"):
        resume(tmp_path / "run")
    with pytest.raises(JournalError, match="policy_digest"):
        replay(tmp_path / "run")


@pytest.mark.parametrize("kind", ["file", "passed"])
def test_a_part_that_no_checkpoint_can_hold_is_refused_before_the_run_starts(
    kind: str, mine: Path, tmp_path: Path
) -> None:
    class Forgetful:
        judged_by: metis.Judges = "nobody"
        weigh: Callable[..., float] = staticmethod(lambda *_: 1.0)

    passed: Any = {"recipe": metis.Recipe(metis.RoundAverage(), Forgetful(), metis.Sync())}
    config = own(f"{mine}:forgetful") if kind == "file" else own("sync-fedavg")

    with pytest.raises(
        ConfigError, match=r"policy: cannot checkpoint a Forgetful.*must be a datac"
    ):
        run(config, tmp_path / "run", **(passed if kind == "passed" else {}))

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("policy", "values", "message"),
    [
        ("no_recipe", {}, r"returned a ByRoot; it must return metis\.Recipe"),
        ("missing", {}, "has no function 'missing'"),
        ("by_root", {"recipe": {"sample": 2}}, r"recipe\.sample = 2: nothing would use it"),
        ("by_root", {"output": {"latest_models": "disk"}}, "keeps no latest models"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(
    policy: str, values: dict[str, Any], message: str, mine: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        lay_out(small(f"{mine}:{policy}", **values))


def test_a_recipe_function_may_take_the_numbers_of_the_config(mine: Path) -> None:
    parts = lay_out(small(f"{mine}:sampled", recipe={"sample": 2}))

    assert parts.recipe.pacing == metis.Sync(2)


@pytest.mark.parametrize(
    ("policy", "values", "metric", "self_score"),
    [
        ("scored", {}, "micro_f1", "include"),
        ("scored", {"validation": {"metric": "mcc"}}, "mcc", "include"),
        ("scored", {"data": {"name": "diabetes"}}, "inverse_mse", "include"),
        ("strict", {}, "macro_f1", "exclude"),
    ],
)
def test_the_config_of_a_run_says_how_its_own_recipe_scores(
    policy: str, values: dict[str, Any], metric: str, self_score: str, mine: Path
) -> None:
    values = {"partition": {"sizes": "uniform", "classes": "iid"}, **values}

    config = lay_out(small(f"{mine}:{policy}", **values)).config

    assert (config.validation.metric, config.validation.self_score) == (metric, self_score)
    assert lay_out(config).config == config  # as a resumed run finds it


def test_a_metric_that_the_recipe_does_not_have_is_refused(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric = 'mcc' .* leave both out"):
        lay_out(small(f"{mine}:strict", validation={"metric": "mcc"}))
    with pytest.raises(ConfigError, match="'macro_f1' does not score a regression"):
        lay_out(small(f"{mine}:strict", data={"name": "diabetes"}, partition={"classes": "iid"}))


def test_a_recipe_says_which_part_lacks_what() -> None:
    with pytest.raises(ConfigError, match="the weighting of a recipe must have judged_by, weigh"):
        metis.Recipe(metis.RoundAverage(), metis.RoundAverage(), metis.Sync())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="holds_out=True"):
        metis.Recipe(metis.RoundAverage(), metis.ByValidation(), metis.Sync())


def test_a_site_never_runs_a_file_that_its_controller_names(mine: Path) -> None:
    with pytest.raises(ConfigError, match="a recipe of your own runs in a simulation"):
        agreed(small(f"{mine}:by_root"))


def test_a_named_recipe_can_be_changed_in_one_part() -> None:
    named = recipe("async-dvw", metis.Choices())
    mine = replace(named, trigger=metis.AfterEpochs(1))

    made = run(small("sync-fedavg"), recipe=mine)

    assert {r["epoch"] for r in made.records if r["kind"] == "steps"} == {1}
    assert made.config.validation.metric == "micro_f1"


def test_the_command_line_runs_kills_and_resumes_a_recipe_of_ones_own(
    mine: Path, tmp_path: Path
) -> None:
    def metis_run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "metis", "run", "--quiet", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    config = own("sync-fedavg")
    from metis.config import dump

    (tmp_path / "fed.toml").write_text(dump(replace(config, policy="mine.py:all_own")))
    done = metis_run("fed.toml", "--out", "whole")
    assert done.returncode == 0, done.stderr
    killed = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from metis.config import load\n"
        "from metis.simulation import run, session\n"
        "def die(record):\n"
        "    die.left -= 1\n"
        "    if die.left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "die.left = 60\n"
        "chosen = load('fed.toml', output={'checkpoint_seconds': 1e-9})\n"
        "run.run(chosen, Path('cut'), listeners=(die,))\n"
    )
    dead = subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False)
    assert dead.returncode == -9
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()

    done = metis_run("--resume", "cut")

    assert done.returncode == 0, done.stderr
    one, other = ((tmp_path / name / "summary.json").read_text() for name in ("whole", "cut"))
    assert json.loads(one)["curve"] == json.loads(other)["curve"]
    final = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert final[0] == final[1]


def _folds(directory: Path) -> list[dict[str, Any]]:
    records = read_journal(directory / "journal.jsonl")
    return [fold for one in records if one["kind"] == "version" for fold in one["folds"]]
