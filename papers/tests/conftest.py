"""The command line as a fixture, as the tests of Metis have it."""

from __future__ import annotations

from tests.conftest import metis

__all__ = ["metis"]
