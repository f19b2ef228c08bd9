"""Every 5x5 patch of an image written out as a row, on a GPU: a convolution becomes a product.

Rows are 80 long, for the 75 values of three channels: products of tensor cores want multiples of
eight. Imported only where there is a GPU and Triton.
"""
# Kernels are no Python: mypy can make nothing of them.
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # pixels per program
SIDE = 5
MULTIPLE = 8


@triton.jit
def _write(
    x_at,
    out_at,
    num_rows,
    height,
    width,
    image_stride,
    channel_stride,
    line_stride,
    column_stride,
    num_values: tl.constexpr,
    length: tl.constexpr,
    power: tl.constexpr,
    side: tl.constexpr,
    rows: tl.constexpr,
):
    row, place = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, power)
    column = row % width
    line = (row // width) % height
    image = row // (width * height)
    channel = place // (side * side)
    at_line = line[:, None] + ((place // side) % side)[None, :] - side // 2
    at_column = column[:, None] + (place % side)[None, :] - side // 2
    there = (row < num_rows)[:, None] & (place < num_values)[None, :]
    there = there & (at_line >= 0) & (at_line < height) & (at_column >= 0) & (at_column < width)
    at = image[:, None] * image_stride + channel[None, :] * channel_stride
    at += at_line * line_stride + at_column * column_stride
    values = tl.load(x_at + at, mask=there, other=0.0)
    wanted = (row < num_rows)[:, None] & (place < length)[None, :]
    tl.store(out_at + row[:, None] * length + place[None, :], values, mask=wanted)


def patches(x: Tensor) -> Tensor:
    """Return a row for each pixel: its surroundings, channel by channel, and zeros at the end."""
    batch, channels, height, width = x.shape
    num_values = channels * SIDE * SIDE
    length = triton.cdiv(num_values, MULTIPLE) * MULTIPLE
    num_rows = batch * height * width
    out = torch.empty(num_rows, length, dtype=x.dtype, device=x.device)
    power = triton.next_power_of_2(length)
    sizes = (num_rows, height, width, *x.stride(), num_values, length, power, SIDE, ROWS)
    _write[(triton.cdiv(num_rows, ROWS),)](x, out, *sizes)
    return out
