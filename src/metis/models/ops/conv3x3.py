"""A convolution layer; one of 3x3 filters and few channels has kernels."""

from __future__ import annotations

from torch import Tensor, nn

from metis.models.ops import dispatch

WIDTHS = (16, 32)  # numbers of channels that the kernels take
SIDE = 3


def conv3x3(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Return conv(x)."""
    if not (dispatch.is_for_kernels(x) and dispatch.is_float32(x) and fits(conv)):
        return reference(conv, x)
    from metis.models.ops.conv3x3_cuda import SmallConv

    y: Tensor = SmallConv.apply(x, conv.weight)  # type: ignore[no-untyped-call]
    return y


def reference(conv: nn.Conv2d, x: Tensor) -> Tensor:
    y: Tensor = conv(x)
    return y


def fits(conv: nn.Conv2d) -> bool:
    """Whether this convolution is one that the kernels compute."""
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias)
    known = ((SIDE, SIDE), (1, 1), (1, 1), (1, 1), 1, None)
    return shape == known and {conv.in_channels, conv.out_channels} <= {*WIDTHS}
