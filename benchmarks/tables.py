"""Write the measured tables of docs/performance.md anew from the JSON of the latest benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def main() -> None:
    page = DOCS / "performance.md"
    text = page.read_text(encoding="utf-8")
    for name, table in (("community", community()), ("agenda", agenda())):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)
        assert count == 1, f"{page} has no place for the table {name}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
