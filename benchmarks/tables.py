"""Write the measured tables of docs/performance.md anew from the JSON of the latest benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def community() -> str:
    found = json.loads((DOCS / "results" / "figure2.json").read_text())
    lines = [
        "| parameters | learners | cached, ms | without cache, ms | cached / plain copy |",
        "|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['parameters']:,} | {row['learners']:,} | {1e3 * row['seconds_cached']:.2f} "
            f"| {1e3 * row['seconds_without_cache']:.1f} | {row['cached_to_copy']:.2f} |"
        )
    worst = {name: target["worst"] for name, target in found["targets"].items()}
    lines += [
        "",
        f"Worst of all rows: largest N against N = 10, {worst['largest_to_fewest_learners']:.2f} "
        f"(target at most 1.25); commit against plain copy, {worst['cached_to_copy']:.2f} (target "
        f"at most 1.0); against a copy of half as many bytes, {worst['cached_to_half_copy']:.2f}.",
    ]
    return "\n".join(lines)


def agenda() -> str:
    found = json.loads((DOCS / "results" / "agenda.json").read_text())
    lines = [
        "| pacing | learners | events | events/s | time / bare heapq |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['pacing']} | {row['learners']:,} | {row['events']:,} "
            f"| {row['events_per_second']:,.0f} | {row['ratio_to_reference']:.0f} |"
        )
    return "\n".join(lines)


def _read(name: str) -> Any:
    return json.loads((DOCS / "results" / name).read_text())


def _spread(found: dict[str, float], form: str) -> str:
    """The median of some measurements, and in brackets the lowest and the highest."""
    return f"{found['median']:{form}} ({found['low']:{form}} to {found['high']:{form}})"


def _throughput(files: dict[str, str]) -> str:
    lines = [
        "| workload | engine | samples/s | plain loop | ratio | start-up, s |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, file in files.items():
        row = _read(file)
        lines.append(
            f"| {name} | {row['engine']} | {_spread(row['samples_per_second'], ',.0f')} "
            f"| {row['reference_samples_per_second']['median']:,.0f} "
            f"| {_spread(row['ratio'], '.2f')} | {row['startup_seconds']['median']:.1f} |"
        )
    return "\n".join(lines)


def _asynchrony(file: str) -> str:
    found = _read(file)
    return (
        f"AsyncDVW with adaptive learners, 5 fast and 5 slow: "
        f"{_spread(found['samples_per_second'], ',.0f')} samples/s, "
        f"{_spread(found['ratio_to_w1'], '.2f')} of W1 in the same pairs."
    )


def _judged(file: str) -> str:
    lines = [
        "| epochs | SyncFedAvg, s per round | SyncDVW, s per round | DVW / FedAvg |",
        "|--:|--:|--:|--:|",
    ]
    for row in _read(file)["rows"]:
        fedavg, dvw = row["seconds_per_round_fedavg"], row["seconds_per_round_dvw"]
        lines.append(
            f"| {row['epochs']} | {fedavg['median']:.3f} | {dvw['median']:.3f} "
            f"| {_spread(row['dvw_to_fedavg'], '.2f')} |"
        )
    return "\n".join(lines)


def simulate_cpu() -> str:
    files = {"W1": "simulate-w1.json", "W2": "simulate-w2.json"}
    return f"{_throughput(files)}\n\n{_asynchrony('simulate-async.json')}"


def simulate_gpu() -> str:
    files = {
        "W1, 5,000 examples each": "h200-w1.json",
        "the same with LRN": "h200-w1-lrn.json",
        "the same in bf16, no LRN": "h200-w1-bf16.json",
    }
    parts = (_throughput(files), _asynchrony("h200-async.json"), _judged("h200-dvw.json"))
    return "\n\n".join(parts)


def kernels_gpu() -> str:
    lines = ["| network | samples/s | without | ratio |", "|---|--:|--:|--:|"]
    for row in _read("h200-kernels.json")["rows"]:
        lines.append(
            f"| `{row['model']}` | {_spread(row['samples_per_second'], ',.0f')} "
            f"| {_spread(row['samples_per_second_without'], ',.0f')} "
            f"| {_spread(row['ratio'], '.2f')} |"
        )
    return "\n".join(lines)


def peers() -> str:
    lines = [
        "| peer | workload | samples/s | ratio | with start-up | command to first round, s |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in _read("peers.json")["rows"]:
        lines.append(
            f"| {row['framework']} {row['version']} | {row['workload'].upper()} "
            f"| {row['samples_per_second']:,.0f} | {row['ratio_to_reference']:.2f} "
            f"| {row['ratio_with_start_up']:.2f} ({row['rounds']} rounds) "
            f"| {row['seconds_to_first_round']:.1f} |"
        )
    return "\n".join(lines)


def scaling() -> str:
    lines = [
        "| learners | engine | ms per learner and epoch | loop / this | peak memory, MiB |",
        "|--:|---|--:|--:|--:|",
    ]
    for row in _read("scaling.json")["rows"]:
        lines.append(
            f"| {row['learners']:,} | {row['engine']} | {1e3 * row['seconds_per_epoch']:.3f} "
            f"| {row['ratio_to_loop']:.1f} | {row['peak_memory_mib']:,.0f} |"
        )
    return "\n".join(lines)


def codecs_speed() -> str:
    found = _read("codecs.json")
    lines = [
        "| parameters | codec | encode, MB/s | decode, MB/s | decode to sparse | encode / copy "
        "| decode / copy |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in found["speed"]:
        sparse = row.get("decode_sparse_mb_per_second")
        lines.append(
            f"| {row['parameters']:,} | {_codec(row)} "
            f"| {_spread(row['encode_mb_per_second'], ',.0f')} "
            f"| {_spread(row['decode_mb_per_second'], ',.0f')} "
            f"| {format(sparse['median'], ',.0f') if sparse else ''} "
            f"| {row['encode_to_copy']['median']:.1f} | {row['decode_to_copy']['median']:.1f} |"
        )
    claims = [
        f"{way} {target['worst']:,.0f} MB/s (target at least {target['at_least']:,.0f}: "
        f"{_met(target)})"
        for way, target in found["targets"].items()
        if "at_least" in target
    ]
    return "\n".join([*lines, "", f"Slowest of all rows: {'; '.join(claims)}."])


def codecs_sizes() -> str:
    found = _read("codecs.json")
    lines = [
        "| update | codec | bytes | times smaller | by formula | times smaller by formula "
        "| bytes / formula | bits per position | entropy if random "
        "| convolutions alone, paper's formula |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["sizes"]:
        formula, num_bytes = row.get("formula_bytes"), row["bytes"] * row["ratio"]
        paper = _cell(row, "paper_conv_ratio", ".1f")
        if "paper_conv_ratio_11_bits" in row:
            paper += f" (with 11 bits {row['paper_conv_ratio_11_bits']:.1f})"
        to_formula = _cell(row, "to_formula", ".3f")
        if "to_golomb_formula" in row:
            to_formula = f"{row['to_golomb_formula']:.3f} (golomb's)"
        lines.append(
            f"| {row['update']} | {_codec(row)} | {row['bytes']:,} | {row['ratio']:.1f} "
            f"| {_cell(row, 'formula_bytes', ',.0f')} "
            f"| {format(num_bytes / formula, '.1f') if formula else ''} | {to_formula} "
            f"| {_cell(row, 'bits_per_position', '.2f')} | {_cell(row, 'entropy_bits', '.2f')} "
            f"| {paper} |"
        )
    target = found["targets"]["to_formula"]
    claim = (
        f"Longest packet by golomb or fixed: {target['worst']:.3f} times its formula (target at "
        f"most {target['at_most']:.2f}: {_met(target)})."
    )
    return "\n".join([*lines, "", claim])


def codecs_averaging() -> str:
    rows = _read("codecs.json")["averaging"]
    lines = [
        "| parameters | learners | p | sparse, ms | dense, ms | dense / sparse |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['parameters']:,} | {row['learners']} | {row['sparsity']:.0%} "
            f"| {1e3 * row['sparse_seconds']['median']:.1f} "
            f"| {1e3 * row['dense_seconds']['median']:.1f} "
            f"| {_spread(row['dense_to_sparse'], '.2f')} |"
        )
    claims = []
    for share in sorted({row["sparsity"] for row in rows}):
        ratios = [row["dense_to_sparse"]["median"] for row in rows if row["sparsity"] == share]
        faster = sum(ratio > 1.0 for ratio in ratios)
        claims.append(f"p = {share:.0%}: {faster} of {len(ratios)}")
    return "\n".join([*lines, "", f"Rows in which sparse is faster: {'; '.join(claims)}."])


def codecs_compare() -> str:
    found = _read("codecs-compare.json")
    lines = [
        "| update | indices as | bytes | bits per position | write, ms | read, ms |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in found["compare"]:
        lines.append(
            f"| {row['update']} | {row['coder']} | {row['bytes']:,} "
            f"| {row['bits_per_position']:.2f} | {1e3 * row['write_seconds']['median']:.2f} "
            f"| {1e3 * row['read_seconds']['median']:.2f} |"
        )
    lines.append("")
    for update in dict.fromkeys(row["update"] for row in found["compare"]):
        rows = [row for row in found["compare"] if row["update"] == update]
        ours = next(row["bytes"] for row in rows if row["coder"] == "Metis, auto")
        others = [row for row in rows if not row["coder"].startswith("Metis")]
        best = min(others, key=lambda row: int(row["bytes"]))
        lines.append(
            f"The shortest of others for the {update} update is {best['coder']}; auto takes "
            f"{ours / best['bytes']:.3f} times as many bytes."
        )
    if found["missing"]:
        lines += ["", f"Not installed and so not measured: {', '.join(found['missing'])}."]
    return "\n".join(lines)


def wire() -> str:
    """One row for each way that bytes go: seconds of a synchronous round, and of an update."""
    found = _read("wire.json")
    lines = [
        "| parameters | way | TLS | durable | round, s | update, s "
        "| round / sockets | update / sockets |",
        "|--:|---|---|---|--:|--:|--:|--:|",
    ]
    for size in found["sizes"]:
        by_name: dict[str, dict[str, Any]] = {}
        for row in size["cases"]:
            by_name.setdefault(row["name"], {})[row["pace"]] = row
        for rows in by_name.values():
            one = rows["sync"]
            cells = [f"{size['num_parameters']:,}", one["way"]]
            cells += ["yes" if one.get(key) else "" for key in ("tls", "durable")]
            cells += [_wire(rows.get(pace), "seconds", ".3f") for pace in ("sync", "async")]
            cells += [_wire(rows.get(pace), "to_like", ".2f") for pace in ("sync", "async")]
            lines.append(f"| {' | '.join(cells)} |")
    missed = [t for t in found["targets"] if not t["met"]]
    said = "; ".join(
        f"{t['name']} {t['pace']} at {t['num_parameters']:,}: {t['to_tcp']:.2f} of {t['at_least']}"
        for t in missed
    )
    lines += ["", f"Targets missed: {said or 'none'}."]
    return "\n".join(lines)


def _wire(row: dict[str, Any] | None, key: str, form: str) -> str:
    if row is None or key not in row:
        return ""
    cell = row[key]
    return f"{cell['median']:{form}} ({cell['least']:{form}} to {cell['most']:{form}})"


def load() -> str:
    found = _read("load.json")
    return (
        f"{found['learners']} learners, {found['policy']}, {found['parameters']:,} parameters, "
        f"{found['seconds']:.0f} s: {found['updates_per_second']:.0f} updates/s, each durable and "
        f"a version of its own; {found['refused_or_expired']} refused or expired. Resident memory "
        f"{found['early_mib']:.0f} MiB in the second fifth of the time, "
        f"{found['late_mib']:.0f} MiB in the last ({100 * found['growth']:+.1f} %)."
    )


def _codec(row: dict[str, Any]) -> str:
    """A codec by name, its coding, and whether it makes up for what it left out."""
    parts = [row["codec"], row["coding"], "error feedback" if row.get("error_feedback") else None]
    name = ", ".join(part for part in parts if part)
    if row["coding"] != "auto" or "index_coding" not in row:
        return name
    chosen = [row["kernel_coding"], row["index_coding"]]
    return f"{name} ({', '.join(part for part in chosen if part)})"


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    return format(row[name], form) if name in row else ""


def _met(target: dict[str, Any]) -> str:
    return "met" if target["met"] else "missed"


TABLES = {
    "community": community,
    "agenda": agenda,
    "simulate-cpu": simulate_cpu,
    "simulate-gpu": simulate_gpu,
    "kernels-gpu": kernels_gpu,
    "peers": peers,
    "scaling": scaling,
    "codecs-speed": codecs_speed,
    "codecs-sizes": codecs_sizes,
    "codecs-averaging": codecs_averaging,
    "codecs-compare": codecs_compare,
    "wire": wire,
    "load": load,
}


def main() -> None:
    page = DOCS / "performance.md"
    text = page.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        table = made()
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)
        assert count == 1, f"{page} has no place for the table {name}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
