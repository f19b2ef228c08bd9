"""Which arithmetic a cell was made with: a digest of small twins, computed on a CPU.

Cells gather over weeks while the code changes. A cell may stand in a table only as long as today's
code would compute the same. Each policy and each network has a twin: a federation of seconds whose
facts (who arrived when, after how many steps) and numbers (losses, weights) `twins.json` keeps. A
test computes every twin and compares: facts exactly, numbers within what processors differ by.
Whoever changes the arithmetic on purpose writes the twins again, and old cells leave the tables:

    python -m metis.experiments.numerics
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from metis import paper
from metis.config import Config
from metis.experiments.cells import Domain, Horizon, Setting, federated_cell
from metis.experiments.generated import generated_file
from metis.journal.file import Record

FILE = Path(__file__).with_name("twins.json")
#: Two processors round differently; in a twin that makes numbers differ by less than this.
CLOSE = 2e-5
POLICIES = (
    "sync-fedavg",
    "sync-dvw",
    "sync-uniform",
    "async-fedavg",
    "fedasync",
    "async-dvw",
    "async-dvw-adaptive",
    "async-uniform",
)
#: By network: the data that the generated data of its twin is like, and the row of the table.
NETWORKS = {
    "mlp": ("cifar10", "powerlaw-3"),
    "cifar_cnn": ("cifar10", "powerlaw-3"),
    "resnet50_cifar": ("cifar10", "powerlaw-3"),
    "leaf_cnn": ("mnist_by_writer", "uniform-3"),
    "femnist_cnn": ("mnist_by_writer", "uniform-3"),
}
_POLICY, _NETWORK = "sync-fedavg", "mlp"  # what twins of networks, and of policies, share
#: A deep network soon turns what two processors round differently into another model.
_RATES = {_NETWORK: 0.02}
_OTHER_RATE = 0.001
_SECONDS = 130.0


@dataclass(frozen=True, slots=True)
class Twin:
    """What a small federation did."""

    facts: str  # a digest of all that is exact
    numbers: tuple[float, ...]

    def agrees_with(self, other: Twin) -> bool:
        """Whether both are of the same arithmetic, on whichever processors."""
        return (
            self.facts == other.facts
            and len(self.numbers) == len(other.numbers)
            and all(
                abs(one - two) <= CLOSE * max(1.0, abs(one))
                for one, two in zip(self.numbers, other.numbers, strict=True)
            )
        )


def names() -> list[str]:
    """Return the name of every twin."""
    policies = [f"{policy}/{_NETWORK}" for policy in POLICIES]
    return list(dict.fromkeys([*policies, *(f"{_POLICY}/{network}" for network in NETWORKS)]))


def config_of(name: str, folder: Path) -> Config:
    """Return the federation of a twin. Mini-batches are small, so that some would not be full."""
    policy, _, network = name.partition("/")
    data, row = NETWORKS[network]
    config = federated_cell(
        Setting(folder, scale="smoke", seconds=_SECONDS),
        "twins",
        Domain("cifar10", network),
        "heterogeneous",
        row,
        policy,
        paper.SEED,
        Horizon(seconds=_SECONDS),
        train={
            "batch_size": 4,
            "learning_rate": _RATES.get(network, _OTHER_RATE),
            "momentum": 0.5,
            "epochs": 2,
        },
    ).config
    source = replace(config.data, name=str(generated_file(folder, data)))
    return replace(config, data=source, horizon=replace(config.horizon, test_every=1))


def compute(name: str) -> Twin:
    """Run a twin, which takes a second or two."""
    with tempfile.TemporaryDirectory() as folder:
        return run_twin(config_of(name, Path(folder)))


def run_twin(config: Config) -> Twin:
    """Run a small federation and return what it did."""
    from metis.simulation.run import run

    records: list[Record] = []
    run(config, listeners=(records.append,))
    return twin_of(records)


def twin_of(records: Iterable[Record]) -> Twin:
    """Return what a journal says, exact facts apart from numbers that a processor rounds."""
    facts: list[Any] = []
    numbers: list[float] = []
    for record in records:
        kind = record["kind"]
        if kind == "steps":
            facts.append((kind, record["learner"], record["num_steps"], record["samples"]))
            numbers += [record["loss"]] if record["loss"] is not None else []
        elif kind == "arrive":
            facts.append((kind, record["learner"], record["num_steps"], round(record["at"], 6)))
        elif kind == "version":
            folds = record["folds"]
            facts.append((kind, [(one["learner"], one["steps_behind"]) for one in folds]))
            numbers += [one["weight"] for one in folds]
        elif kind == "test":
            numbers.append(record["loss"])
    return Twin(sha256(json.dumps(facts).encode()).hexdigest()[:16], tuple(numbers))


@cache
def kept() -> Mapping[str, Twin]:
    """Return the twins that `twins.json` keeps."""
    raw = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Twin(one["facts"], tuple(one["numbers"])) for name, one in raw.items()}


def numerics_of(policy: str, network: str) -> str:
    """Return the digest of a policy's and a network's twin; empty where there is no such twin."""
    found = [kept().get(f"{policy}/{_NETWORK}"), kept().get(f"{_POLICY}/{network}")]
    if None in found:
        return ""
    return sha256(repr(found).encode()).hexdigest()[:12]


def write() -> list[str]:
    """Compute all twins and keep those that are not what the file says; return their names."""
    before = kept() if FILE.exists() else {}
    after, changed = {}, []
    for name in names():
        twin = compute(name)
        if name in before and before[name].agrees_with(twin):
            twin = before[name]
        else:
            changed.append(name)
        after[name] = {"facts": twin.facts, "numbers": list(twin.numbers)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in after.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return changed


if __name__ == "__main__":
    changed = write()
    print("\n".join(changed) or "every twin is what twins.json says", file=sys.stdout)
