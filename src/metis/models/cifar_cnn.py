"""The CNN of the TensorFlow CIFAR-10 tutorial, the model of the DVW paper's Table I."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.ops.bias_relu_lrn import LocalResponseNorm, bias_relu_lrn, conv_bias_relu_lrn
from metis.models.ops.conv5x5 import conv5x5
from metis.models.ops.max_pool import max_pool
from metis.models.shapes import require_shape


class CifarCnn(nn.Module):
    """conv64, pool, norm, conv64, norm, pool, fc384, fc192, fc.

    Takes 24x24 crops; 1,068,298 parameters for 10 classes. `fc1` and `fc2` are the
    hidden layers whose weights the tutorial decays. Initial values are the tutorial's:
    truncated normal weights (0.05 for convolutions, 0.04 for hidden layers, 1/192 for the last),
    biases 0, 0.1, 0.1, 0.1, 0.
    """

    def __init__(self, num_outputs: int, lrn: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 6 * 6, 384)
        self.fc2 = nn.Linear(384, 192)
        self.fc3 = nn.Linear(192, num_outputs)
        self.norm = LocalResponseNorm(64) if lrn else None

        for layer, std, bias in (
            (self.conv1, 0.05, 0.0),
            (self.conv2, 0.05, 0.1),
            (self.fc1, 0.04, 0.1),
            (self.fc2, 0.04, 0.1),
            (self.fc3, 1 / 192, 0.0),
        ):
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            assert layer.bias is not None  # the type of a convolution allows for none
            nn.init.constant_(layer.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        # The largest of relu(x + bias) is relu(the largest x + bias), and has a quarter of the
        # values. So the bias comes after a pool, where the order of the layers allows for it.
        x = self._activated(max_pool(conv5x5(x, self.conv1.weight)), self.conv1)
        if self.norm is None:
            x = F.conv2d(x, self.conv2.weight, padding=2)
            x = self._activated(max_pool(x), self.conv2)
        else:
            x = max_pool(conv_bias_relu_lrn(self.norm, self.conv2, x))
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits

    def _activated(self, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """Add a convolution's bias, then apply ReLU and the normalisation."""
        assert conv.bias is not None
        if self.norm is None:
            return F.relu(x + conv.bias[:, None, None])
        return bias_relu_lrn(self.norm, x, conv.bias)


def cifar_cnn(input_shape: Sequence[int], num_outputs: int, lrn: bool = True) -> nn.Module:
    """Return the tutorial's CNN, with or without its two normalisations."""
    require_shape("cifar_cnn", (3, 24, 24), input_shape)
    return CifarCnn(num_outputs, lrn)
