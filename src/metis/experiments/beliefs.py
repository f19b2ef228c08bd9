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
CLUSTER = "homogeneous"
SMOKE = ("in-turn", "buffer-1000", "drop-last")  # those that need code of their own
BOTH = ("sync-fedavg", "sync-dvw")


@dataclass(frozen=True, slots=True)
class Belief:
    """One thing changed, and where that should show."""

    what: str
    rows: tuple[str, ...]
    policies: tuple[str, ...] = BOTH
    partition: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 12


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
        rounds=200,
    ),
    "no-decay": Belief(
        "no weight decay", POWER_LAWS, policies=BOTH[:1], train={"weight_decay": 0.0}
    ),
}


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return the cells of all beliefs; `--policies` and `--rows` leave some out."""
    known = tuple(dict.fromkeys(row for belief in BELIEFS.values() for row in belief.rows))
    rows = chosen(choice.rows, known, f"row of {NAME}")
    policies = chosen(choice.policies, BOTH, f"policy of {NAME}")
    return [
        federated_cell(
            setting,
            NAME,
            table1.GRID.domain,
            CLUSTER,
            row,
            policy,
            seed,
            Horizon(rounds=belief.rounds),
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
    table = [
        one
        for one in read_outcomes(setting.out / "table1")
        if one.cluster == CLUSTER and one.scale == found[0].scale
    ]
    heads = (
        "changed",
        "row",
        "policy",
        "round",
        "with it",
        "in our table then",
        "paper, round 200",
    )
    lines = [
        (
            belief.what,
            one.row,
            TITLES[one.policy],
            str(one.rounds),
            score(_late(one, one.rounds)),
            score([s for like in table if _alike(like, one) for s in _late(like, one.rounds)]),
            score(_published(one)),
        )
        for name, belief in BELIEFS.items()
        for one in found
        if one.variant == f"{one.policy}-{name}"
    ]
    parts = [
        "## Beliefs about the difference, tested\n",
        "Means of the last three tests up to that round; of 200 rounds, of the last ten.\n",
        markdown_table(heads, lines),
        costs_table(found),
        made_with(found),
    ]
    return write_page(setting.out, NAME, "\n".join(parts))


def _late(one: Outcome, rounds: int) -> list[float]:
    """Return the mean of the last few scores up to a round, if it came so far."""
    until = [value for _, version, value in one.curve if version <= rounds]
    if one.rounds < rounds or not until:
        return []
    last = until[-max(3, rounds // 20) :]
    return [sum(last) / len(last)]


def _of_the_paper(row: str) -> str:
    """Return the paper's row that a row stands for: there are two readings of its power law."""
    return row.replace("geometric", "powerlaw")


def _alike(table: Outcome, one: Outcome) -> bool:
    return (table.row, table.policy, table.seed) == (_of_the_paper(one.row), one.policy, one.seed)


def _published(one: Outcome) -> Sequence[float]:
    row = _of_the_paper(one.row)
    value = ACCURACY.get((table1.GRID.name, CLUSTER, row, one.policy, "200 rounds"))
    return [] if value is None else [value]


STUDY = Study(NAME, "what might explain our differences to Table I", cells, report)
