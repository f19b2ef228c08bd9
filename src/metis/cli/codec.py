"""Verbs about packets: what one holds, and what compression makes of a change."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from metis.cli.common import AsJson, complain, console, tell
from metis.core.errors import JournalError, ModelError, RunError, unknown
from metis.core.types import Layout, TensorSpec

if TYPE_CHECKING:
    from metis.codecs.inspect import Approximation, Description, TensorPart, TernarySettings

commands = typer.Typer(
    help="See what a packet holds, and what compression makes of an update.", no_args_is_help=True
)

Layer = Annotated[
    str | None, typer.Option(metavar="NAME", help="One convolution, such as 2.weight.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="OUT.png", help="Also draw where kept weights lie.")
]


# ---- inspect ----------------------------------------------------------------------------------


@commands.command(
    epilog="Example:  metis codec inspect runs/kept/updates/task-00000012.packet --plot kept.png"
    "   (runs/kept made with --set output.keep_updates=true --set upload.codec=sstc)"
)
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A packet.")],
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Its run; default: the folder above FILE's own."),
    ] = None,
    layer: Layer = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show what a packet holds: its codec, its bytes, and which weights it keeps."""
    from metis.codecs.inspect import describe, signs
    from metis.storage.atomic import read_bytes

    packet = read_bytes(file)
    try:
        describe(packet, None)  # a packet that is none says so before its run is looked for
        layout = _layout_of_run(file, run)
        found = describe(packet, layout)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None
    if layout is None and (layer or plot):
        raise JournalError(f"{file}: --layer and --plot need the journal of its run; see --run")
    if layout is not None:
        _convolution(layout, layer)
    if plot is not None and layout is not None:
        if found.codec == "dense":
            raise ModelError(f"{file}: a dense packet holds a model, not an update to draw")
        shares = f", {_shares(found.ternary)}" if found.ternary else ""
        _draw_kept(signs(packet, layout), layer, plot, f"{file.name}: {found.codec}{shares}")
    if as_json:
        console.print_json(json.dumps({"file": str(file), **asdict(found)}))
        return
    console.print(_facts_table(found))
    if found.details is None:
        complain("[yellow]note:[/] ", "no journal of its run, so no tensors are shown; see --run")
    else:
        chosen = [part for part in found.details.tensors if layer in (None, part.name)]
        console.print(_tensor_table(chosen))
    if plot is not None:
        tell(f"picture: {plot}")


def _layout_of_run(file: Path, run: Path | None) -> Layout | None:
    """Return the layout that the journal of a packet's run tells of.

    None if there is no journal where one would be; JournalError if there is none in `run`.
    """
    from metis.core.types import Layout
    from metis.journal.file import read_journal
    from metis.journal.paths import JOURNAL

    path = (run or file.resolve().parent.parent) / JOURNAL
    if run is None and not path.exists():
        return None
    header = next(read_journal(path), None)
    if header is None or header["kind"] != "run":
        raise JournalError(f"{path}: does not begin with a `run` record")
    try:
        return Layout.of_rows(header["tensors"])
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: its `run` record is damaged: {error!r}") from None


def _facts_table(found: Description) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _facts(found):
        table.add_row(name, Text(value))
    return table


def _facts(found: Description) -> list[tuple[str, str]]:
    dense_bytes = 4 * found.num_values
    rows = [
        ("codec", found.codec),
        ("format", str(found.format)),
        ("layout", f"{found.layout_digest}, {found.num_values:,} parameters"),
        (
            "bytes",
            f"{found.num_bytes:,}; four for each parameter are {dense_bytes:,}: "
            f"ratio {found.ratio:,.1f}",
        ),
    ]
    ternary, details = found.ternary, found.details
    if ternary is not None:
        maps = "no kernel maps"
        if ternary.kernel_coding is not None:
            maps = f"{ternary.maps} kernel maps, indices in {ternary.kernel_coding}"
        rows.append(("settings", _shares(ternary)))
        rows.append(("coding", f"weights in {ternary.index_coding}; {maps}"))
        rows.append(("mu", f"{ternary.mu:.4g}"))
        if details is None:
            rows.append(("named", f"{ternary.num_named:,} weights one by one"))
    if details is not None:
        rows.append(("kept", f"{details.kept:,} of {details.num_weights:,} weights"))
        bits = [
            f"{value:.2f} bits {what}"
            for value, what in (
                (details.bits_per_index, "per index"),
                (details.bits_per_kernel, "per kernel and its map"),
                (details.bits_per_weight, "per kept weight in all"),
            )
            if value is not None
        ]
        if bits:
            rows.append(("places", "; ".join(bits)))
        named = details.parts.items()
        parts = (f"{name.replace('_', ' ')} {num_bytes:,}" for name, num_bytes in named)
        rows.append(("parts", ", ".join(parts)))
    return rows


def _shares(ternary: TernarySettings) -> str:
    """Return p and f in words."""
    kernels = "" if ternary.kernels is None else f", f = {ternary.kernels:g}"
    return f"p = {ternary.sparsity:g}{kernels}"


def _tensor_table(parts: list[TensorPart]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("tensor", no_wrap=True)
    for heading in ("shape", "kind"):
        table.add_column(heading)
    for heading in ("kept", "share", "kernels", "exact", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in parts:
        kept = part.kept is not None
        table.add_row(
            Text(part.name),
            "x".join(map(str, part.shape)) or "1",
            part.kind,
            f"{part.kept:,}" if kept else "",
            f"{(part.kept or 0) / part.size:.2%}" if kept and part.size else "",
            f"{part.kernels_touched:,}/{part.kernels:,}" if kept and part.kernels else "",
            "" if kept else f"{part.size:,}",
            "" if kept else f"{part.exact_bytes:,}",
        )
    return table


def _draw_kept(layers: dict[str, Any], layer: str | None, plot: Path, title: str) -> None:
    from metis.report.kernels import kept_updates

    shown = layers if layer is None else {layer: layers[layer]}
    if not shown:
        raise ModelError("the model has no convolution, so there are no kernels to draw")
    _write(kept_updates(shown, title), plot)


# ---- compare ----------------------------------------------------------------------------------


@commands.command(
    epilog="Example:  metis codec compare runs/kept/initial.safetensors "
    "runs/kept/model.safetensors --layer 2.weight --plot figure2.png"
)
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE.safetensors", help="A model before.")],
    trained: Annotated[Path, typer.Argument(metavar="TRAINED.safetensors", help="And after.")],
    layer: Layer = None,
    sparsity: Annotated[
        float, typer.Option(min=0, max=1, help="p: the share of weights that is kept.")
    ] = 0.01,
    kernels: Annotated[
        float, typer.Option(min=0, max=1, help="f: the share of kernels that SSTC keeps.")
    ] = 0.125,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compare what STC and SSTC make of the difference between two models."""
    from metis.codecs.inspect import approximations, kernel_matrix, weight_change
    from metis.storage.weights import file_layout, read_safetensors

    layout = file_layout(base)
    before, after = (read_safetensors(path, layout) for path in (base, trained))
    found = approximations(after, before, layout, sparsity, kernels)
    tensor = _convolution(layout, layer)
    if plot is not None:
        from metis.report.kernels import compared

        if tensor is None:
            raise ModelError(f"{base} has no convolution, so there are no kernels to draw")
        change = weight_change(after, before, layout)
        title = f"{tensor.name}, p = {sparsity:g}, f = {kernels:g}"
        stc, sstc = (kernel_matrix(one.sent, tensor) for one in found)
        _write(compared(kernel_matrix(change, tensor), stc, sstc, title), plot)
    if as_json:
        console.print_json(json.dumps(_comparison(found, layout, tensor, kernels)))
        return
    comparison = _comparison(found, layout, tensor, kernels)
    console.print(_comparison_table(comparison))
    console.print(_smaller_table(comparison))
    if plot is not None:
        tell(f"picture: {plot}")


def _comparison(
    found: tuple[Approximation, Approximation],
    layout: Layout,
    tensor: TensorSpec | None,
    kernels: float,
) -> dict[str, Any]:
    """Return what is printed, in numbers."""
    from metis.codecs.joined import joined
    from metis.codecs.selection import rounded
    from metis.codecs.sizes import most_kernels, sstc_pays

    rows = []
    for one in found:
        part = one.sent[tensor.offset : tensor.offset + tensor.size] if tensor else None
        rows.append(
            {
                "codec": one.codec,
                "kept": one.kept,
                "kept_in_layer": None if part is None else int((part != 0).sum()),
                "bytes_shortest": one.bytes_shortest,
                "bytes_fixed": one.bytes_fixed,
                "cosine": one.cosine,
                "relative_error": one.relative_error,
                "kept_in_kernels": one.kept_in_kernels,
                "times_smaller": asdict(one.smaller),
            }
        )
    stc, _ = found
    shape, pays = joined(layout), None
    if shape.num_kernels:
        num_kernels = rounded(kernels, shape.num_kernels)
        pays = {
            "kernels": num_kernels,
            "less_than": most_kernels(stc.kept_in_kernels, layout),
            "pays": sstc_pays(num_kernels, stc.kept_in_kernels, layout),
        }
    return {
        "equation_2": pays,
        "num_weights": sum(t.size for t in layout.tensors if t.kind in ("conv", "dense")),
        "num_values": layout.size,
        "layer": None if tensor is None else tensor.name,
        "codecs": rows,
    }


def _comparison_table(comparison: dict[str, Any]) -> Table:
    num_bytes = 4 * comparison["num_values"]
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption=f"of {comparison['num_weights']:,} weights; {num_bytes:,} bytes uncompressed\n"
        "cosine, error: of what is sent to the change of all weights",
        caption_justify="left",
    )
    table.add_column("codec", style="bold")
    in_layer = [f"in {escape(comparison['layer'])}"] if comparison["layer"] else []
    for heading in ("kept", *in_layer, "bytes", "fixed widths", "cosine", "error"):
        table.add_column(heading, justify="right")
    for row in comparison["codecs"]:
        cells = [row["codec"], f"{row['kept']:,}"]
        cells += [f"{row['kept_in_layer']:,}"] if in_layer else []
        for coding in ("shortest", "fixed"):
            packed = row[f"bytes_{coding}"]
            cells.append(f"{packed:,} ({num_bytes / packed:,.0f}x)")
        for value in (row["cosine"], row["relative_error"]):
            cells.append("-" if value is None else f"{value:.4f}")
        table.add_row(*cells)
    return table


def _smaller_table(comparison: dict[str, Any]) -> Table:
    """Return how many times smaller the update gets, counted in three ways."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="times smaller; the paper's formula is of convolutions alone,\n"
        f"that of the model counts all, in fixed widths{_pays(comparison['equation_2'])}",
        caption_justify="left",
    )
    table.add_column("codec", style="bold")
    for heading in ("convolutions, formula", "model, formula", "model, on the wire"):
        table.add_column(heading, justify="right")
    for row in comparison["codecs"]:
        times = [row["times_smaller"][counted] for counted in ("convolutions", "model", "wire")]
        table.add_row(row["codec"], *("-" if each is None else f"{each:,.1f}" for each in times))
    return table


def _pays(equation: dict[str, Any] | None) -> str:
    """Say whether kernel maps are shorter than indices, where there are kernels."""
    if equation is None:
        return ""
    does = "pays" if equation["pays"] else "does not pay"
    return (
        f"\nequation 2: SSTC {does} with {equation['kernels']:,} kernels; "
        f"it does with less than {equation['less_than']:,.1f}"
    )


# ---- both -------------------------------------------------------------------------------------


def _convolution(layout: Layout, name: str | None) -> TensorSpec | None:
    """Return the convolution of this name, or the one with most kernels; None if there is none."""
    known = {
        tensor.name: tensor for tensor in layout.tensors if tensor.kind == "conv" and tensor.size
    }
    if name is not None and name not in known:
        raise ModelError(unknown("convolution", name, known))
    if name is not None:
        return known[name]
    return max(known.values(), key=lambda t: t.shape[0] * t.shape[1], default=None)


def _write(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot write {path}: {error}") from None
