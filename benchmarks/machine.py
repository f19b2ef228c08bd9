"""What the figures of a benchmark depend on besides the code."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np


def machine(load_average: float) -> dict[str, Any]:
    """Return the processor and the versions; the load is that before the benchmark began."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_at_start": load_average,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
