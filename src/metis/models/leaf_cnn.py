"""The CNNs of the LEAF benchmark: EMNIST in the DVW paper, FEMNIST in the SSTC paper."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.shapes import require_shape


class LeafCnn(nn.Module):
    """conv5x5x32, pool, conv5x5x64, pool, one hidden layer; "same" padding throughout.

    Initial values are those of TensorFlow's layers, which LEAF uses: Glorot uniform, biases 0.
    """

    def __init__(self, num_hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * 7 * 7, num_hidden)
        self.fc2 = nn.Linear(num_hidden, num_outputs)
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None  # the type of a convolution allows for none
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = _pooled(x, self.conv1)
        x = _pooled(x, self.conv2)
        logits: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return logits


def _pooled(x: Tensor, layer: nn.Conv2d) -> Tensor:
    # The largest of relu(x + bias) is relu(the largest x + bias), and has a quarter of the values.
    assert layer.bias is not None
    largest = F.max_pool2d(F.conv2d(x, layer.weight, padding=2), 2)
    return F.relu(largest + layer.bias[:, None, None])


def leaf_cnn(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return LEAF's CNN with 2,048 hidden units: 6,603,710 parameters for 62 classes."""
    require_shape("leaf_cnn", (1, 28, 28), input_shape)
    return LeafCnn(2048, num_outputs)


def femnist_cnn(input_shape: Sequence[int], num_outputs: int) -> nn.Module:
    """Return the SSTC paper's CNN with 512 hidden units: 1,690,046 parameters for 62 classes."""
    require_shape("femnist_cnn", (1, 28, 28), input_shape)
    return LeafCnn(512, num_outputs)
