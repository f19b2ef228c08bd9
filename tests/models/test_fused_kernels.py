"""The kernels do what torch's own operations do: on a GPU, or read by Triton's interpreter.

The interpreter (see `tests/conftest.py`) runs a kernel's program on numpy arrays, one block after
the other. So what a kernel computes is tested everywhere; how fast it is, and what a compiler makes
of it, only a GPU tells.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.cifar_cnn import CifarCnn
from metis.models.ops import batch_norm_relu, conv3x3, dispatch
from metis.models.ops.bias_relu_lrn import LocalResponseNorm
from metis.models.resnet_cifar import CifarResNet

pytestmark = pytest.mark.skipif(not dispatch.HAS_TRITON, reason="needs Triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = ("bias_relu_lrn_cuda", "conv5x5_cuda", "max_pool_cuda")
RESNET_KERNELS = ("batch_norm_relu_cuda", "conv3x3_cuda")


def kernels(name: str) -> ModuleType:
    return importlib.import_module(f"metis.models.ops.{name}")


def gradients(*leaves: Tensor) -> list[Tensor]:
    assert all(leaf.grad is not None for leaf in leaves)
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


@pytest.fixture(params=[False, True], ids=["ieee", "tf32"])
def close(request: pytest.FixtureRequest) -> Iterator[float]:
    """How far results may be off, with and without products of lower precision."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = request.param
    yield 1e-3 if request.param else 1e-5
    matmul.allow_tf32, cudnn.allow_tf32 = before


def test_fused_bias_relu_and_lrn_are_what_they_are_apart(close: float) -> None:
    torch.manual_seed(0)
    norm = LocalResponseNorm(64).to(DEVICE)
    x, dy = torch.randn(2, 5, 64, 12, 11, device=DEVICE) * 3  # no whole number of blocks
    bias = torch.randn(64, device=DEVICE)
    ours = [x.clone().requires_grad_(), bias.clone().requires_grad_()]
    theirs = [x.double().requires_grad_(), bias.double().requires_grad_()]

    y = kernels("bias_relu_lrn_cuda").FusedNorm.apply(*ours, norm.band[:, :, 0, 0])
    torch.autograd.backward(y, dy)

    active = F.relu(theirs[0] + theirs[1][:, None, None])
    wanted = F.local_response_norm(active, 9, alpha=0.001, beta=0.75, k=1)
    torch.autograd.backward(wanted, dy.double())
    assert distance(y, wanted) < close
    for one, other, scale in zip(gradients(*ours), gradients(*theirs), (1, 30), strict=True):
        assert distance(one, other) < close * scale  # a bias has many summands


def test_what_is_no_number_stays_none() -> None:
    """A model that has gone astray must be seen to have."""
    x = torch.full((1, 64, 4, 4), float("nan"), device=DEVICE, requires_grad=True)
    bias = torch.zeros(64, device=DEVICE, requires_grad=True)
    band = LocalResponseNorm(64).band[:, :, 0, 0].to(DEVICE)

    y = kernels("bias_relu_lrn_cuda").FusedNorm.apply(x, bias, band)
    y.sum().backward()

    assert y.isnan().all()
    assert all(gradient.isnan().all() for gradient in gradients(x, bias))
    assert kernels("max_pool_cuda").FusedPool.apply(x).isnan().all()


def test_gradients_of_the_inputs_do_not_take_the_way_that_has_none(
    monkeypatch: pytest.MonkeyPatch, close: float
) -> None:
    module, x = network(), torch.randn(1, 3, 24, 24, device=DEVICE)
    found = []
    for with_kernels in (True, False):
        monkeypatch.setattr(dispatch, "is_for_kernels", lambda x, answer=with_kernels: answer)
        inputs = x.clone().requires_grad_()
        module(inputs).sum().backward()
        found += gradients(inputs)

    assert distance(*found) < 10 * close * float(found[1].abs().max())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_products_of_written_out_patches_are_a_convolution(
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 24, 23, device=DEVICE).contiguous(memory_format=memory_format)
    weight = torch.randn(64, 3, 5, 5, device=DEVICE, dtype=torch.float64)

    rows = kernels("conv5x5_cuda").patches(x)

    assert rows.shape == (5 * 24 * 23, 80)
    assert not rows[:, 75:].any()
    product = (rows[:, :75].double() @ weight.flatten(1).t()).view(5, 24, 23, 64)
    wanted = F.conv2d(x.double(), weight, padding=2)
    assert distance(product.permute(0, 3, 1, 2), wanted) < 1e-9


@pytest.mark.parametrize("size", [24, 12, 7, 23])
def test_fused_pool_is_max_pool(size: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 64, size, size, device=DEVICE)
    x[0, 0, 0, 0] = x[0, 0, 0, 1]  # a tie
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()

    y: Tensor = kernels("max_pool_cuda").FusedPool.apply(ours)
    wanted = F.max_pool2d(theirs, 3, stride=2, ceil_mode=True)
    dy = torch.randn_like(wanted)
    torch.autograd.backward(y, dy)
    torch.autograd.backward(wanted, dy)

    assert torch.equal(y, wanted)
    (one,), (other,) = gradients(ours), gradients(theirs)
    assert distance(one, other) < 1e-5


def network(lrn: bool = True) -> CifarCnn:
    torch.manual_seed(0)
    module = CifarCnn(10, lrn=lrn).to(DEVICE)
    with torch.no_grad():  # those of a new network are all alike
        for layer in (module.conv1, module.conv2):
            assert layer.bias is not None
            layer.bias.normal_(std=0.5)
    return module


def outputs_and_gradients(module: CifarCnn, with_kernels: bool, bf16: bool = False) -> list[Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, 3, 24, 24, device=DEVICE) * 20  # so that normalisation does something
    towards = torch.randn(2, 10, device=DEVICE)
    module.zero_grad()
    with pytest.MonkeyPatch.context() as patch, torch.autocast(DEVICE, torch.bfloat16, bf16):
        patch.setattr(dispatch, "is_for_kernels", lambda x: with_kernels)
        outputs = module(x)
    outputs.float().backward(towards)
    return [outputs.detach().float(), *(g.clone() for g in gradients(*module.parameters()))]


@pytest.mark.parametrize("lrn", [True, False])
def test_the_network_made_of_kernels_is_the_network(
    lrn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order bias, ReLU, pool and normalisation come there."""
    module = network(lrn)
    for name in KERNELS:
        monkeypatch.delitem(sys.modules, f"metis.models.ops.{name}", raising=False)

    ours, theirs = (outputs_and_gradients(module, with_kernels) for with_kernels in (True, False))

    used = {name for name in KERNELS if f"metis.models.ops.{name}" in sys.modules}
    assert used == ({*KERNELS} if lrn else {"conv5x5_cuda", "max_pool_cuda"})
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_with_bf16_kernels_are_as_near_to_the_network_as_torch_is() -> None:
    module = network()
    exact, ours, theirs = (
        outputs_and_gradients(module, with_kernels, bf16)
        for with_kernels, bf16 in ((False, False), (True, True), (False, True))
    )

    for wanted, one, other in zip(exact, ours, theirs, strict=True):
        off, usual = (float((each - wanted).norm() / wanted.norm()) for each in (one, other))
        assert off < 2 * usual + 0.01


@pytest.mark.parametrize("channels", [16, 32])
@pytest.mark.parametrize("shape", [(2, 9, 7), (5, 24, 24)], ids=["few pixels", "several programs"])
def test_small_convolutions_and_their_gradients_are_torchs(
    channels: int, shape: tuple[int, int, int], close: float
) -> None:
    torch.manual_seed(0)
    batch, height, width = shape
    x = torch.randn(batch, channels, height, width, device=DEVICE)
    weight = torch.randn(channels, channels, 3, 3, device=DEVICE)
    ours = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    theirs = [x.double().requires_grad_(), weight.double().requires_grad_()]

    y: Tensor = kernels("conv3x3_cuda").SmallConv.apply(*ours)
    wanted = F.conv2d(theirs[0], theirs[1], padding=1)
    dy = torch.randn_like(x)
    torch.autograd.backward(y, dy)
    torch.autograd.backward(wanted, dy.double())

    for one, other in zip((y, *gradients(*ours)), (wanted, *gradients(*theirs)), strict=True):
        assert distance(one, other) < 2 * close * float(other.detach().norm() / one.numel() ** 0.5)


@pytest.mark.parametrize(("channels", "size"), [(16, 40), (32, 9), (64, 5)])
def test_fused_batch_norm_and_relu_are_what_they_are_apart(channels: int, size: int) -> None:
    """Also where a channel's mean is a hundred times its standard deviation."""
    torch.manual_seed(0)
    far = 100 * torch.randn(channels)[:, None, None]
    x = (torch.randn(3, channels, size, size) + far).to(DEVICE)
    dy = torch.randn(x.shape, device=DEVICE)
    weight, bias = torch.randn(2, channels, device=DEVICE)
    running = [torch.randn(channels, device=DEVICE), torch.rand(channels, device=DEVICE)]
    ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
    theirs = [t.double().requires_grad_() for t in (x, weight, bias)]
    moved = [[t.to(like.dtype, copy=True) for t in running] for like in (ours[0], theirs[0])]

    y: Tensor = kernels("batch_norm_relu_cuda").FusedBatchNorm.apply(*ours, *moved[0], 0.1, 1e-5)
    at, scale, shift = theirs
    mean, var = moved[1]
    wanted = F.relu(F.batch_norm(at, mean, var, scale, shift, training=True, momentum=0.1))
    torch.autograd.backward(y, dy)
    torch.autograd.backward(wanted, dy.double())

    assert distance(y, wanted) < 1e-3  # float32 has no more digits of x - mean
    for one, other in zip(gradients(*ours), gradients(*theirs), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-2)
    for one, other in zip(*moved, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_a_residual_network_made_of_kernels_is_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs, gradients and what normalisation remembers; in training and in evaluation."""
    torch.manual_seed(0)
    x, towards = torch.randn(3, 3, 16, 16, device=DEVICE), torch.randn(3, 10, device=DEVICE)
    start = CifarResNet(1, 10).to(DEVICE)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # it has other roundings
    for name in RESNET_KERNELS:
        monkeypatch.delitem(sys.modules, f"metis.models.ops.{name}", raising=False)
    found = []
    for with_kernels in (True, False):
        monkeypatch.setattr(dispatch, "is_for_kernels", lambda x, answer=with_kernels: answer)
        module = copy.deepcopy(start)
        outputs = module(x)
        torch.autograd.backward(outputs, towards)
        values = [outputs.detach(), *gradients(*module.parameters()), *module.buffers()]
        with torch.no_grad():
            found.append([*values, module.eval()(x)])
        if with_kernels:
            assert all(f"metis.models.ops.{name}" in sys.modules for name in RESNET_KERNELS)

    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7FC00001, -1])
def test_a_small_convolution_of_what_is_no_number_is_none(bits: int, close: float) -> None:
    """However the bits of such a value are set: rounding them could make a number of it."""
    x = torch.zeros(1, 16, 4, 4, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        x[0, 3, 2, 2] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    weight = torch.ones(16, 16, 3, 3, device=DEVICE, requires_grad=True)

    y = kernels("conv3x3_cuda").SmallConv.apply(x, weight)
    y.sum().backward()

    assert y[:, :, 1:, 1:].isnan().all()
    assert not y[:, :, 0].isnan().any()
    assert gradients(weight)[0][:, 3].isnan().any()


def test_kernels_say_what_they_do_not_compute() -> None:
    conv = conv3x3.fits
    assert conv(nn.Conv2d(16, 32, 3, padding=1, bias=False))
    others: list[dict[str, Any]] = [{"stride": 2}, {"padding": 0}, {"dilation": 2}, {"groups": 2}]
    for settings in (*others, {"bias": True}):
        assert not conv(nn.Conv2d(16, 16, 3, **{"padding": 1, "bias": False, **settings}))
    assert not conv(nn.Conv2d(16, 64, 3, padding=1, bias=False))
    assert not conv(nn.Conv2d(16, 16, 1, bias=False))

    norm, x = batch_norm_relu.fits, torch.zeros(2, 16, 1, 1)
    assert norm(nn.BatchNorm2d(16), x)
    assert not norm(nn.BatchNorm2d(16), x[:1])  # torch says that one value is too few
    assert not norm(nn.BatchNorm2d(16).eval(), x)
    others = [{"momentum": None}, {"affine": False}, {"track_running_stats": False}]
    for settings in others:
        assert not norm(nn.BatchNorm2d(16, **settings), x)
    assert not norm(nn.BatchNorm2d(48), torch.zeros(2, 48, 1, 1))


def test_every_kernel_compiles_for_an_h200(tmp_path: Path) -> None:
    """The interpreter takes more than the compiler does. In a process of its own: it is either."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "0",
    }

    done = subprocess.run(
        [sys.executable, "-m", "tests.models.compile_kernels"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout)
    kernel_files = {*KERNELS, *RESNET_KERNELS}
    assert {name.partition(".")[0] for name in compiled} == kernel_files
    assert all(variants and min(variants) > 1000 for variants in compiled.values()), compiled


def test_batch_norm_of_what_is_no_number_is_none() -> None:
    x = torch.full((2, 16, 4, 4), float("nan"), device=DEVICE, requires_grad=True)
    weight, bias, mean, var = torch.ones(4, 16, device=DEVICE)

    y = kernels("batch_norm_relu_cuda").FusedBatchNorm.apply(x, weight, bias, mean, var, 0.1, 1e-5)
    y.sum().backward()

    assert y.isnan().all()
    assert all(each.isnan().all() for each in (*gradients(x), mean, var))
