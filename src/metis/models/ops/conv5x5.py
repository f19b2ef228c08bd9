"""Convolution of images with 5x5 filters, "same" padding, no bias."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from metis.models.ops import dispatch


def conv5x5(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of inputs with few channels.

    cuDNN has no fast way for three channels, so on a GPU this is one matrix product with every
    patch written out. The kernel has no gradient of its inputs.
    """
    if not dispatch.is_for_kernels(x) or x.requires_grad:
        return reference(x, weight)
    from metis.models.ops.conv5x5_cuda import patches

    rows = patches(x)
    filters = F.pad(weight.flatten(1), (0, rows.shape[1] - weight[0].numel()))
    product = rows @ filters.t()
    return product.view(len(x), *x.shape[2:], len(weight)).permute(0, 3, 1, 2)


def reference(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=2)
