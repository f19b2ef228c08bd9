# mypy: ignore-errors
"""NVFlare's simulator: a process of one thread for each of ten learners (w1 only).

A round ends when the first learner gets the next model, so NVFlare's polling is in it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from workloads import WORKLOADS, arguments, report

HERE = Path(__file__).parent.resolve()


def main() -> None:
    options = arguments()
    workload = WORKLOADS[options.workload]
    if workload.learners_per_round < workload.num_learners:
        sys.exit("NVFlare's simulator is measured on w1 only: it has a process for each learner")
    os.environ["PYTHONPATH"] = str(HERE)  # its processes import workloads.py too
    folder = Path(tempfile.mkdtemp(dir=options.out.parent))
    start = folder / "initial.pt"
    torch.save(workload.initial_model().state_dict(), start)

    recipe = FedAvgRecipe(
        name="peer",
        model={
            "class_path": f"workloads.{workload.network.__name__}",
            "args": {"num_outputs": workload.num_classes},
        },
        initial_ckpt=str(start),
        min_clients=workload.num_learners,
        num_rounds=options.rounds + 1,
        train_script=str(HERE / "nvflare_learner.py"),
        train_args=f"--workload {options.workload} --data {options.data} "
        f"--rounds {options.rounds} --out {folder}",
    )
    recipe.execute(SimEnv(num_clients=workload.num_learners, workspace_root=str(folder / "run")))

    arrivals = [json.loads(path.read_text()) for path in folder.glob("site-*.json")]
    assert len(arrivals) == workload.num_learners, f"{len(arrivals)} learners came to the end"
    round_ends = [min(times) for times in zip(*arrivals, strict=True)][1:]
    model = workload.model()
    model.load_state_dict(torch.load(folder / "site-1.pt"))
    everyone = list(range(workload.num_learners))
    report(options.out, round_ends, [everyone] * options.rounds, model, threads=1)


if __name__ == "__main__":
    main()
