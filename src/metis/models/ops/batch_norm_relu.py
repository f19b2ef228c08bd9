"""Batch normalisation and ReLU; in training they have kernels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from metis.models.ops import dispatch

WIDTHS = (16, 32, 64)  # numbers of channels that the kernels take


def batch_norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return relu(norm(x)). In training this moves the running statistics, as norm does."""
    if not (dispatch.is_for_kernels(x) and dispatch.is_float32(x) and fits(norm, x)):
        return reference(norm, x)
    from metis.models.ops.batch_norm_relu_cuda import FusedBatchNorm

    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var, norm.momentum, norm.eps)
    y: Tensor = FusedBatchNorm.apply(x, norm.weight, norm.bias, *running)  # type: ignore[no-untyped-call]
    return y


def reference(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return F.relu(norm(x))


def fits(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """Whether this normalisation is one that the kernels compute."""
    settled = norm.training and norm.track_running_stats and norm.momentum is not None
    return settled and norm.affine and norm.num_features in WIDTHS and x.numel() > x.shape[1]
