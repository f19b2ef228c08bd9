"""Makes one cell: `python -m metis.experiments DIRECTORY`, the cell as JSON on standard input."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from metis.config import load
from metis.core.errors import Interrupted, MetisError
from metis.experiments.cells import cell_from_json
from metis.experiments.work import INTERRUPTED, run_cell


def main() -> int:
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


if __name__ == "__main__":
    sys.exit(main())
