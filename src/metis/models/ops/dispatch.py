"""Whether an operation's kernels (`*_cuda`) compute it, or its reference in torch does."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None  # a part of torch's builds for CUDA


def is_for_kernels(x: Tensor) -> bool:
    """Whether this tensor is on a device that runs kernels."""
    return x.is_cuda and HAS_TRITON


def is_float32(x: Tensor) -> bool:
    """Whether operations on this tensor compute in float32."""
    return x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)
