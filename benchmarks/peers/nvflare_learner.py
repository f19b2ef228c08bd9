# mypy: ignore-errors
"""What each of NVFlare's ten processes does; started by `run_nvflare.py`.

The round after the last one trains nothing: it is there to see the last average arrive.
"""

from __future__ import annotations

import json
import time

import nvflare.client as flare
import torch
from workloads import WORKLOADS, arguments, shards, train


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    workload, data = WORKLOADS[options.workload], shards(options.data)
    model = workload.model()
    flare.init()
    site = flare.get_site_name()
    learner = int(site.removeprefix("site-")) - 1
    arrivals = []
    while flare.is_running():
        message = flare.receive()
        if message is None:
            break
        arrivals.append(time.time())
        params = {name: torch.as_tensor(value) for name, value in message.params.items()}
        model.load_state_dict(params)
        if len(arrivals) > options.rounds:
            torch.save(params, options.out / f"{site}.pt")
            (options.out / f"{site}.json").write_text(json.dumps(arrivals))
        else:
            train(model, workload.optimizer(model), data.batches(learner, workload.batch_size))
        weight = {"NUM_STEPS_CURRENT_ROUND": data.num_examples(learner)}  # its name for a weight
        flare.send(flare.FLModel(params=model.state_dict(), meta=weight))


if __name__ == "__main__":
    main()
