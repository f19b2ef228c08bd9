"""How every figure looks: one palette, one kind of axes, one way to write a picture.

Figures are made without pyplot, so nothing global changes and nothing needs to be closed. A policy
has the same colour and line in every figure, and a group the same colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from metis.core.errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, safe for the colour-blind, its yellow exchanged for an olive and its
#: black for a grey because thin lines in yellow cannot be seen on white.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#999933",
    "#555555",
)
LINES = ("-", "--", ":", "-.")
#: Colour and line of each policy. The paper's six and their two controls have a colour each; rounds
#: are dashed, controls dotted. The others take a colour once more, with another line.
LOOKS = {
    "sync-fedavg": ("#56B4E9", "--"),
    "sync-dvw": ("#CC79A7", "--"),
    "async-fedavg": ("#0072B2", "-"),
    "fedasync": ("#009E73", "-"),
    "async-dvw": ("#E69F00", "-"),
    "async-dvw-adaptive": ("#D55E00", "-"),
    "sync-uniform": ("#999933", ":"),
    "async-uniform": ("#555555", ":"),
    "semisync-fedavg": ("#56B4E9", "-."),
    "semisync-dvw": ("#CC79A7", "-."),
    "fedbuff": ("#009E73", "-."),
    "fedprox": ("#0072B2", "-."),
    "fedavgm": ("#999933", "-."),
    "fedadam": ("#555555", "-."),
    "fedadagrad": ("#E69F00", "-."),
    "fedyogi": ("#D55E00", "-."),
}
GREY = "#777777"  # of what is no policy and no group

_DPI = 100


def group_colours(groups: Iterable[str]) -> dict[str, str]:
    """Return the colour of each group of learners, in the order in which a run names them."""
    names = dict.fromkeys(groups)
    return {group: COLOURS[place % len(COLOURS)] for place, group in enumerate(names)}


def new_figure(width: float, height: float, dpi: float = _DPI) -> Figure:
    """Return an empty figure of this size in inches. Raises RunError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "plots need matplotlib, which is not installed: pip install 'metis-fl[plot]'"
        ) from None
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def plain(axes: Axes, x: str = "", y: str = "", grid: str = "both") -> None:
    """Give axes their names and a light grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#e4e4e4", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG. Raises RunError where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return path
