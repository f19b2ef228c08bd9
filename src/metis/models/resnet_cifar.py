"""The 6n+2-layer residual network for small images, as in TensorFlow's official models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from metis.models.ops.batch_norm_relu import batch_norm_relu
from metis.models.ops.conv3x3 import conv3x3
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
        active = batch_norm_relu(self.norm1, x)
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        inner = batch_norm_relu(self.norm2, conv3x3(self.conv1, active))
        return conv3x3(self.conv2, inner) + shortcut


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
        x = batch_norm_relu(self.norm, self.blocks(self.stem(x)))
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def resnet50_cifar(input_shape: Sequence[int], num_outputs: int, num_blocks: int = 8) -> nn.Module:
    """Return the DVW paper's CIFAR-100 network; 6 * num_blocks + 2 layers, 50 by default."""
    require_shape("resnet50_cifar", (3, None, None), input_shape)
    return CifarResNet(num_blocks, num_outputs)
