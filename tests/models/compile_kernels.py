"""Compile all kernels of the networks for an H200 where there is none.

`python -m tests.models.compile_kernels`. Triton is told that there is such a GPU, and what it would
launch is not launched. Networks take a step of training, so that kernels are compiled as they are
called. Prints the bytes of each.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from metis.models.cifar_cnn import CifarCnn
from metis.models.ops import dispatch
from metis.models.resnet_cifar import CifarResNet

KERNELS = (
    "batch_norm_relu_cuda",
    "bias_relu_lrn_cuda",
    "conv3x3_cuda",
    "conv5x5_cuda",
    "max_pool_cuda",
)


class Nowhere:
    """What Triton asks of a GPU's driver."""

    class utils:  # noqa: N801  # Triton's name
        @staticmethod
        def load_binary(*_: Any) -> tuple[int, int, int, int, int]:
            return 1, 1, 32, 0, 1024  # module, function, registers, spills, threads

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            return {"max_shared_mem": 227 * 1024}

    class launcher_cls:  # noqa: N801
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __call__(self, *_: Any, **__: Any) -> None: ...

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def compile_all() -> dict[str, list[int]]:
    """Return the sizes of each kernel's compiled variants."""
    driver.set_active(Nowhere())
    dispatch.is_for_kernels = lambda x: True
    for tf32 in (True, False):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        for network, side in ((CifarCnn(10), 24), (CifarResNet(1, 10), 32)):
            x = torch.randn(2, 3, side, side).contiguous(memory_format=torch.channels_last)
            network(x).sum().backward()
    found = {}
    for name in KERNELS:
        for kernel in vars(importlib.import_module(f"metis.models.ops.{name}")).values():
            if isinstance(kernel, JITFunction) and kernel.device_caches:
                variants = kernel.device_caches[0][0].values()
                found[f"{name}.{kernel.__name__}"] = [len(one.asm["cubin"]) for one in variants]
    return found


if __name__ == "__main__":
    print(json.dumps(compile_all()))
