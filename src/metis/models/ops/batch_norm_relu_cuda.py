"""Batch normalisation and ReLU in training on a GPU, channels last: two passes each way.

torch's take one more each way for ReLU, and keep what lies between. Imported only where there is a
GPU and Triton.
"""
# Kernels are no Python: mypy can make nothing of them.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = {16: 256, 32: 128, 64: 64}  # pixels at a time, by the number of channels
BLOCKS = 4  # of them for each program that adds up
MAX_PARTS = 512


@triton.jit
def _moments(
    x_at,
    means_at,
    squares_at,
    num_rows,
    width: tl.constexpr,
    rows: tl.constexpr,
    blocks: tl.constexpr,
):
    """Mean and sum of squared distances to it, of a part of all pixels."""
    part, channel = tl.program_id(0), tl.arange(0, width)
    mean, squares = tl.zeros((width,), tl.float32), tl.zeros((width,), tl.float32)
    before = 0.0
    for block in range(blocks):
        row = (part * blocks + block) * rows + tl.arange(0, rows)
        inside = (row < num_rows)[:, None]
        x = tl.load(x_at + row[:, None] * width + channel[None, :], mask=inside, other=0.0)
        here = tl.sum((row < num_rows).to(tl.float32), axis=0)
        own = tl.sum(x, axis=0) / tl.maximum(here, 1.0)
        off = tl.where(inside, x - own[None, :], 0.0)
        # Chan's way to join two parts, which loses no digits where the mean is large.
        both = tl.maximum(before + here, 1.0)
        apart = own - mean
        mean += apart * here / both
        squares += tl.sum(off * off, axis=0) + apart * apart * before * here / both
        before += here
    tl.store(means_at + part * width + channel, mean)
    tl.store(squares_at + part * width + channel, squares)


@triton.jit
def _join(
    means_at,
    squares_at,
    mean_at,
    root_at,
    running_mean_at,
    running_var_at,
    num_rows,
    num_parts,
    momentum,
    eps,
    width: tl.constexpr,
    rows_each: tl.constexpr,
    power: tl.constexpr,
):
    """All parts' moments become the batch's; running statistics move towards them."""
    part, channel = tl.arange(0, power), tl.arange(0, width)
    at, there = part[:, None] * width + channel[None, :], (part < num_parts)[:, None]
    own = tl.load(means_at + at, mask=there, other=0.0)
    squares = tl.load(squares_at + at, mask=there, other=0.0)
    count = tl.minimum(rows_each, tl.maximum(num_rows - part * rows_each, 0)).to(tl.float32)
    mean = tl.sum(own * count[:, None], axis=0) / num_rows
    off = own - mean[None, :]
    total = tl.sum(squares + off * off * count[:, None], axis=0)
    tl.store(mean_at + channel, mean)
    tl.store(root_at + channel, tl.rsqrt(total / num_rows + eps))
    old = tl.load(running_mean_at + channel)
    tl.store(running_mean_at + channel, old + momentum * (mean - old))
    old = tl.load(running_var_at + channel)
    tl.store(running_var_at + channel, old + momentum * (total / (num_rows - 1) - old))


@triton.jit
def _apply(
    x_at,
    weight_at,
    bias_at,
    mean_at,
    root_at,
    y_at,
    num_rows,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    at, inside = row[:, None] * width + channel[None, :], (row < num_rows)[:, None]
    scale = tl.load(weight_at + channel) * tl.load(root_at + channel)
    shift = tl.load(bias_at + channel) - tl.load(mean_at + channel) * scale
    y = tl.load(x_at + at, mask=inside, other=0.0) * scale[None, :] + shift[None, :]
    tl.store(y_at + at, tl.where(y < 0, 0.0, y), mask=inside)  # what is no number stays none


@triton.jit
def _sums(
    x_at,
    dy_at,
    weight_at,
    bias_at,
    mean_at,
    root_at,
    sums_at,
    num_rows,
    num_parts,
    width: tl.constexpr,
    rows: tl.constexpr,
    blocks: tl.constexpr,
):
    """Gradients of weight and bias, from a part of all pixels."""
    part, channel = tl.program_id(0), tl.arange(0, width)
    mean, root = tl.load(mean_at + channel), tl.load(root_at + channel)
    scale = tl.load(weight_at + channel) * root
    shift = tl.load(bias_at + channel) - mean * scale
    of_weight, of_bias = tl.zeros((width,), tl.float32), tl.zeros((width,), tl.float32)
    for block in range(blocks):
        row = (part * blocks + block) * rows + tl.arange(0, rows)
        at, inside = row[:, None] * width + channel[None, :], (row < num_rows)[:, None]
        x = tl.load(x_at + at, mask=inside, other=0.0)
        dy = tl.load(dy_at + at, mask=inside, other=0.0)
        dy = tl.where(x * scale[None, :] + shift[None, :] <= 0, 0.0, dy)
        of_bias += tl.sum(dy, axis=0)
        of_weight += tl.sum(dy * (x - mean[None, :]), axis=0)
    tl.store(sums_at + part * width + channel, of_weight * root)
    tl.store(sums_at + (num_parts + part) * width + channel, of_bias)


@triton.jit
def _gradient(
    x_at,
    dy_at,
    weight_at,
    bias_at,
    mean_at,
    root_at,
    totals_at,
    dx_at,
    num_rows,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    row, channel = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, width)
    at, inside = row[:, None] * width + channel[None, :], (row < num_rows)[:, None]
    mean, root = tl.load(mean_at + channel), tl.load(root_at + channel)
    scale = tl.load(weight_at + channel) * root
    shift = tl.load(bias_at + channel) - mean * scale
    along = tl.load(totals_at + channel) * root / num_rows
    base = tl.load(totals_at + width + channel) / num_rows
    x = tl.load(x_at + at, mask=inside, other=0.0)
    dy = tl.load(dy_at + at, mask=inside, other=0.0)
    dy = tl.where(x * scale[None, :] + shift[None, :] <= 0, 0.0, dy)
    dx = scale[None, :] * (dy - base[None, :] - (x - mean[None, :]) * along[None, :])
    tl.store(dx_at + at, dx, mask=inside)


class FusedBatchNorm(torch.autograd.Function):
    """relu(weight * (x - mean) / sqrt(variance + eps) + bias); moves the running statistics."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        width, rows, num_rows, blocks, parts = _sizes(x)
        own = x.new_empty(2, parts, width)
        found = x.new_empty(2, width)
        _moments[(parts,)](x, own[0], own[1], num_rows, width, rows, blocks)
        running = (running_mean, running_var, num_rows, parts, momentum, eps)
        power = triton.next_power_of_2(parts)
        _join[(1,)](own[0], own[1], found[0], found[1], *running, width, rows * blocks, power)
        y = torch.empty_like(x)
        grid = (triton.cdiv(num_rows, rows),)
        _apply[grid](x, weight, bias, found[0], found[1], y, num_rows, width, rows)
        ctx.save_for_backward(x, weight, bias, found)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, found = ctx.saved_tensors
        width, rows, num_rows, blocks, parts = _sizes(x)
        dy = dy.contiguous(memory_format=torch.channels_last)
        known = (weight, bias, found[0], found[1])
        sums = x.new_empty(2, parts, width)
        _sums[(parts,)](x, dy, *known, sums, num_rows, parts, width, rows, blocks)
        totals = sums.sum(1)  # always in the same order
        dx = torch.empty_like(x)
        grid = (triton.cdiv(num_rows, rows),)
        _gradient[grid](x, dy, *known, totals, dx, num_rows, width, rows)
        return dx, totals[0], totals[1], None, None, None, None


def _sizes(x: Tensor) -> tuple[int, int, int, int, int]:
    """Return channels, pixels at a time, pixels, blocks for each program, programs that add up."""
    width, num_rows = x.shape[1], x.numel() // x.shape[1]
    rows, blocks = ROWS[width], BLOCKS
    while triton.cdiv(num_rows, rows * blocks) > MAX_PARTS:
        blocks *= 2
    return width, rows, num_rows, blocks, triton.cdiv(num_rows, rows * blocks)
