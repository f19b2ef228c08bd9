"""`python -m metis` is `metis`."""

from __future__ import annotations

from metis.cli import main

if __name__ == "__main__":
    main()
