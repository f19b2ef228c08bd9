"""3x3 convolutions of few channels on a GPU: stride 1, "same" padding, channels last.

Written since cuDNN is made for many more channels: docs/performance.md says what they and those of
batch normalisation bring. Imported only where there is a GPU and Triton.
"""
# Kernels are no Python: mypy can make nothing of them.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from metis.models.ops.conv3x3 import SIDE

ROWS, WARPS = 128, 8  # pixels per program
BLOCKS = {16: (64, 16), 32: (32, 8)}  # pixels at a time, and how often, to add filters up


@triton.jit
def _product(a, b, total, precision: tl.constexpr):
    """total + a @ b. Rounded to tf32, where tensor cores would cut off; what is no number stays."""
    if precision == "tf32":
        a, b = _rounded(a), _rounded(b)
    return tl.dot(a, b, total, input_precision=precision)


@triton.jit
def _rounded(x):
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def _convolve(
    x_at,
    filter_at,
    y_at,
    num_rows,
    height,
    width,
    in_stride,
    out_stride,
    line_stride,
    column_stride,
    num_in: tl.constexpr,
    num_out: tl.constexpr,
    side: tl.constexpr,
    flipped: tl.constexpr,
    rows: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    into, out = tl.arange(0, num_in), tl.arange(0, num_out)
    column, line = row % width, (row // width) % height
    total = tl.zeros((rows, num_out), tl.float32)
    filters = filter_at + into[:, None] * in_stride + out[None, :] * out_stride
    for k in tl.static_range(side * side):
        down, right = k // side - side // 2, k % side - side // 2
        there = (row < num_rows) & (line + down >= 0) & (line + down < height)
        there = there & (column + right >= 0) & (column + right < width)
        at = (row + down * width + right)[:, None] * num_in + into[None, :]
        x = tl.load(x_at + at, mask=there[:, None], other=0.0)
        if flipped:
            tap = (side - 1 - k // side) * line_stride + (side - 1 - k % side) * column_stride
        else:
            tap = (k // side) * line_stride + (k % side) * column_stride
        total = _product(x, tl.load(filters + tap), total, precision)
    at = row[:, None] * num_out + out[None, :]
    tl.store(y_at + at, total, mask=(row < num_rows)[:, None])


@triton.jit
def _tap(
    total,
    x_at,
    dy,
    row,
    there,
    column,
    width,
    down,
    right,
    num_in: tl.constexpr,
    precision: tl.constexpr,
):
    there = there & (column + right >= 0) & (column + right < width)
    at = (row + down * width + right)[:, None] * num_in + tl.arange(0, num_in)[None, :]
    x = tl.load(x_at + at, mask=there[:, None], other=0.0)
    return _product(tl.trans(x), dy, total, precision)


@triton.jit
def _add_up(
    x_at,
    dy_at,
    sums_at,
    num_rows,
    height,
    width,
    num_in: tl.constexpr,
    num_out: tl.constexpr,
    rows: tl.constexpr,
    blocks: tl.constexpr,
    precision: tl.constexpr,
):
    """One of the filters' three lines, over a part of all pixels."""
    part, line_of_filter = tl.program_id(0), tl.program_id(1)
    down = line_of_filter - 1
    into, out = tl.arange(0, num_in), tl.arange(0, num_out)
    left = tl.zeros((num_in, num_out), tl.float32)
    middle, right = left, left
    for block in range(blocks):
        row = (part * blocks + block) * rows + tl.arange(0, rows)
        inside = row < num_rows
        column, line = row % width, (row // width) % height
        there = inside & (line + down >= 0) & (line + down < height)
        at = row[:, None] * num_out + out[None, :]
        dy = tl.load(dy_at + at, mask=inside[:, None], other=0.0)
        left = _tap(left, x_at, dy, row, there, column, width, down, -1, num_in, precision)
        middle = _tap(middle, x_at, dy, row, there, column, width, down, 0, num_in, precision)
        right = _tap(right, x_at, dy, row, there, column, width, down, 1, num_in, precision)
    at = sums_at + part * (num_out * 9 * num_in) + line_of_filter * (3 * num_in)
    at += into[:, None] + out[None, :] * (9 * num_in)
    tl.store(at, left)
    tl.store(at + num_in, middle)
    tl.store(at + 2 * num_in, right)


class SmallConv(torch.autograd.Function):
    """`F.conv2d(x, weight, padding=1)` for filters that `fits` says yes to."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        return _convolved(x, weight, backwards=False)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        return _convolved(dy, weight, backwards=True), _filter_gradient(x, dy)


def _convolved(x: Tensor, weight: Tensor, backwards: bool) -> Tensor:
    """Return a convolution or, backwards, the gradient of its inputs from that of its outputs."""
    into, out = (0, 1) if backwards else (1, 0)
    num_in, num_out = weight.shape[into], weight.shape[out]
    strides = weight.stride(into), weight.stride(out), weight.stride(2), weight.stride(3)
    y = x.new_empty(x.shape[0], *x.shape[2:], num_out).permute(0, 3, 1, 2)
    num_rows = y.numel() // num_out
    sizes = (num_rows, *x.shape[2:], *strides, num_in, num_out, SIDE, backwards, ROWS)
    grid = (triton.cdiv(num_rows, ROWS),)
    _convolve[grid](x, weight, y, *sizes, _precision(), num_warps=WARPS)
    return y


def _filter_gradient(x: Tensor, dy: Tensor) -> Tensor:
    (batch, num_in, height, width), num_out = x.shape, dy.shape[1]
    num_rows, (rows, blocks) = batch * height * width, BLOCKS[num_in]
    parts = triton.cdiv(num_rows, rows * blocks)
    sums = x.new_empty(parts, num_out, SIDE, SIDE, num_in)
    sizes = (num_rows, height, width, num_in, num_out, rows, blocks)
    _add_up[(parts, SIDE)](x, dy, sums, *sizes, _precision(), num_stages=1)
    return sums.sum(0).permute(0, 3, 1, 2)  # always in the same order


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
