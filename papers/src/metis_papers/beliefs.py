"""What might explain where our Table I is not the paper's: short runs, one thing changed in each.

A belief about the difference is worth a test. Each row here is Table I's with one reading of the
paper exchanged for another that its text or its authors' later scripts allow; where the curve moves
towards the paper's, the belief has something to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from metis.core.errors import ConfigError
from metis_papers import table1
from metis_papers.cells import Cell, Horizon, Row, Setting, federated_cell, rows
from metis_papers.formatting import (
    TITLES,
    costs_table,
    made_with,
    markdown_table,
    paired,
    score,
    write_page,
)
from metis_papers.published import ACCURACY
from metis_papers.results import LATE, Result, read_results
from metis_papers.study import Choice, Report, Study, chosen, chosen_rows

NAME = "beliefs"
SMOKE = ("in-turn", "buffer-1000", "drop-last")  # those that need code of their own
BOTH = ("sync-fedavg", "sync-dvw")
SHORT = Horizon(rounds=12)


@dataclass(frozen=True, slots=True)
class Belief:
    """One thing changed, and where that should show."""

    what: str
    rows: tuple[Row, ...]
    policies: tuple[str, ...] = BOTH
    partition: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = "homogeneous"
    horizon: Horizon = SHORT
    other_data: bool = True  # False: it is about numbers of examples, or a setting, of CIFAR-10


POWER_LAWS = rows("powerlaw-iid", "powerlaw-3")
GEOMETRIC = rows("geometric-iid", "geometric-3")

BELIEFS = {
    "geometric": Belief("sizes 1.5^-k instead of k^-1.5", GEOMETRIC),
    "in-turn": Belief(
        "classes k to k + x - 1 instead of the fullest",
        rows("uniform-5"),
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
    "short-last": Belief(
        "a last mini-batch that is not full stays short: DVW's largest learner ends on 2 examples",
        rows("powerlaw-iid", "powerlaw-5", "powerlaw-3"),
        train={"last_batch": "short"},
        other_data=False,
    ),
    "drop-last": Belief(
        "a last mini-batch that is not full is left out",
        POWER_LAWS,
        train={"last_batch": "drop"},
        other_data=False,
    ),
    "last-two": Belief(
        "mini-batches of 96, so that the last of the largest learner has 2 examples",
        POWER_LAWS,
        policies=BOTH[:1],
        train={"batch_size": 96, "last_batch": "short"},
        other_data=False,
    ),
    "short-last-4000": Belief(
        "a last mini-batch that is not full stays short",
        rows("powerlaw-3", "powerlaw-5"),
        policies=("async-fedavg", "async-dvw", "async-dvw-adaptive"),
        train={"last_batch": "short"},
        cluster="heterogeneous",
        horizon=Horizon(seconds=4000.0),
        other_data=False,
    ),
    "offer-best": Belief(
        "of a validation cycle the model of least loss is offered, not the latest",
        rows("powerlaw-3", "uniform-iid"),
        policies=("async-dvw-adaptive",),
        train={"offer": "best"},
        cluster="heterogeneous",
        horizon=Horizon(seconds=4000.0),
    ),
    "no-decay": Belief(
        "no weight decay",
        POWER_LAWS,
        policies=BOTH[:1],
        train={"weight_decay": 0.0},
        other_data=False,
    ),
}


def cells(setting: Setting, choice: Choice) -> list[Cell]:
    """Return the cells of all beliefs; a choice leaves some out."""
    grid = table1.grid_of(choice.data, NAME)
    beliefs = {name: one for name, one in BELIEFS.items() if one.other_data or grid is table1.GRID}
    known = tuple(dict.fromkeys(row for belief in beliefs.values() for row in belief.rows))
    there = chosen_rows(choice.rows, known, NAME)
    asked = tuple(dict.fromkeys(policy for one in beliefs.values() for policy in one.policies))
    policies = chosen(choice.policies, asked, f"policy of {NAME}")
    clusters = chosen(choice.clusters, tuple(grid.policies), f"cluster of {NAME}")
    most = 1 if setting.scale == "smoke" else None  # rows and policies of each
    found = [
        federated_cell(
            setting,
            NAME + grid.suffix,
            grid.domain,
            belief.cluster,
            row,
            policy,
            seed,
            belief.horizon,
            variant=f"{policy}-{name}",
            partition=belief.partition,
            train=belief.train,
        )
        for name, belief in beliefs.items()
        if belief.cluster in clusters
        if setting.scale != "smoke" or name in SMOKE
        for row in [row for row in belief.rows if row in there][:most]
        for policy in [policy for policy in belief.policies if policy in policies][:most]
        for seed in setting.seeds
    ]
    if not found:
        tried = "is tried at scale smoke for" if setting.scale == "smoke" else "is about"
        raise ConfigError(f"{NAME}: no belief {tried} these rows, policies and clusters together")
    return found


def report(setting: Setting, choice: Choice) -> Report:
    grid = table1.grid_of(choice.data, NAME)
    name = NAME + grid.suffix
    found = read_results(setting.out, [name])
    if not found:
        return write_page(setting.out, name, f"## {name}\n\nAll its cells are missing.\n")
    table = [one for one in read_results(setting.out, [grid.name]) if one.scale == found[0].scale]
    heads = (
        "changed",
        "row",
        "policy",
        "after",
        "with it",
        "in our table then",
        "difference",
        "paper, at its end",
    )
    alike: dict[tuple[str, str, str, str], list[Result]] = {}
    for belief_name, belief in BELIEFS.items():
        for one in found:
            if one.variant == f"{one.policy}-{belief_name}":
                after = f"{one.virtual_seconds:,.0f} s" if _is_timed(one) else str(one.horizon)
                key = (belief.what, str(one.row), TITLES[one.policy], after)
                alike.setdefault(key, []).append(one)
    lines = [(*key, *_beside_our_table(seeds, table)) for key, seeds in alike.items()]
    parts = [
        "## Beliefs about the difference, tested\n",
        "Means of the last three tests up to then; of 200 rounds, of the last ten; after virtual "
        f"seconds, over the last {LATE:.0%} of them. Differences are taken in the same seeds; of "
        "several, with standard error.\n",
        markdown_table(heads, lines),
        costs_table(found),
        made_with(found),
    ]
    return write_page(setting.out, name, "\n".join(parts))


def _beside_our_table(seeds: Sequence[Result], table: Sequence[Result]) -> tuple[str, ...]:
    """Return the scores of some seeds, our table's then, the differences, the paper's."""
    ours = {one.seed: _late(one, one) for one in seeds}
    theirs = {one.seed: _late(like, one) for one in seeds for like in table if _alike(like, one)}
    both = [
        (mine, other)
        for seed, mine in ours.items()
        if mine is not None and (other := theirs.get(seed)) is not None
    ]
    return (
        score([value for value in ours.values() if value is not None]),
        score([other for _, other in both]),
        paired(*zip(*both, strict=True)) if both else "-",
        score(_published(seeds[0])),
    )


def _is_timed(one: Result) -> bool:
    return one.horizon.seconds is not None


def _late(one: Result, other: Result) -> float | None:
    """Return the mean of the last few scores up to where another one ended, if it came so far."""
    timed = _is_timed(other)
    end = other.virtual_seconds if timed else other.rounds
    if (one.virtual_seconds if timed else one.rounds) < end - 1e-6:
        return None
    until = [point for point in one.curve if point[0 if timed else 1] <= end + 1e-6]
    if timed:
        last = [point for point in until if point[0] >= (1 - LATE) * end - 1e-6] or until[-1:]
    else:
        last = until[-max(3, len(until) // 20) :]
    return fmean(point[2] for point in last) if last else None


def _alike(table: Result, one: Result) -> bool:
    ours = (table.cluster, table.row, table.policy, table.seed)
    return ours == (one.cluster, one.row.of_the_paper, one.policy, one.seed)


def _published(one: Result) -> Sequence[float]:
    if one.dataset != table1.GRID.domain.name:
        return []
    end = table1.GRID.horizons[one.cluster]
    key = (table1.GRID.name, one.cluster, one.row.of_the_paper, one.policy, end)
    value = ACCURACY.get(key)
    return [] if value is None else [value]


STUDY = Study(NAME, "what might explain our differences to Table I", cells, report)
