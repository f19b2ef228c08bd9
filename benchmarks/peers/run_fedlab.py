# mypy: ignore-errors
"""FedLab: its standalone pipeline in one process of two threads.

FedLab's own trainer keeps one optimizer for all learners and its server weighs them alike, so two
methods are overridden: momentum starts at zero with each learner, and examples are the weights.
Importing FedLab imports torchvision, though nothing here uses it.
"""

from __future__ import annotations

import random
import time

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # A torchvision built for CUDA cannot load its operators beside a torch built for CPU, and
    # stops at the first two it wants to describe. So their names are made known.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool
from workloads import NUM_THREADS, SEED, WORKLOADS, arguments, report, shards

options = arguments()
workload, data = WORKLOADS[options.workload], shards(options.data)


class Batches:
    """What FedLab asks of a dataset."""

    def get_dataloader(self, learner, batch_size):
        return list(data.batches(learner, batch_size))


class Trainer(SGDSerialClientTrainer):
    def train(self, model_parameters, train_loader):
        self.optimizer = workload.optimizer(self._model)
        num_examples = sum(len(labels) for _, labels in train_loader)
        return [*super().train(model_parameters, train_loader), torch.tensor(num_examples)]


class Server(SyncServerHandler):
    """Averages by examples, and notes who was asked."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.cohorts = []

    @property
    def num_clients_per_round(self):
        return workload.learners_per_round  # a ratio of it is rounded down

    def sample_clients(self):
        self.cohorts.append(super().sample_clients())
        return self.cohorts[-1]

    def global_update(self, buffer):
        weights = torch.stack([num_examples for _, num_examples in buffer])
        average = Aggregators.fedavg_aggregate([vector for vector, _ in buffer], weights)
        SerializationTool.deserialize_model(self._model, average)


class Watched(StandalonePipeline):
    """Notes when each round ended, in place of an evaluation."""

    round_ends: tuple[float, ...] = ()

    def evaluate(self):
        self.round_ends += (time.time(),)


def main() -> None:
    torch.set_num_threads(NUM_THREADS)
    random.seed(SEED)
    trainer = Trainer(workload.model(), workload.num_learners)
    trainer.setup_dataset(Batches())
    trainer.setup_optim(1, workload.batch_size, workload.learning_rate)
    server = Server(workload.initial_model(), options.rounds, 1.0)
    pipeline = Watched(server, trainer)
    pipeline.main()
    report(options.out, pipeline.round_ends, server.cohorts, server.model, threads=NUM_THREADS)


if __name__ == "__main__":
    main()
