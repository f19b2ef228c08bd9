"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Repeatable, and without time limits: on a busy machine a first call takes as long as it takes.
settings.register_profile("metis", deadline=None, derandomize=True)
settings.load_profile("metis")
