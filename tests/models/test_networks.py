"""Networks: exact sizes, initial values as specified, weights that follow from the seed alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metis.core.errors import ModelError
from metis.models import MODELS, build
from metis.models.cifar_cnn import CifarCnn
from metis.models.ops.bias_relu_lrn import LocalResponseNorm

SHAPES = {
    "cifar_cnn": (3, 24, 24),
    "digits_cnn": (1, 8, 8),
    "femnist_cnn": (1, 28, 28),
    "leaf_cnn": (1, 28, 28),
    "linear": (10,),
    "mlp": (1, 8, 8),
    "mnist_cnn": (1, 28, 28),
    "resnet50": (3, 64, 64),
    "resnet50_cifar": (3, 32, 32),
}


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "num_outputs", "wanted"),
    [
        ("cifar_cnn", 10, 1_068_298),
        ("leaf_cnn", 62, 6_603_710),
        ("femnist_cnn", 62, 1_690_046),
        ("resnet50", 1000, 25_557_032),
        ("resnet50_cifar", 100, 764_468),
        ("digits_cnn", 10, 38_282),
        ("mnist_cnn", 10, 215_370),
        ("mlp", 10, 64 * 64 + 64 + 64 * 10 + 10),
        ("linear", 1, 11),
    ],
)
def test_models_have_exactly_so_many_parameters(name: str, num_outputs: int, wanted: int) -> None:
    assert num_parameters(build(name, SHAPES[name], num_outputs, seed=1)) == wanted


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"resnet50", "resnet50_cifar"}))
def test_a_model_gives_one_row_of_outputs_per_example(name: str) -> None:
    assert build(name, SHAPES[name], 7, seed=1)(torch.rand(2, *SHAPES[name])).shape == (2, 7)


def test_residual_networks_give_one_row_of_outputs_per_example() -> None:
    small = build("resnet50_cifar", (3, 16, 16), 5, seed=1, num_blocks=1)
    large = build("resnet50", (3, 32, 32), 5, seed=1).eval()

    assert small(torch.rand(2, 3, 16, 16)).shape == (2, 5)
    with torch.no_grad():
        assert large(torch.rand(1, 3, 32, 32)).shape == (1, 5)


def test_the_cifar_resnet_has_fifty_weighted_layers_on_its_main_path() -> None:
    module = build("resnet50_cifar", (3, 32, 32), 100, seed=1)
    filters = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]

    assert len(filters) + 1 == 50


def test_weights_follow_from_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build("digits_cnn", (1, 8, 8), 10, seed) for seed in (3, 3, 4))

    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_a_wrong_input_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(ModelError, match=r"cifar_cnn takes inputs of shape 3x24x24.*3x32x32"):
        build("cifar_cnn", (3, 32, 32), 10, seed=1)
    with pytest.raises(ModelError, match=r"3xanyxany.*1x28x28"):
        build("resnet50_cifar", (1, 28, 28), 10, seed=1)


def test_a_wrong_name_or_option_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ModelError, match="did you mean 'cifar_cnn'"):
        build("cifar_cn", (3, 24, 24), 10, seed=1)
    with pytest.raises(ModelError, match="did you mean 'lrn'"):
        build("cifar_cnn", (3, 24, 24), 10, seed=1, lrm=False)


@pytest.mark.parametrize("num_channels", [3, 64])
def test_lrn_equals_torch_in_value_and_gradient(num_channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (50 * torch.randn(2, num_channels, 5, 5, generator=generator)).requires_grad_()
    towards = torch.randn(x.shape, generator=generator)

    def value_and_gradient(y: Tensor) -> tuple[Tensor, Tensor]:
        return y.detach(), torch.autograd.grad(y, x, towards)[0]

    ours = value_and_gradient(LocalResponseNorm(num_channels)(x))
    torchs = value_and_gradient(F.local_response_norm(x, 9, alpha=0.001, beta=0.75, k=1.0))

    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-5)


def test_lrn_adds_nothing_to_what_is_exchanged() -> None:
    assert CifarCnn(10, lrn=True).state_dict().keys() == CifarCnn(10, lrn=False).state_dict().keys()


def test_the_cifar_cnn_starts_as_the_tutorial_says() -> None:
    module = build("cifar_cnn", (3, 24, 24), 10, seed=1)
    assert isinstance(module, CifarCnn)
    layers: list[nn.Conv2d | nn.Linear] = [
        module.conv1,
        module.conv2,
        module.fc1,
        module.fc2,
        module.fc3,
    ]
    stds, biases = (0.05, 0.05, 0.04, 0.04, 1 / 192), (0.0, 0.1, 0.1, 0.1, 0.0)

    # A normal cut off at two deviations has 0.8796 of the deviation left.
    for layer, std, bias in zip(layers, stds, biases, strict=True):
        assert layer.weight.abs().max() <= 2 * std
        assert layer.weight.std().item() == pytest.approx(0.8796 * std, rel=0.05)
        assert abs(layer.weight.mean().item()) < 4 * std / math.sqrt(layer.weight.numel())
        assert layer.bias is not None
        assert torch.equal(layer.bias, torch.full_like(layer.bias, bias))


def test_pooling_pads_as_tensorflow_does() -> None:
    # SAME pooling of 24 by 3, stride 2 starts at 0, 2, ..., 22; only the last window is cut short.
    row = np.random.default_rng(0).random(24).astype(np.float32)
    wanted = [row[start : start + 3].max() for start in range(0, 24, 2)]
    pooled = F.max_pool2d(torch.from_numpy(np.tile(row, (24, 1)))[None, None], 3, 2, ceil_mode=True)

    assert pooled[0, 0, 0].tolist() == wanted
