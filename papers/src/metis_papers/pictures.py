"""What all figures share: colours, axes, and how they are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metis.core.errors import RunError
from metis.report.plots import COLOURS, LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GROUPS", "LOOKS", "new_figure", "plain", "write_figure"]

GROUPS = {"fast": COLOURS[0], "slow": COLOURS[5]}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure. Without pyplot, so that nothing needs to be closed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "figures need matplotlib, which is not installed: pip install 'metis-fl[plot]'"
        ) from None
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def plain(axes: Axes, x: str = "", y: str = "") -> None:
    """Give axes their names and a light grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return path
