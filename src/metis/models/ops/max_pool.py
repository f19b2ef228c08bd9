"""Maximum over 3x3 windows, every second one each way, rounded up at the far edge."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from metis.models.ops import dispatch


def max_pool(x: Tensor) -> Tensor:
    """Return the maxima. TensorFlow's SAME padding gives the same ones."""
    if not dispatch.is_for_kernels(x):
        return reference(x)
    from metis.models.ops.max_pool_cuda import FusedPool

    y: Tensor = FusedPool.apply(x)  # type: ignore[no-untyped-call]
    return y


def reference(x: Tensor) -> Tensor:
    # TensorFlow's SAME padding adds its single row at the far edge, which is what rounding up does.
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)
