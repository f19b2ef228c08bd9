"""What might explain where our Table I is not the paper's: short runs, one thing changed in each.

A belief about the difference is worth a test. Each row here is Table I's with one reading of the
paper exchanged for another that its text or its authors' later scripts allow; where the curve moves
towards the paper's, the belief has something to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metis.experiments import table1
from metis.experiments.cells import Cell, Horizon, Setting, federated_cell
from metis.experiments.outcome import Outcome, read_outcomes
from metis.experiments.published import ACCURACY
from metis.experiments.study import Choice, Report, Study, chosen
from metis.experiments.words import (
    TITLES,
    costs_table,
    made_with,
    markdown_table,
    score,
    write_page,
)

NAME = "beliefs"
SMOKE = ("in-turn", "buffer-1000", "drop-last")  # those that need code of their own
BOTH = ("sync-fedavg", "sync-dvw")
SHORT = Horizon(rounds=12)


@dataclass(frozen=True, slots=True)
class Belief:
    """One thing changed, and where that should show."""

    what: str
    rows: tuple[str, ...]
    policies: tuple[str, ...] = BOTH
    partition: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = "homogeneous"
    horizon: Horizon = SHORT


POWER_LAWS = ("powerlaw-iid", "powerlaw-3")
GEOMETRIC = ("geometric-iid", "geometric-3")

BELIEFS = {
    "geometric": Belief("sizes 1.5^-k instead of k^-1.5", GEOMETRIC),
    "in-turn": Belief(
        "classes k to k + x - 1 instead of the fullest",
        ("uniform-5",),
        partition={"class_rule": "in-turn"},
    ),
    "buffer-1000": Belief(
        "examples class by class, through a shuffle buffer of 1,000",
        (*POWER_LAWS, *GEOMETRIC),
        train={"shuffle_buffer": 1000},
    ),
    "buffer-250": Belief(
        "the same with a buffer of 250", POWER_LAWS, train={"shuffle_buffer": 250}
    ),
    "drop-last": Belief(
        "a last mini-batch that is not full is left out",
        POWER_LAWS,
        train={"drop_last": True},
    ),
    "last-two": Belief(
        "mini-batches of 96, so that the last of the largest learner has 2 examples",
        POWER_LAWS,
        policies=BOTH[:1],
        train={"batch_size": 96},
    ),
    "drop-last-200": Belief(
        "a last mini-batch that is not full is left out",
        ("skewed-iid", "skewed-3", "skewed-5"),
        policies=BOTH[:1],
        train={"drop_last": True},
        horizon=Horizon(rounds=200),
    ),
    "long": Belief(
        "11 local epochs instead of 4, as many as fast adaptive learners choose there",
        ("powerlaw-3",),
        policies=("async-dvw",),
        train={"epochs": 11},
        cluster="heterogeneous",
        horizon=Horizon(seconds=4000.0),
    ),
    "drop-last-4000": Belief(
        "a last mini-batch that is not full is left out",
        ("powerlaw-3",),
        policies=("async-dvw", "async-dvw-adaptive"),
        train={"drop_last": True},
        cluster="heterogeneous",
        horizon=Horizon(seconds=4000.0),
    ),
    "no-decay": Belief(
        "no weight decay", POWER_LAWS, policies=BOTH[:1], train={"weight_decay": 0.0}
    ),
}


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return the cells of all beliefs; `--policies` and `--rows` leave some out."""
    choice.must_be_the_papers_data(NAME)
    known = tuple(dict.fromkeys(row for belief in BELIEFS.values() for row in belief.rows))
    rows = chosen(choice.rows, known, f"row of {NAME}")
    asked = tuple(dict.fromkeys(policy for one in BELIEFS.values() for policy in one.policies))
    policies = chosen(choice.policies, asked, f"policy of {NAME}")
    return [
        federated_cell(
            setting,
            NAME,
            table1.GRID.domain,
            belief.cluster,
            row,
            policy,
            seed,
            belief.horizon,
            variant=f"{policy}-{name}",
            partition=belief.partition,
            train=belief.train,
        )
        for name, belief in BELIEFS.items()
        if setting.scale != "smoke" or name in SMOKE
        for row in (belief.rows if setting.scale != "smoke" else belief.rows[:1])
        if row in rows
        for policy in (belief.policies if setting.scale != "smoke" else belief.policies[:1])
        if policy in policies
        for seed in setting.seeds
    ]


def report(setting: Setting, choice: Choice) -> Report:
    found = read_outcomes(setting.out / NAME)
    if not found:
        return write_page(setting.out, NAME, f"## {NAME}\n\nAll its cells are missing.\n")
    table = [one for one in read_outcomes(setting.out / "table1") if one.scale == found[0].scale]
    heads = (
        "changed",
        "row",
        "policy",
        "after",
        "with it",
        "in our table then",
        "paper, at its end",
    )
    lines = [
        (
            belief.what,
            one.row,
            TITLES[one.policy],
            f"{one.virtual_seconds:,.0f} s" if _is_timed(one) else f"{one.rounds} rounds",
            score(_late(one, one)),
            score([s for like in table if _alike(like, one) for s in _late(like, one)]),
            score(_published(one)),
        )
        for name, belief in BELIEFS.items()
        for one in found
        if one.variant == f"{one.policy}-{name}"
    ]
    parts = [
        "## Beliefs about the difference, tested\n",
        "Means of the last three tests up to then; of 200 rounds, of the last ten.\n",
        markdown_table(heads, lines),
        costs_table(found),
        made_with(found),
    ]
    return write_page(setting.out, NAME, "\n".join(parts))


def _is_timed(one: Outcome) -> bool:
    return not one.horizon.endswith("rounds")


def _late(one: Outcome, other: Outcome) -> list[float]:
    """Return the mean of the last few scores up to where another one ended, if it came so far."""
    timed = _is_timed(other)
    end = other.virtual_seconds if timed else other.rounds
    until = [point[2] for point in one.curve if point[0 if timed else 1] <= end + 1e-6]
    if (one.virtual_seconds if timed else one.rounds) < end - 1e-6 or not until:
        return []
    last = until[-max(3, len(until) // 20) :]
    return [sum(last) / len(last)]


def _of_the_paper(row: str) -> str:
    """Return the paper's row that a row stands for: there are two readings of its power law."""
    return row.replace("geometric", "powerlaw")


def _alike(table: Outcome, one: Outcome) -> bool:
    ours = (table.cluster, table.row, table.policy, table.seed)
    return ours == (one.cluster, _of_the_paper(one.row), one.policy, one.seed)


def _published(one: Outcome) -> Sequence[float]:
    end = table1.GRID.horizons[one.cluster].in_words()
    key = (table1.GRID.name, one.cluster, _of_the_paper(one.row), one.policy, end)
    value = ACCURACY.get(key)
    return [] if value is None else [value]


STUDY = Study(NAME, "what might explain our differences to Table I", cells, report)
