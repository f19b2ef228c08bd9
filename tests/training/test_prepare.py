"""Input preparation, against the obvious loop over examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from metis.core.errors import ConfigError
from metis.training.prepare import PREPARATIONS, preparation_named

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)


def standardised(image: NDArray[Any]) -> NDArray[Any]:
    deviation = max(float(image.std()), 1 / math.sqrt(image.size))
    return np.asarray((image - image.mean()) / deviation)


def cropped(image: NDArray[np.uint8], size: int, draws: NDArray[np.float32]) -> NDArray[np.float64]:
    room = image.shape[1] - size + 1
    top, left = int(draws[0] * room), int(draws[1] * room)
    part = image[:, top : top + size, left : left + size].astype(np.float64)
    return part if draws[2] < 0.5 else part[:, :, ::-1]


def test_none_scales_bytes_and_passes_everything_else() -> None:
    none = preparation_named("none")
    x = torch.tensor([[0, 255]], dtype=torch.uint8)
    draws = torch.from_numpy(none.draw(np.random.default_rng(0), 1))

    assert none.train(x, draws).tolist() == [[0.0, 1.0]]
    assert none.evaluate(torch.tensor([[7.5]])).tolist() == [[7.5]]
    assert none.evaluate(torch.tensor([[3]])).dtype == torch.int64
    assert none.output_shape((4,)) == (4,)


def test_cifar10_trains_on_what_the_tutorial_describes() -> None:
    cifar10 = preparation_named("cifar10")
    draws = cifar10.draw(np.random.default_rng(1), len(IMAGES))
    prepared = cifar10.train(torch.from_numpy(IMAGES), torch.from_numpy(draws)).numpy()

    for image, row, got in zip(IMAGES, draws, prepared, strict=True):
        part = cropped(image, 24, row) + 63 * (2 * row[3] - 1)
        mean = part.mean(axis=(1, 2), keepdims=True)
        part = (part - mean) * (0.2 + 1.6 * row[4]) + mean
        np.testing.assert_allclose(got, standardised(part), atol=1e-4)
    assert cifar10.output_shape((3, 32, 32)) == prepared.shape[1:]


def test_cifar10_evaluates_on_the_centre() -> None:
    prepared = preparation_named("cifar10").evaluate(torch.from_numpy(IMAGES)).numpy()

    for image, got in zip(IMAGES, prepared, strict=True):
        np.testing.assert_allclose(got, standardised(image[:, 4:28, 4:28]), atol=1e-5)


def test_cifar100_pads_crops_and_flips() -> None:
    cifar100 = preparation_named("cifar100")
    draws = cifar100.draw(np.random.default_rng(2), len(IMAGES))
    prepared = cifar100.train(torch.from_numpy(IMAGES), torch.from_numpy(draws)).numpy()

    for image, row, got in zip(IMAGES, draws, prepared, strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        np.testing.assert_allclose(got, standardised(cropped(padded, 32, row)), atol=1e-5)
    evaluated = cifar100.evaluate(torch.from_numpy(IMAGES)).numpy()
    np.testing.assert_allclose(evaluated[0], standardised(IMAGES[0]), atol=1e-5)


@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_batch_cut_in_two_is_prepared_to_the_same_bytes(name: str) -> None:
    preparation = PREPARATIONS[name]
    x = torch.from_numpy(IMAGES)
    draws = torch.from_numpy(preparation.draw(np.random.default_rng(3), len(x)))
    whole = preparation.train(x, draws)
    parts = torch.cat([preparation.train(x[:2], draws[:2]), preparation.train(x[2:], draws[2:])])

    assert torch.equal(whole, parts)


def test_the_largest_draw_takes_the_last_offset() -> None:
    largest = np.nextafter(np.float32(1), np.float32(0))
    draws = torch.tensor([[largest, largest, 0.0, 0.5, 0.5]])
    prepared = preparation_named("cifar10").train(torch.from_numpy(IMAGES[:1]), draws).numpy()

    np.testing.assert_allclose(prepared[0], standardised(IMAGES[0, :, 8:, 8:]), atol=1e-4)


def test_a_constant_image_is_not_divided_by_zero() -> None:
    image = torch.full((1, 3, 32, 32), 9, dtype=torch.uint8)

    assert preparation_named("cifar10").evaluate(image).abs().max() == 0.0


def test_wrong_names_and_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        preparation_named("cifar1")
    with pytest.raises(ConfigError, match=r"24x24.*\(3, 20, 20\)"):
        preparation_named("cifar10").output_shape((3, 20, 20))
    with pytest.raises(ConfigError, match=r"square images.*\(64,\)"):
        preparation_named("cifar100").output_shape((64,))
