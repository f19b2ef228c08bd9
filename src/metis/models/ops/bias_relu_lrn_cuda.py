"""Bias, ReLU and local response normalisation on a GPU as two fused kernels, one each way.

Plain operations read and write the whole tensor some thirty times over; these read it once forward
and twice backward. Imported only where there is a GPU and Triton (a part of torch's CUDA builds).
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
    x_at,
    bias_at,
    y_at,
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
    x += tl.load(bias_at + channel)[None, :]
    x = tl.where(x < 0, 0.0, x)  # what is no number stays none
    band = tl.load(band_at + channel[:, None] * width + channel[None, :])
    root = tl.rsqrt(1.0 + tl.dot(x * x, band, input_precision=precision))
    tl.store(y_at + at, x * root * tl.sqrt(root), mask=inside)


@triton.jit
def _backward(
    x_at,
    bias_at,
    dy_at,
    dx_at,
    dbias_at,
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
    x += tl.load(bias_at + channel)[None, :]
    x = tl.where(x < 0, 0.0, x)
    dy = tl.load(dy_at + at, mask=inside, other=0.0).to(tl.float32)
    band = tl.load(band_at + channel[:, None] * width + channel[None, :])
    base = 1.0 + tl.dot(x * x, band, input_precision=precision)
    root = tl.rsqrt(base)
    direct = dy * root * tl.sqrt(root)
    # d base^-0.75 / dx = -0.75 base^-1.75 * 2 band x, and the band is symmetric.
    across = tl.dot(direct * x / base, band, input_precision=precision)
    dx = tl.where(x <= 0, 0.0, direct - 1.5 * x * across)  # here too
    tl.store(dx_at + at, dx, mask=inside)
    # A sum for each program, added up afterwards: always in the same order.
    tl.store(dbias_at + tl.program_id(0) * width + channel, tl.sum(dx, axis=0))


class FusedNorm(torch.autograd.Function):
    """r / (1 + band * r^2) ** 0.75 across channels, with r = relu(x + bias), channels last."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor, band: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.empty_like(x)
        ctx.save_for_backward(x, bias, band)
        _forward[(_programs(x),)](x, bias, y, band, *_sizes(x), ROWS, _precision())
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, bias, band = ctx.saved_tensors
        dx = torch.empty_like(x)
        dy = dy.contiguous(memory_format=torch.channels_last)
        sums = torch.empty(_programs(x), x.shape[1], dtype=torch.float32, device=x.device)
        _backward[(_programs(x),)](x, bias, dy, dx, sums, band, *_sizes(x), ROWS, _precision())
        return dx, sums.sum(0), None


def _sizes(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _programs(x: Tensor) -> int:
    return triton.cdiv(_sizes(x)[0], ROWS)


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
