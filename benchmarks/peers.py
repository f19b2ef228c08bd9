"""How fast other simulators of federated learning are, against a plain PyTorch loop.

    python -m venv /tmp/peers/flwr
    /tmp/peers/flwr/bin/pip install torch==2.13.0 'flwr[simulation]'
    python benchmarks/peers.py --venv /tmp/peers/flwr --framework flwr --workload w1 w2 \
        [--venv ... --framework ...] [--rounds N] [--seconds S] [--repeats N] [--check] [--out FILE]

w1: 10 learners of 500 images, the CIFAR-10 CNN without normalisation, batches of 100, momentum
0.75, all of them in each round. w2: 1,000 learners of about 100 images, the FEMNIST CNN, batches of
16, 20 in a round. Both: one local epoch, learning rate 0.05, FedAvg by examples, nothing evaluated,
synthetic images; `benchmarks/peers/workloads.py` has the rest.

A peer lives in an environment of its own, which you make. The yardstick, bare SGD steps in two
threads, runs there as well, just before and just after each run of the peer, and its mean rate of
the two is what the peer's is divided by. A rate is the median over rounds 2 to the last. With
start-up means from the command until the last round's end, so it depends on the number of rounds;
the yardstick's own start is not counted. `--check` also runs one round and says how far its model
is from FedAvg by hand, as a share of how far training went: about 1e-5 where both do the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from machine import machine

SCRIPTS = Path(__file__).parent.resolve() / "peers"
TORCH = "torch==2.13.0"
ROUNDS = {"w1": 5, "w2": 10}
SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """What to install for a framework, and what is measured of it."""

    requirement: str
    packages: tuple[
        str, ...
    ]  # installed names: the framework's own, then what it cannot do without
    workloads: tuple[str, ...] = ("w1", "w2")


PEERS = {
    "flwr": Peer("flwr[simulation]", ("flwr", "ray")),
    "pfl": Peer("pfl[pytorch]", ("pfl",)),
    "fedlab": Peer("fedlab", ("fedlab",)),
    "nvflare": Peer("nvflare", ("nvflare",), ("w1",)),
}


class SetupError(Exception):
    """The environment given for a peer cannot run it; the message says what to do."""


class RunError(Exception):
    """A script in a peer's environment has ended badly; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One peer's environment, one workload, and a folder with its data."""

    framework: str
    python: Path
    workload: str
    folder: Path

    def call(self, script: str, *settings: str) -> tuple[dict[str, Any], float]:
        """Run a script there; return the JSON it wrote and when it was started."""
        out = self.folder / "found.json"
        out.unlink(missing_ok=True)
        shared = ("--workload", self.workload, "--data", str(self.folder), "--out", str(out))
        command = [str(self.python), *script_of(script), *shared, *settings]
        log = self.folder / "log.txt"
        start = time.time()
        with log.open("w") as output:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment(self.folder)
            ).returncode
        if code != 0 or not out.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
            raise RunError(f"{tail}\n{shlex.join(command)} ended with code {code}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found, start

    def reference(self, seconds: float) -> float:
        """Return how many samples a second the plain loop does here and now."""
        found, _ = self.call("reference", "--seconds", str(seconds))
        rates: list[float] = [lap["samples"] / lap["seconds"] for lap in found["laps"]]
        return median(rates)

    def simulate(self, num_rounds: int, sizes: list[int]) -> dict[str, float]:
        """Run the peer; return its rates and how long it took to get going."""
        found, start = self.call(f"run_{self.framework}", "--rounds", str(num_rounds))
        ends = found["round_ends"]
        assert len(ends) == num_rounds, f"{len(ends)} rounds ended, not {num_rounds}"
        samples = [sum(sizes[learner] for learner in cohort) for cohort in found["cohorts"]]
        lasted = [end - before for before, end in pairwise(ends)]
        return {
            "samples_per_second": median(
                number / seconds for number, seconds in zip(samples[1:], lasted, strict=True)
            ),
            "rounds_per_second": 1 / median(lasted),
            "samples_per_second_with_start_up": sum(samples) / (ends[-1] - start),
            "seconds_to_first_round": ends[0] - start,
        }

    def distance(self) -> float:
        """Return how far the peer's model is, after a round, from that of FedAvg by hand."""
        self.call(f"run_{self.framework}", "--rounds", "1")
        kept = self.folder / "kept.json"
        (self.folder / "found.json").rename(kept)
        (self.folder / "found.npy").rename(kept.with_suffix(".npy"))
        found, _ = self.call("check", "--peer", str(kept))
        distance: float = found["distance"]
        return distance


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Give --venv and --framework once for each peer, in the same order.",
    )
    parser.add_argument("--venv", type=Path, action="append", required=True)
    parser.add_argument("--framework", choices=PEERS, action="append", required=True)
    parser.add_argument("--workload", choices=ROUNDS, nargs="+", default=list(ROUNDS))
    parser.add_argument("--rounds", type=int, help="of the peer; 5 of w1, 10 of w2 unless given")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each reference run")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each peer")
    parser.add_argument("--check", action="store_true", help="compare a round with FedAvg by hand")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    if len(options.venv) != len(options.framework):
        parser.error("give one --venv for each --framework")
    if options.rounds is not None and options.rounds < 2:
        parser.error("--rounds must be at least 2: the first is start-up")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")

    load_average = os.getloadavg()[0]  # what others were doing meanwhile matters most of all
    try:
        plan = [
            (framework, venv, workload, versions(framework, venv))
            for framework, venv in zip(options.framework, options.venv, strict=True)
            for workload in options.workload
            if measured(framework, workload, options.workload)
        ]
    except SetupError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    rows, failures = [], []
    for framework, venv, workload, installed in plan:
        row = {"framework": framework, **installed, "workload": workload}
        try:
            rows.append(row | measure(framework, venv, workload, options))
        except RunError as error:  # what others took minutes for is not thrown away
            print(error, file=sys.stderr)
            failures.append(row)
    found = {"machine": machine(load_average), "rows": rows, "failures": failures}
    text = json.dumps(found, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if failures:
        sys.exit(1)


def measured(framework: str, workload: str, asked: list[str]) -> bool:
    """Say whether a peer is measured on a workload; it must be on one that is asked for."""
    able = PEERS[framework].workloads
    if not set(able) & set(asked):
        raise SetupError(f"{framework} is measured on {' and '.join(able)} only")
    return workload in able


def versions(framework: str, venv: Path) -> dict[str, str]:
    """Return what is installed in an environment, or say what should be."""
    peer = PEERS[framework]
    python = venv / "bin" / "python"
    pip = f"{venv}/bin/pip install {TORCH} '{peer.requirement}'"
    if not python.exists():
        make = f"{Path(sys.executable).name} -m venv {venv}"
        raise SetupError(f"there is no {python}; make it with: {make} && {pip}")
    names = (*peer.packages, "torch")
    code = (
        "import json, platform, sys; from importlib.metadata import distributions; "
        "found = {d.metadata['Name'].lower(): d.version for d in distributions()}; "
        "found = [found.get(name) for name in sys.argv[1:]]; "
        "print(json.dumps([*found, platform.python_version()]))"
    )
    done = subprocess.run([python, "-c", code, *names], stdout=subprocess.PIPE, check=True)
    *found, python_version = json.loads(done.stdout)
    missing = [name for name, version in zip(names, found, strict=True) if version is None]
    if missing:
        raise SetupError(f"{venv} lacks {' and '.join(missing)}; install with: {pip}")
    return {"version": found[0], "torch": found[-1], "python": python_version}


def measure(
    framework: str, venv: Path, workload: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run peer and yardstick in turn; return the medians over the peer's runs, and the runs."""
    num_rounds = options.rounds or ROUNDS[workload]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        # Not resolved: the link in a venv's bin is what tells Python which environment it is.
        python = Path(os.path.abspath(venv)) / "bin" / "python"
        bench = Bench(framework, python, workload, Path(folder))
        data, _ = bench.call("make")
        runs = []
        before = bench.reference(options.seconds)
        for _ in range(options.repeats):
            run = bench.simulate(num_rounds, data["sizes"])
            after = bench.reference(options.seconds)
            reference = mean((before, after))
            run["ratio_to_reference"] = run["samples_per_second"] / reference
            run["ratio_with_start_up"] = run["samples_per_second_with_start_up"] / reference
            run["reference_samples_per_second"] = reference
            run["reference_before"], run["reference_after"] = before, after
            runs.append(run)
            before = after
        distance = bench.distance() if options.check else None
    return {
        "rounds": num_rounds,
        **{name: median(run[name] for run in runs) for name in runs[0]},
        "distance_to_plain_fedavg": distance,
        "data_sha256": data["sha256"],
        "runs": runs,
    }


def script_of(name: str) -> list[str]:
    """Return the file of a peer, or the file and verb of the yardstick."""
    if name.startswith("run_"):
        return [str(SCRIPTS / f"{name}.py")]
    return [str(SCRIPTS / "workloads.py"), name]


def environment(folder: Path) -> dict[str, str]:
    """Return the variables for a script: no other's packages, no reports home, files in `folder`.

    Waiting for a server that counts users would be measured as start-up.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(folder / "flwr"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


if __name__ == "__main__":
    main()
