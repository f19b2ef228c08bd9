"""Once: cells of before results were typed, as cells of now. Values stay what they were.

python papers/convert_once.py OLD NEW
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

from metis_papers.cells import Horizon, rows
from metis_papers.results import Result, as_text

old, new = map(Path, sys.argv[1:])
for path in sorted(old.rglob("cell.json")):
    values = json.loads(path.read_text(encoding="utf-8"))
    config = tomllib.loads(values["config"])  # of keys that were then
    number, unit = re.fullmatch(r"([\d,.]+) (rounds|s)", values["horizon"]).groups()
    number = float(number.replace(",", ""))
    (row,) = rows(values["row"])
    on_cpu = " cores of " in values["device"]
    asked = re.search(r"\bprecision (\w+)", values["about"])[1]
    result = Result(
        **{
            **values,
            "row": row,
            "horizon": Horizon(seconds=number) if unit == "s" else Horizon(rounds=int(number)),
            "network": values["about"].split(";")[0].split(" ")[0],
            "precision": "float32" if asked == "tf32" and on_cpu else asked,
            "device_kind": "cpu" if on_cpu else "cuda",
        }
    )
    assert (row.sizes, row.classes) == (
        config["partition"]["sizes"],
        config["partition"]["classes"],
    ), path
    assert (result.network, result.device_kind) == (config["model"]["name"], config["device"]), path
    kept = json.loads(json.dumps(asdict(result)))
    assert {n: v for n, v in kept.items() if n in values and n not in ("row", "horizon")} == {
        n: v for n, v in values.items() if n not in ("row", "horizon")
    }
    target = new / result.name / "cell.json"
    target.parent.mkdir(parents=True)
    target.write_text(as_text(result), encoding="utf-8")
    print(result.name)
