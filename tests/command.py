"""The command line as tests call it: in this process, in a directory of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Metis: TypeAlias = Callable[..., Outcome]


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2 and one plain line that holds the words."""
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) == 1
    for word in words:
        assert word in outcome.err
