"""Cells of another arithmetic leave the tables; a twin tells arithmetics apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from papers.tests.made_up import put, result

from metis.core.errors import RunError
from metis_papers import numerics
from metis_papers.cells import Setting
from metis_papers.results import read_results
from metis_papers.run_cells import finished
from metis_papers.study import Choice
from metis_papers.table1 import cells


@pytest.mark.parametrize("name", numerics.names())
def test_a_twin_computes_what_the_file_says(name: str) -> None:
    """If this fails on purpose: `python -m metis_papers.numerics`, and make cells again."""
    assert numerics.kept()[name].agrees_with(numerics.compute(name))


def test_a_twin_notices_another_way_to_train(tmp_path: Path) -> None:
    name = "async-dvw/mlp"
    usual = numerics.config_of(name, tmp_path)

    for change in (
        {"last_batch": "short"},
        {"last_batch": "drop"},
        {"momentum": 0.51},
        {"epochs": 2},
        {"proximal": 0.01},
    ):
        config = replace(usual, train=replace(usual.train, **change))
        assert not numerics.kept()[name].agrees_with(numerics.run_twin(config)), change
    fewer = replace(usual, validation=replace(usual.validation, fraction=0.3))
    assert not numerics.kept()[name].agrees_with(numerics.run_twin(fewer))


def test_numbers_that_a_processor_rounds_may_differ_and_facts_may_not() -> None:
    twin = numerics.Twin("facts", (2.0, 50.0))

    assert twin.agrees_with(numerics.Twin("facts", (2.0 + 1e-5, 50.0 - 5e-4)))
    assert not twin.agrees_with(numerics.Twin("facts", (2.01, 50.0)))
    assert not twin.agrees_with(numerics.Twin("facts", (2.0,)))
    assert not twin.agrees_with(numerics.Twin("others", (2.0, 50.0)))


def test_a_cell_of_another_arithmetic_leaves_the_tables_and_is_not_made_twice(
    tmp_path: Path,
) -> None:
    (wanted,) = cells(Setting(tmp_path), Choice(("heterogeneous",), ("powerlaw-3",), ("sync-dvw",)))
    here = result("sync-dvw", 0.5)
    old = result("async-dvw", 0.6, numerics="0123456789ab")
    older = result("sync-fedavg", 0.7, numerics="")
    assert here.numerics

    put(tmp_path, here, old, older)

    assert [one.policy for one in read_results(tmp_path, ["table1"])] == ["sync-dvw"]
    path = wanted.directory(tmp_path) / "cell.json"
    path.parent.mkdir(parents=True)
    stale = next(iter(tmp_path.rglob("async-dvw-1/cell.json")))
    path.write_text(stale.read_text())
    with pytest.raises(RunError, match="made at abc, whose arithmetic is not today's: remove it"):
        finished(wanted, tmp_path)
