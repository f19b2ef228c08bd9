"""Makes one cell, given as JSON on standard input: `python -m metis_papers.cell_process DIR`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from metis.config import load_text
from metis.core.errors import Interrupted, MetisError
from metis_papers.cells import cell_from_json
from metis_papers.run_cells import INTERRUPTED, run_cell

_LOOK_SECONDS = 0.5


def main() -> int:
    from metis.simulation.signals import stop_requests

    with stop_requests() as stop:
        threading.Thread(target=_end_with, args=(os.getppid(), stop), daemon=True).start()
        values = json.load(sys.stdin)
        cell = cell_from_json(values, load_text(values["config"], "the cell's config"))
        try:
            run_cell(cell, Path(sys.argv[1]), stop=stop)
        except (Interrupted, KeyboardInterrupt) as ended:
            print(ended or "stopped by a second signal", file=sys.stderr)
            return INTERRUPTED
        except MetisError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


def _end_with(parent: int, stop: threading.Event) -> None:
    """Stop with a checkpoint when the process that started this one is no more.

    Else the cell would be made on, and begun once more by the next command.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
