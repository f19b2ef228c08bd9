# mypy: ignore-errors
"""Flower, the Ray backend of its simulator: two workers of one CPU each.

Written as in Flower's PyTorch quickstart, except that a worker builds its model once and takes
batches as slices instead of through a DataLoader. Nothing is evaluated.
"""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import NUM_THREADS, WORKLOADS, arguments, report, shards, shared_model, train

options = arguments()
NAME, FOLDER = options.workload, options.data  # a worker gets these two with the function below


def train_learner(message: Message, context: Context) -> Message:
    workload, data, model = WORKLOADS[NAME], shards(FOLDER), shared_model(NAME)
    torch.set_num_threads(1)
    learner = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, workload.optimizer(model), data.batches(learner, workload.batch_size))
    metrics = {"num-examples": data.num_examples(learner), "learner": learner}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


class Watched(FedAvg):
    """FedAvg that notes who answered and when the average was there."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.round_ends = []
        self.cohorts = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        assert not failed, failed[0]
        found = super().aggregate_train(server_round, replies)
        self.round_ends.append(time.time())
        self.cohorts.append([int(reply.content["metrics"]["learner"]) for reply in replies])
        return found


def main() -> None:
    workload = WORKLOADS[options.workload]
    strategy = Watched(
        fraction_train=workload.learners_per_round / workload.num_learners,
        min_train_nodes=workload.learners_per_round,
        min_available_nodes=workload.num_learners,
        fraction_evaluate=0.0,
    )
    learners, server = ClientApp(), ServerApp()
    learners.train()(train_learner)
    last = workload.initial_model()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        start = ArrayRecord(last.state_dict())
        found = strategy.start(grid=grid, initial_arrays=start, num_rounds=options.rounds)
        last.load_state_dict(found.arrays.to_torch_state_dict())

    run_simulation(
        server_app=server,
        client_app=learners,
        num_supernodes=workload.num_learners,
        backend_config={
            "init_args": {"num_cpus": NUM_THREADS},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    report(options.out, strategy.round_ends, strategy.cohorts, last, threads=1)


if __name__ == "__main__":
    main()
