"""The 6n+2-layer residual network for small images, as in TensorFlow's official models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.ops import fused
from metis.models.shapes import require_shape

# Standard deviation of a standard normal cut off at two: TensorFlow divides by it.
TRUNCATED_STD = 0.87962566103423978


class Block(nn.Module):
    """Two 3x3 convolutions, each after batch-norm and ReLU, added to a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int, project: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(num_in, num_out, 1, stride, bias=False) if project else None

    def forward(self, x: Tensor) -> Tensor:
        active = _active(self.norm1, x)
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        return (
            _convolved(self.conv2, _active(self.norm2, _convolved(self.conv1, active))) + shortcut
        )


class CifarResNet(nn.Module):
    """Three stages of n pre-activation blocks with 16, 32 and 64 filters.

    As in the official models, the first block of every stage projects its shortcut, and filters
    start as truncated normals of variance 1/fan-in. Deviation: running statistics move by 0.1 a
    step (torch's default), not by 0.003; at that rate a model would need some thousand steps
    before its validation score said anything, and scores are what DVW weighs by.
    """

    def __init__(self, num_blocks: int, num_outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            *(
                Block(width if n else num_in, width, 1 if n else stride, project=n == 0)
                for num_in, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
                for n in range(num_blocks)
            )
        )
        self.norm = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, num_outputs)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.weight[0].numel()
                std = math.sqrt(1 / fan_in) / TRUNCATED_STD
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = _active(self.norm, self.blocks(self.stem(x)))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def _active(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return relu(norm(x))."""
    if not (fused.is_for_kernels(x) and _is_float32(x)):
        return F.relu(norm(x))
    from metis.models.ops.batch_norm_cuda import FusedBatchNorm, fits

    if not fits(norm, x):
        return F.relu(norm(x))
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var, norm.momentum, norm.eps)
    y: Tensor = FusedBatchNorm.apply(x, norm.weight, norm.bias, *running)  # type: ignore[no-untyped-call]
    return y


def _convolved(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Return conv(x)."""
    y: Tensor
    if fused.is_for_kernels(x) and _is_float32(x):
        from metis.models.ops.conv_cuda import SmallConv, fits

        y = SmallConv.apply(x, conv.weight) if fits(conv) else conv(x)  # type: ignore[no-untyped-call]
    else:
        y = conv(x)
    return y


def _is_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)


def resnet50_cifar(input_shape: Sequence[int], num_outputs: int, num_blocks: int = 8) -> nn.Module:
    """Return the DVW paper's CIFAR-100 network; 6 * num_blocks + 2 layers, 50 by default."""
    require_shape("resnet50_cifar", (3, None, None), input_shape)
    return CifarResNet(num_blocks, num_outputs)
