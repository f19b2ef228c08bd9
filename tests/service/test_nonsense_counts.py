"""Counts, steps and examples that nobody can have had: they decide nothing, and harm nobody."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from metis.core.errors import HandshakeError
from metis.core.types import ErrorSums
from metis.service.connection import EvaluateOrder, TrainOrder
from metis.service.grpc import wire_pb2 as wire
from metis.storage.weights import read_safetensors
from tests.service.hub import LAYOUT, Hub, Member, Steady, eventually, hub

_HUGE = 2**64 - 1
JUDGED = ['policy="async-dvw"', "validation.deadline_seconds=1.0", "live.calls_at_once=200"]
SUMS = ErrorSums(10, 1.0, 2.0, 3.0, 4.0)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A federation of three classes, in which judges decide what a model counts for."""
    with hub(tmp_path_factory.mktemp("classes"), settings=JUDGED) as found:
        yield found


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with hub(tmp_path_factory.mktemp("regression"), num_classes=0, settings=JUDGED) as found:
        yield found


def judged(found: Hub, report: wire.Counts, **own: Any) -> tuple[dict[str, Any], str]:
    """Let a judge send counts; return the fold that came of it, and what the judge was told."""
    with found.member("author") as author, found.member("judge") as judge:
        order = author.next(TrainOrder)
        assert author.answer(order, **own).taken
        asked = judge.next(EvaluateOrder)
        told = ""
        with found.bare("judge") as bare:
            score = bare.method("Score", "unary_unary", wire.Nothing)
            message = wire.ScoreReport(evaluation=asked.evaluation, counts=report)
            try:
                score(message, metadata=bare.metadata)
            except grpc.RpcError as error:
                told = f"{error.code().name}: {error.details()}"
        assert author.next(TrainOrder).version > order.version  # whatever the judge said
    return _fold(found, order.task), told


def _fold(found: Hub, task: int) -> dict[str, Any]:
    def folds() -> list[dict[str, Any]]:
        return [f for r in found.records("version") for f in r["folds"] if f["task"] == task]

    assert eventually(lambda: bool(folds()), 10)
    fold: dict[str, Any] = folds()[0]
    return fold


def matrix(num_classes: int, cells: list[int], counts: list[int]) -> wire.Counts:
    made = wire.ClassCounts(num_classes=num_classes, cells=cells, counts=counts)
    return wire.Counts(classes=made)


MATRICES = {
    "too few classes": matrix(2, [0, 3], [5, 5]),
    "too many classes": matrix(4, [0], [5]),
    "far too many classes": matrix(5000, [0], [5]),
    "no classes": matrix(0, [], []),
    "more classes than a matrix may have": matrix(2**32 - 1, [0], [5]),
    "cells that are not in it": matrix(3, [9], [5]),
    "cells beyond 63 bits": matrix(3, [_HUGE], [5]),
    "cells without counts": matrix(3, [0, 1, 2], [5]),
    "negative": matrix(3, [1], [_HUGE]),
    "huge": matrix(3, [0], [1 << 62]),
    "of the other kind": wire.Counts(errors=wire.ErrorSums(num_examples=3, squared_error=1.0)),
}


@pytest.mark.parametrize("what", MATRICES)
def test_a_confusion_matrix_that_is_none_is_left_out(what: str, classes: Hub) -> None:
    before = classes.rss_mib()

    fold, told = judged(classes, MATRICES[what])

    assert fold["judges"] == 1  # the author itself
    assert fold["missing"] == ["judge"]
    assert told == "" or told.startswith("INVALID_ARGUMENT: a confusion matrix ")
    assert classes.rss_mib() - before < 64


def test_counts_whose_sum_is_more_than_63_bits_do_not_turn_a_score_over(classes: Hub) -> None:
    fold, _ = judged(classes, matrix(3, [0, 1, 4, 8], [(1 << 62) - 1] * 4))

    assert 0.0 <= fold["weight"] <= 1.0


def test_a_judge_that_has_no_counts_is_left_out(classes: Hub) -> None:
    fold, told = judged(classes, wire.Counts())

    assert fold["judges"] == 1
    assert told == ""


def sums(**other: Any) -> wire.Counts:
    said = {"num_examples": 10, "squared_error": 1.0, "absolute_error": 2.0}
    said |= {"target": 3.0, "target_squared": 4.0}
    return wire.Counts(errors=wire.ErrorSums(**{**said, **other}))


SUMS_OF_NOTHING = {
    "not a number": sums(squared_error=math.nan),
    "infinite": sums(squared_error=math.inf),
    "an infinite target": sums(target=math.inf),
    "a target that is none": sums(target_squared=math.nan),
    "negative": sums(squared_error=-20.9),  # a score of 200, if it were believed
    "negative squares": sums(target_squared=-4.0),
    "a confusion matrix": matrix(3, [0], [5]),
}


@pytest.mark.parametrize("what", SUMS_OF_NOTHING)
def test_sums_of_errors_that_cannot_be_decide_nothing(what: str, regression: Hub) -> None:
    fold, _ = judged(regression, SUMS_OF_NOTHING[what], counts=SUMS)

    assert math.isfinite(fold["weight"])
    assert fold["weight"] <= 1.0
    assert fold["missing"] == ["judge"]


@pytest.mark.parametrize("what", ["not a number", "infinite", "negative"])
def test_a_learners_own_impossible_sums_decide_nothing(what: str, regression: Hub) -> None:
    errors = SUMS_OF_NOTHING[what].errors
    own = replace(SUMS, squared_error=errors.squared_error)

    fold, _ = judged(regression, sums(), counts=own)

    assert math.isfinite(fold["weight"])
    assert fold["weight"] <= 1.0
    assert fold["judges"] == 1


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_after_all_that_the_journal_is_json_and_the_model_is_one(kind: str, tmp_path: Path) -> None:
    """It is stopped, and taken up again."""
    num_classes = 0 if kind == "regression" else 3
    reports = [MATRICES["huge"], MATRICES["cells beyond 63 bits"]]
    own: dict[str, Any] = {}
    if kind == "regression":
        reports = [SUMS_OF_NOTHING[what] for what in ("not a number", "infinite", "negative")]
        own = {"counts": SUMS}
    with hub(tmp_path, num_classes=num_classes, settings=JUDGED) as found:
        for report in reports:
            judged(found, report, **own)
        version = found.records("version")[-1]["version"]
        code = found.stop()
    text = (tmp_path / "state" / "journal.jsonl").read_text()
    model = read_safetensors(tmp_path / "state" / "model.safetensors", LAYOUT)
    with (
        hub(tmp_path, num_classes=num_classes, settings=JUDGED) as again,
        again.member("author") as author,
    ):
        task = author.next(TrainOrder)

    assert code == 0
    assert "Traceback" not in found.said()
    assert np.isfinite(model).all()
    for line in text.splitlines():
        json.loads(line, parse_constant=_no_json)
    assert task.version >= version


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


# ---- numbers that everybody is told of --------------------------------------------------------


def test_steps_by_the_quintillion_keep_nobody_from_hearing_how_far_all_are(tmp_path: Path) -> None:
    """The sum of all steps is told everybody, in a message that holds 64 bits."""
    with hub(tmp_path) as found:
        steady = Steady(found)
        assert steady.goes_on(1)
        with found.member("boaster") as member:
            member.answer(member.next(TrainOrder), num_steps=_HUGE)

        assert steady.goes_on(seconds=5), steady.failures
        steady.stop()


def test_the_largest_numbers_of_examples_keep_nobody_from_being_heard(tmp_path: Path) -> None:
    with hub(tmp_path) as found:
        steady = Steady(found)
        assert steady.goes_on(1)
        hello = found.hello("enormous")
        profile = replace(hello.profile, num_examples=_HUGE, steps_per_epoch=_HUGE)
        with found.line("enormous") as line:
            with pytest.raises(HandshakeError, match="examples"):
                line.join(replace(hello, profile=profile))
            member = Member("enormous", line, hello)
            member.join()
            member.answer(member.next(TrainOrder), num_examples=_HUGE)
            line.leave(withdraw=True)

        assert steady.goes_on(seconds=5), steady.failures
        steady.stop()
