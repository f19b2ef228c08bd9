"""Makes one cell, given as JSON on standard input: `python -m metis_papers.cell_process DIR`."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from metis.config import load
from metis.core.errors import Interrupted, MetisError
from metis_papers.cells import cell_from_json
from metis_papers.run_cells import INTERRUPTED, run_cell

_LOOK_SECONDS = 0.5


def main() -> int:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    values = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(values["config"], encoding="utf-8")
        config = load(path)
    try:
        run_cell(cell_from_json(values, config), Path(sys.argv[1]))
    except (Interrupted, KeyboardInterrupt) as stop:
        print(stop or "stopped before it had begun", file=sys.stderr)
        return INTERRUPTED
    except MetisError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _end_with(parent: int) -> None:
    """Stop as by Ctrl-C, with a checkpoint, when whoever started us is no more.

    Else a cell would be made on, and begun once more by the next command.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
