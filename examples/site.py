"""What one hospital brings to a federation: its model and its data, which stays here.

    metis learner --controller HUB:7400 --certs certs --app site.py:make_learner

Copy this file, change `own_patients`, and leave the rest as all sites agreed on it. The data is
that of the Wisconsin breast cancer study (569 patients, 30 measurements each, benign or malignant).
$METIS_SITE_CSV names a file of your own: a line of headings, then a line for each patient with 30
numbers and the class, 0 or 1. Without it, a site called hospital-1, hospital-2 or hospital-3 holds
a third of the study's patients, so that the example runs anywhere.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from torch import nn

import metis

NUM_MEASUREMENTS = 30
NUM_SITES = 3


def make_learner(site: str) -> metis.Learner:
    """Return the learner of a site. `metis learner` says which: it is the certificate's name.

    `metis model init` and `metis model test` belong to no site and say "".
    """
    x, y = own_patients(site)
    # Every site scales by its own patients: means and spreads need not be told to anybody.
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    for_test = np.arange(len(x)) % 5 == 0  # never trained on, never judged on
    data = metis.Dataset(
        name=f"patients of {site or 'all hospitals'}",
        x_train=x[~for_test],
        y_train=y[~for_test],
        x_test=x[for_test],
        y_test=y[for_test],
        num_classes=2,
        advice=metis.Advice(learning_rate=0.05, momentum=0.5, batch_size=16),
    )
    return metis.Learner(model=make_model(), data=data)


def make_model() -> nn.Module:
    """Return the model that all sites agreed on: same tensors, same names, same order."""
    torch.manual_seed(2026)
    return nn.Sequential(nn.Linear(NUM_MEASUREMENTS, 16), nn.ReLU(), nn.Linear(16, 2))


def own_patients(site: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the measurements and classes of a site's patients. This is the part to change."""
    path = os.environ.get("METIS_SITE_CSV")
    if path is not None:
        table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        if table.shape[1] != NUM_MEASUREMENTS + 1:
            raise ValueError(
                f"{path}: {table.shape[1]} columns, not {NUM_MEASUREMENTS} and a class"
            )
        return table[:, :-1], table[:, -1].astype(np.int64)
    x, y = load_breast_cancer(return_X_y=True)
    if not site:
        return x, y
    number = site.removeprefix("hospital-")
    if not number.isdigit() or not 1 <= int(number) <= NUM_SITES:
        raise ValueError(
            f"{site}: without METIS_SITE_CSV a site is called hospital-1 to hospital-{NUM_SITES}"
        )
    # In fives, so that who is kept back for testing is the same with and without a division.
    mine = np.arange(len(x)) // 5 % NUM_SITES == int(number) - 1
    return x[mine], y[mine]
