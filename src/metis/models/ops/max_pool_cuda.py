"""The CIFAR CNN's pooling on a GPU as two kernels, one each way.

torch's own keep eight bytes to remember which of nine values was the largest, and scatter gradients
with atomics; these keep one byte and gather. Imported only where there is a GPU and Triton.
"""
# Kernels are no Python: mypy can make nothing of them.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # pixels per program


@triton.jit
def _forward(
    x_at,
    y_at,
    place_at,
    num_rows,
    height,
    width,
    out_height,
    out_width,
    channels: tl.constexpr,
    rows: tl.constexpr,
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, channels)
    inside = row < num_rows
    column = row % out_width
    line = (row // out_width) % out_height
    image = row // (out_width * out_height)
    best = tl.full((rows, channels), float("-inf"), tl.float32)
    place = tl.zeros((rows, channels), tl.int32)
    for k in tl.static_range(9):
        at_line, at_column = 2 * line + k // 3, 2 * column + k % 3
        there = inside & (at_line < height) & (at_column < width)
        pixel = (image * height + at_line) * width + at_column
        at = pixel[:, None] * channels + channel[None, :]
        x = tl.load(x_at + at, mask=there[:, None], other=float("-inf")).to(tl.float32)
        # A value that is no number is the largest, as torch has it.
        larger = (x > best) | (x != x)
        best = tl.where(larger, x, best)
        place = tl.where(larger, k, place)
    at = row[:, None] * channels + channel[None, :]
    tl.store(y_at + at, best, mask=inside[:, None])
    tl.store(place_at + at, place.to(tl.int8), mask=inside[:, None])


@triton.jit
def _backward(
    dy_at,
    place_at,
    dx_at,
    num_rows,
    height,
    width,
    out_height,
    out_width,
    channels: tl.constexpr,
    rows: tl.constexpr,
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, channels)
    inside = row < num_rows
    column = row % width
    line = (row // width) % height
    image = row // (width * height)
    total = tl.zeros((rows, channels), tl.float32)
    # A pixel is in at most two windows each way: the one it begins, or the one before that.
    for k in tl.static_range(4):
        at_line, at_column = line // 2 - k // 2, column // 2 - k % 2
        down, right = line - 2 * at_line, column - 2 * at_column
        there = inside & (at_line >= 0) & (at_column >= 0) & (down <= 2) & (right <= 2)
        there = there & (at_line < out_height) & (at_column < out_width)
        pixel = (image * out_height + at_line) * out_width + at_column
        at = pixel[:, None] * channels + channel[None, :]
        place = tl.load(place_at + at, mask=there[:, None], other=-1).to(tl.int32)
        dy = tl.load(dy_at + at, mask=there[:, None], other=0.0).to(tl.float32)
        total += tl.where(place == (3 * down + right)[:, None], dy, 0.0)
    tl.store(dx_at + row[:, None] * channels + channel[None, :], total, mask=inside[:, None])


class FusedPool(torch.autograd.Function):
    """Maximum over 3x3 windows, every second one each way, rounded up at the far edge."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        batch, channels, height, width = x.shape
        out = (-(-(height - 3) // 2) + 1, -(-(width - 3) // 2) + 1)
        shape = (batch, channels, *out)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        place = torch.empty_like(y, dtype=torch.int8)
        rows = batch * out[0] * out[1]
        grid = (triton.cdiv(rows, ROWS),)
        _forward[grid](x, y, place, rows, height, width, *out, channels, ROWS)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        batch, channels, height, width = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty(
            ctx.shape, dtype=dy.dtype, device=dy.device, memory_format=torch.channels_last
        )
        rows = batch * height * width
        grid = (triton.cdiv(rows, ROWS),)
        sizes = (height, width, *place.shape[2:])
        _backward[grid](dy, place, dx, rows, *sizes, channels, ROWS)
        return dx
