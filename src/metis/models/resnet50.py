"""The bottleneck ResNet-50 for ImageNet-sized inputs, kept for studies of model size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.shapes import require_shape

EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions added to a shortcut; the 3x3 one carries the stride."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = width * EXPANSION
        self.conv1 = nn.Conv2d(num_in, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, num_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = F.relu(self.norm2(self.conv2(inner)))
        return F.relu(self.norm3(self.conv3(inner)) + self.shortcut(x))


class ResNet50(nn.Module):
    """3, 4, 6 and 3 bottlenecks: 25,557,032 parameters for 1,000 classes."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        num_in = 64
        for width, num_blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for n in range(num_blocks):
                blocks.append(Bottleneck(num_in, width, 1 if n else stride))
                num_in = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(num_in, num_outputs)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        logits: Tensor = self.fc(self.blocks(x).mean(dim=(2, 3)))
        return logits


def resnet50(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return the 25.6M-parameter ResNet-50 (the DVW paper's Figure 2)."""
    require_shape("resnet50", (3, None, None), input_shape)
    return ResNet50(num_outputs)
