"""Whether a network's fused kernels (`*_cuda`) compute something, or torch's own operations do."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

HAS_TRITON = find_spec("triton") is not None  # a part of torch's builds for CUDA


def is_for_kernels(x: Tensor) -> bool:
    """Whether this tensor lies where kernels run."""
    return x.is_cuda and HAS_TRITON
