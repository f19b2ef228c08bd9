"""An authority for every test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certs.consortium import Consortium, consortium


@pytest.fixture
def ours(tmp_path: Path) -> Consortium:
    return consortium(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Consortium:
    """Another authority, of the same name: a name proves nothing."""
    return consortium(tmp_path / "theirs")
