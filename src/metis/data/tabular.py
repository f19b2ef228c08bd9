"""Small data that needs no download (scikit-learn's), and the four hospitals of Heart Disease."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Dataset
from metis.data.npz import TEST_FRACTION, TEST_KEY
from metis.data.split import holdout

_SITES = ("cleveland", "hungarian", "switzerland", "va")
_NUM_FEATURES = 13


def read_digits(_: Path) -> Dataset:
    """8x8 handwritten digits, pixels 0..16 scaled to 0..1; a stratified fifth is the test set."""
    x, y = _sklearn("load_digits", np.int64)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test = holdout(y, TEST_FRACTION, TEST_KEY, num_classes=10)
    return Dataset("digits", x[train], y[train], x[test], y[test], 10)


def read_breast_cancer(_: Path) -> Dataset:
    """30 measurements of cell nuclei, standardised; 0 malignant, 1 benign."""
    x, y = _sklearn("load_breast_cancer", np.int64)
    train, test = holdout(y, TEST_FRACTION, TEST_KEY, num_classes=2)
    return Dataset("breast_cancer", *_scaled(x, y, train, test), 2)


def read_diabetes(_: Path) -> Dataset:
    """Disease progression after a year, a regression.

    Inputs and target are standardised with training statistics: an MSE of 1 is what the mean
    alone would give, and R2 is that of the original units.
    """
    x, y = _sklearn("load_diabetes", np.float64)
    train, test = holdout(y, TEST_FRACTION, TEST_KEY, num_classes=0)
    y = _standardised(y[:, None], train)[:, 0]
    return Dataset("diabetes", *_scaled(x, y, train, test), 0)


def read_heart_disease(path: Path) -> Dataset:
    """13 clinical features from four hospitals, which become the owners; label: any disease.

    Takes one CSV with a header and a `site` column, or a folder with it or with UCI's four
    `processed.*.data`. A fifth of each site and label is the test set. Missing cells get the mean
    of the training rows of all sites, then all features are standardised with training
    statistics (a real federation would first have to agree on these).
    """
    rows = _heart_rows(path)
    sites = np.array([site for site, _ in rows])
    table = np.array([cells for _, cells in rows], dtype=np.float64)
    x, y = table[:, :_NUM_FEATURES], (table[:, _NUM_FEATURES] > 0).astype(np.int64)
    strata = np.unique(sites, return_inverse=True)[1] * 2 + y
    train, test = holdout(strata, TEST_FRACTION, TEST_KEY, num_classes=2 * len(set(sites)))
    missing = np.isnan(x)
    known = (~missing[train]).sum(axis=0)
    means = np.where(missing, 0.0, x)[train].sum(axis=0) / np.maximum(known, 1)
    x = np.where(missing, means, x)
    return Dataset("heart_disease", *_scaled(x, y, train, test), 2, sites[train])


def _sklearn(loader: str, target: type[np.generic]) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError(
            "this data comes with scikit-learn, which is not installed: "
            "pip install 'metis-fl[learn]'"
        ) from None
    x, y = getattr(datasets, loader)(return_X_y=True)
    return x, y.astype(target)


def _standardised(x: NDArray[Any], train: NDArray[np.int64]) -> NDArray[np.float32]:
    seen = x[train]
    spread = seen.std(axis=0)
    varies = spread > 1e-9 * np.abs(seen).max(axis=0)  # a constant's is rounding noise, not 0
    scaled = (x - seen.mean(axis=0)) / np.where(varies, spread, 1.0)
    return np.asarray(scaled, dtype=np.float32)


def _scaled(
    x: NDArray[Any], y: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    x = _standardised(x, train)
    return x[train], y[train], x[test], y[test]


def _heart_rows(path: Path) -> list[tuple[str, list[float]]]:
    table = path / "heart_disease_4site.csv" if path.is_dir() else path
    if table.is_file():
        return [(row[0], _numbers(row[1:], table)) for row in _lines(table)[1:]]
    files = [(site, path / f"processed.{site}.data") for site in _SITES]
    return [(site, _numbers(row, file)) for site, file in files for row in _lines(file)]


def _lines(file: Path) -> list[list[str]]:
    try:
        with file.open(newline="", encoding="utf-8") as text:
            return [row for row in csv.reader(text) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {error}") from error


def _numbers(cells: list[str], file: Path) -> list[float]:
    try:
        numbers = [float("nan") if cell.strip() in ("", "?") else float(cell) for cell in cells]
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    if len(numbers) != _NUM_FEATURES + 1 or np.isnan(numbers[-1]):
        raise DataError(
            f"{file}: a row must have {_NUM_FEATURES} features and a diagnosis (after the site, "
            f"in a CSV with header), but one is {','.join(cells)!r}"
        )
    return numbers
