"""Local response normalisation on a GPU as two fused kernels, one each way.

Plain operations read and write the whole tensor twenty times over; these read it once forward and
twice backward. Imported only where there is a GPU and Triton (a part of torch's CUDA builds).
"""
# Kernels are no Python: mypy can make nothing of them.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # pixels per program


@triton.jit
def _forward(
    x_at, y_at, band_at, num_rows, width: tl.constexpr, rows: tl.constexpr, precision: tl.constexpr
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    at = row[:, None] * width + channel[None, :]
    inside = (row < num_rows)[:, None]
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    band = tl.load(band_at + channel[:, None] * width + channel[None, :])
    root = tl.rsqrt(1.0 + tl.dot(x * x, band, input_precision=precision))
    tl.store(y_at + at, x * root * tl.sqrt(root), mask=inside)


@triton.jit
def _backward(
    x_at,
    dy_at,
    dx_at,
    band_at,
    num_rows,
    width: tl.constexpr,
    rows: tl.constexpr,
    precision: tl.constexpr,
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    at = row[:, None] * width + channel[None, :]
    inside = (row < num_rows)[:, None]
    x = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_at + at, mask=inside, other=0.0).to(tl.float32)
    band = tl.load(band_at + channel[:, None] * width + channel[None, :])
    base = 1.0 + tl.dot(x * x, band, input_precision=precision)
    root = tl.rsqrt(base)
    direct = dy * root * tl.sqrt(root)
    # d base^-0.75 / dx = -0.75 base^-1.75 * 2 band x, and the band is symmetric.
    across = tl.dot(direct * x / base, band, input_precision=precision)
    tl.store(dx_at + at, direct - 1.5 * x * across, mask=inside)


class FusedNorm(torch.autograd.Function):
    """x / (1 + band * x^2) ** 0.75 across the channels of a channels-last tensor."""

    @staticmethod
    def forward(ctx, x: Tensor, band: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.empty_like(x)
        ctx.save_for_backward(x, band)
        _launch(_forward, x, (x, y, band))
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        x, band = ctx.saved_tensors
        dx = torch.empty_like(x)
        _launch(_backward, x, (x, dy.contiguous(memory_format=torch.channels_last), dx, band))
        return dx, None


def _launch(kernel, x: Tensor, tensors: tuple[Tensor, ...]) -> None:
    num_channels = x.shape[1]
    num_rows = x.numel() // num_channels
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    kernel[(triton.cdiv(num_rows, ROWS),)](*tensors, num_rows, num_channels, ROWS, precision)
