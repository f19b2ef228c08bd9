# mypy: ignore-errors
"""Flower's own server and learners for benchmarks/wire.py, which starts this in their environment.

    python wire_flwr.py host|learner PARAMETERS LEARNERS ROUNDS ADDRESS

The host prints when each round was done.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import flwr
import numpy as np
from flwr.server.strategy import FedAvg

what, size, learners, rounds, address = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
logging.getLogger("flwr").setLevel(logging.ERROR)
marks = []


class Timed(FedAvg):
    def aggregate_fit(self, *found):
        made = super().aggregate_fit(*found)
        marks.append(time.perf_counter())
        return made


class Echo(flwr.client.NumPyClient):
    def fit(self, parameters, config):
        return parameters, 1, {}


if what == "host":
    values = np.random.default_rng(1990).standard_normal(size, dtype=np.float32)
    strategy = Timed(
        fraction_evaluate=0.0,
        min_fit_clients=learners,
        min_available_clients=learners,
        initial_parameters=flwr.common.ndarrays_to_parameters([values]),
    )
    flwr.server.start_server(
        server_address=address,
        strategy=strategy,
        config=flwr.server.ServerConfig(num_rounds=rounds),
        grpc_max_message_length=2**31 - 1,
    )
    print(json.dumps(marks))
else:
    flwr.client.start_client(
        server_address=address,
        client=Echo().to_client(),
        grpc_max_message_length=2**31 - 1,
    )
