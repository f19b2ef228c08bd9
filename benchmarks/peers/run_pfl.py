# mypy: ignore-errors
"""pfl-research: its simulated backend in one process of two threads."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F
from workloads import NUM_THREADS, SEED, WORKLOADS, arguments, report, shards


class Watch(TrainingProcessCallback):
    """Notes when each round ended."""

    def __init__(self):
        self.round_ends = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.round_ends.append(time.time())
        return False, Metrics()


def main() -> None:
    options = arguments()
    torch.set_num_threads(NUM_THREADS)
    np.random.seed(SEED)
    workload, data = WORKLOADS[options.workload], shards(options.data)

    network = workload.initial_model()
    network.loss = lambda images, labels: F.cross_entropy(network(images), labels)
    network.metrics = lambda images, labels: {}  # pfl would evaluate in the first round

    trained = []

    def dataset_of(learner):
        trained.append(int(learner))
        return PyTorchTensorDataset(data.of(learner), user_id=str(learner))

    # Each learner once before any comes again: all ten in w1, twenty that differ in w2.
    sampler = get_user_sampler("minimize_reuse", np.random.permutation(workload.num_learners))
    dataset = FederatedDataset(dataset_of, sampler)
    watch = Watch()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds + 1,
            train_cohort_size=workload.learners_per_round,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]
        ),
        model=PyTorchModel(
            network,
            local_optimizer_create=partial(torch.optim.SGD, momentum=workload.momentum),
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=workload.learning_rate,
            local_batch_size=workload.batch_size,
        ),
        callbacks=[watch],
    )
    size = workload.learners_per_round
    cohorts = [trained[start : start + size] for start in range(0, len(trained), size)]
    report(options.out, watch.round_ends, cohorts, network, threads=NUM_THREADS)


if __name__ == "__main__":
    main()
