"""`python -m metis_papers` is `metis reproduce`, for machines where nothing can be installed."""

from __future__ import annotations

from metis.cli import run
from metis_papers.reproduce import commands

if __name__ == "__main__":
    run(commands)
