"""What a table or figure is made of, and which part of it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metis.core.errors import ConfigError, unknown
from metis_papers.cells import Cell, Domain, Horizon, Row, Setting, federated_cell


@dataclass(frozen=True, slots=True)
class Choice:
    """The part of a study that is wanted; None: all of it."""

    clusters: tuple[str, ...] | None = None
    rows: tuple[str, ...] | None = None  # by name
    policies: tuple[str, ...] | None = None
    data: str | None = None

    def must_be_the_papers_data(self, of: str) -> None:
        """Raise ConfigError if other data is wanted."""
        if self.data is not None:
            raise ConfigError(f"--data: {of} is made of the paper's data alone")

    def must_be(
        self,
        clusters: tuple[str, ...],
        rows: tuple[Row, ...],
        policies: tuple[str, ...],
        of: str,
    ) -> None:
        """Raise ConfigError if anything else is wanted, but for its data."""
        chosen(self.clusters, clusters, f"cluster of {of}")
        chosen_rows(self.rows, rows, of)
        chosen(self.policies, policies, f"policy of {of}")


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a study: text to print, which is also in the first of the files."""

    text: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Study:
    """A table or a figure: the runs it is made of, and what is written of them.

    `cells` raises ConfigError for a part that there is not. `report` shows what there is so far.
    """

    name: str
    summary: str
    cells: Callable[[Setting, Choice], list[Cell]]
    report: Callable[[Setting, Choice], Report]


@dataclass(frozen=True, slots=True)
class Grid:
    """The runs of a table: rows by policies, in one or two clusters."""

    name: str
    domain: Domain
    rows: tuple[Row, ...]
    policies: Mapping[str, tuple[str, ...]]  # by cluster
    horizons: Mapping[str, Horizon]
    smoke_row: Row
    more_rows: tuple[Row, ...] = ()  # made only when they are named
    other_data: str = ""  # the name of the data, if it is not the paper's
    of: str = ""  # the table of the paper, if this one differs from it
    difference: str = ""  # how it differs, in words

    @property
    def suffix(self) -> str:
        """The end of the names of files that are made of it, where it is of other data: -mnist."""
        return f"-{self.other_data}" if self.other_data else ""

    @property
    def table(self) -> str:
        """The table of the paper that it is, or differs from."""
        return self.of or self.name

    def cells(self, setting: Setting, choice: Choice) -> list[Cell]:
        clusters = chosen(choice.clusters, tuple(self.policies), f"cluster of {self.name}")
        rows = chosen_rows(choice.rows, self.rows, self.name, self.more_rows)
        if setting.scale == "smoke" and choice.rows is None:
            rows = (self.smoke_row,)
        known = tuple(dict.fromkeys(p for c in clusters for p in self.policies[c]))
        policies = chosen(choice.policies, known, f"policy of {self.name}")
        return [
            federated_cell(
                setting, self.name, self.domain, cluster, row, policy, seed, self.horizons[cluster]
            )
            for cluster in clusters
            for row in rows
            for policy in policies
            if policy in self.policies[cluster]
            for seed in setting.seeds
        ]


def chosen(
    asked: Iterable[str] | None, known: Sequence[str], what: str, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the names that were asked for, or all. Raises ConfigError for a wrong one."""
    if asked is None:
        return tuple(known)
    names = tuple(dict.fromkeys(asked))
    for name in names:
        if name not in (*known, *more):
            raise ConfigError(unknown(what, name, (*known, *more)))
    return names


def chosen_rows(
    asked: Iterable[str] | None, known: Sequence[Row], of: str, more: Sequence[Row] = ()
) -> tuple[Row, ...]:
    """Return the rows that were asked for by name, or all of a table."""
    rows = {str(row): row for row in (*known, *more)}
    names = [str(row) for row in known]
    others = [str(row) for row in more]
    return tuple(rows[name] for name in chosen(asked, names, f"row of {of}", others))
