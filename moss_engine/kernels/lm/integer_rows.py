"""Matrix times several rows on tensor cores for weights of 8 and 4 bits, as products of bytes.

All functions compute `out[lane] = epilogue(weight[lane] @ prologue(x[lane]).T).T`. Rows become
integers of 16 bits, in steps of 1 / 32639 of each one's largest value, and two bytes each, of which
the lower has a sign, too: so nothing is widened to 16 bits. Weights of 8 bits go to the tensor
cores as they are; of those of 4, three instructions make eight bytes, each sixteen times its value.
Sums are exact, over all inputs of 8 bits and over each group of 4. Tiles of both come by the tensor
memory accelerator.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from moss_engine.kernels.launch import interpreted, next_power_of_2, options, wait_for_previous
from moss_engine.kernels.lm.few_rows import LINE_BYTES, add_up_splits, read_ahead
from moss_engine.kernels.lm.packed import WHOLE_BITS, larger, round_to_bits, sum_and_larger

_MOST_STEPS = 32639  # 127 * 256 + 127
_SMALLEST_GROUP = 64  # of which tensor cores multiply a half at a time
# Sums of each group cost time: with more rows weights of 4 bits are sooner widened.
_MOST_GROUPED_ROWS = 192
_FEW_OUTPUTS = 8192
_WARPS = 4
_AHEAD_BYTES = 256  # of each row of weights
# Of a lane whose columns are split: sums, and tiles of at least 32 outputs and 8 rows.
_MOST_SUMS, _MOST_TILES = 1 << 21, 1 << 12


class Tiles(NamedTuple):
    """How one product is cut: outputs of a tile, gates and ups counted apart, and its columns,
    programs that share the columns, and tiles on their way."""

    outputs: int
    columns: int
    splits: int
    stages: int


# The fastest of those tried on an H200 by bits and kind of product, each up to a number of rows:
# of gates or many outputs, of more inputs than outputs, and of few outputs.
_TILES = {
    (4, "wide"): {8: Tiles(128, 256, 2, 4), 16: Tiles(128, 256, 2, 3), 32: Tiles(128, 256, 1, 3),
                  512: Tiles(128, 128, 1, 4)},
    (4, "long"): {8: Tiles(64, 512, 8, 2), 16: Tiles(64, 512, 4, 3), 32: Tiles(64, 256, 4, 4),
                  64: Tiles(64, 128, 4, 4), 512: Tiles(64, 128, 2, 4)},
    (4, "few"): {8: Tiles(64, 512, 8, 2), 16: Tiles(64, 512, 4, 2), 32: Tiles(64, 256, 4, 3),
                 64: Tiles(64, 128, 4, 3), 512: Tiles(64, 128, 2, 3)},
    (8, "wide"): {8: Tiles(64, 256, 1, 4), 16: Tiles(128, 256, 1, 4), 32: Tiles(64, 256, 1, 3),
                  512: Tiles(128, 128, 1, 3)},
    (8, "long"): {16: Tiles(64, 256, 4, 4), 32: Tiles(64, 256, 2, 4), 64: Tiles(64, 128, 4, 4),
                  128: Tiles(64, 128, 2, 4), 256: Tiles(128, 128, 2, 3),
                  512: Tiles(128, 128, 1, 3)},
    (8, "few"): {16: Tiles(64, 256, 4, 3), 32: Tiles(64, 256, 2, 3), 64: Tiles(64, 128, 2, 4),
                 128: Tiles(64, 128, 1, 4), 512: Tiles(128, 128, 1, 3)},
}
_MOST_TILE_ROWS = 64


def tiles_of(rows: int, outputs: int, k: int, bits: int, group: int, *, gated: bool) -> Tiles:
    """The tiles of a product; its weights of 4 bits have scales for `group` inputs."""
    kind = "wide" if gated or outputs >= _FEW_OUTPUTS else "long" if k > outputs else "few"
    tiles = next((tiles for most, tiles in _TILES[bits, kind].items() if rows <= most),
                 Tiles(128, 128, 1, 3))
    columns = max(group if bits == 4 else 32, min(tiles.columns, next_power_of_2(k)))
    padded = triton.cdiv(rows, _MOST_TILE_ROWS) * _MOST_TILE_ROWS if rows > 32 else 32
    sums = triton.cdiv(outputs, 64) * 64 * (1 + gated) * padded * tiles.splits
    fits = k % (tiles.splits * columns) == 0 and sums <= _MOST_SUMS
    return tiles._replace(columns=columns, splits=tiles.splits if fits else 1)


# Lower and upper halves of four bytes, each sixteen times its value less 8.
_BYTES_4 = tl.constexpr("""
{
    .reg .b32 a;
    shl.b32 a, $2, 4;
    lop3.b32 $0, a, 0x80808080, 0xf0f0f0f0, 0x28;
    lop3.b32 $1, $2, 0x80808080, 0xf0f0f0f0, 0x28;
}
""")


@triton.jit
def _bytes_4(values, ASM: tl.constexpr):
    """uint8 of two values of 4 bits each -> int8 of the lower and of the upper ones, sixteen times
    each."""
    if ASM:
        return tl.inline_asm_elementwise(_BYTES_4, "=r,=r,r", [values], dtype=(tl.int8, tl.int8),
                                         is_pure=True, pack=4)
    low = (((values & 15).to(tl.int32) - 8) * 16).to(tl.int8)
    high = (((values >> 4).to(tl.int32) - 8) * 16).to(tl.int8)
    return low, high


@triton.jit(do_not_specialize=["rows_per_lane"])
def _split_kernel(x_ptr, norm_ptr, values_ptr, scale_ptr, rows_per_lane, size, eps,
                  LIMIT: tl.constexpr, NORM: tl.constexpr, TILE: tl.constexpr,
                  OVERLAP: tl.constexpr):
    """One row as integers of 16 bits: its upper bytes, then its lower ones."""
    row = tl.program_id(0)
    columns = tl.arange(0, TILE)
    inside = columns < size
    if NORM:
        norm = tl.load(norm_ptr + (row // rows_per_lane) * size + columns, mask=inside,
                       other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    x = tl.load(x_ptr + row.to(tl.int64) * size + columns, mask=inside, other=0.0).to(tl.float32)
    grow = 1.0
    if NORM:
        squares = x * x
        x *= norm
        total, top = tl.reduce((squares, tl.abs(x)), 0, sum_and_larger)
        grow = tl.rsqrt(total / size + eps)
    else:
        top = tl.reduce(tl.abs(x), 0, larger)
    top = larger(top, 1e-30)
    steps = round_to_bits(x * (LIMIT / top)) - WHOLE_BITS
    upper = (steps + 128) >> 8
    place = values_ptr + 2 * row.to(tl.int64) * size + columns
    tl.store(place, upper.to(tl.int8), mask=inside)
    tl.store(place + size, (steps - upper * 256).to(tl.int8), mask=inside)
    tl.store(scale_ptr + row, grow * top / LIMIT)


@triton.jit
def _load_scales(scale_rows, column, COLUMNS: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    """The scales [R] of each group of a tile's columns, or else of the last one."""
    scales = ()
    for part in tl.static_range((COLUMNS + GROUP - 1) // GROUP):
        group = tl.minimum(column + part * GROUP, K - GROUP) // GROUP
        scales += (tl.load(scale_rows + group).to(tl.float32),)
    return scales


@triton.jit
def join_bytes(sums):
    """[R, 2 N] of the rows' upper and lower bytes in turn -> [R, N] of each."""
    return tl.split(tl.reshape(sums, [sums.shape[0], sums.shape[1] // 2, 2]))


@triton.jit
def _load_rows(x_tiles, first_byte, column, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
               BITS: tl.constexpr):
    """The bytes of a tile of rows: all columns, or of 4 bits each half of each group."""
    PART: tl.constexpr = GROUP // 2 if BITS == 4 else COLUMNS
    xs = ()
    for part in tl.static_range(COLUMNS // PART):
        xs += (x_tiles.load([first_byte, column + part * PART]),)
    return xs


@triton.jit
def _add_products(acc, weight_tiles, first_weight, xs, scales, column, COLUMNS: tl.constexpr,
                  GROUP: tl.constexpr, BITS: tl.constexpr, ASM: tl.constexpr):
    """acc plus the products of one tile of weights and rows: int32 sums of the rows' bytes, or of 4
    bits float32 sums of the rows, to which those of each group are joined and scaled."""
    if BITS == 8:
        weights = weight_tiles.load([first_weight, column])
        acc = tl.dot(weights, xs[0].T, acc, out_dtype=tl.int32)
    else:
        for part in tl.static_range(COLUMNS // GROUP):
            weights = weight_tiles.load([first_weight, (column + part * GROUP) // 2])
            low, high = _bytes_4(weights, ASM)
            sums = tl.dot(low, xs[2 * part].T, out_dtype=tl.int32)
            sums = tl.dot(high, xs[2 * part + 1].T, sums, out_dtype=tl.int32)
            upper, lower = join_bytes(sums)
            acc += scales[part][:, None] * (upper * 256 + lower).to(tl.float32)
    return acc


@triton.jit
def _finish_sums(acc, scale, BITS: tl.constexpr):
    """What `_add_products` has added up as float32 [R, N]; those of 8 bits are scaled here."""
    if BITS == 8:
        upper, lower = join_bytes(acc)
        acc = (upper.to(tl.float32) * 256.0 + lower.to(tl.float32)) * scale[:, None]
    return acc


@triton.jit
def _store_rows(acc, acc_up, row_scale_ptr, residual_ptr, out_ptr, lane, first_row, outputs, rows,
                num_outputs, BITS: tl.constexpr, GLU: tl.constexpr, RESIDUAL: tl.constexpr):
    """One tile of sums [R, N] in the rows' own scales, gated and added to what
    `_integer_rows_kernel` says."""
    n = first_row + tl.arange(0, acc.shape[1])
    row_scale = tl.load(row_scale_ptr + lane * rows + n, mask=n < rows, other=0.0)
    row_scale *= 0.0625 if BITS == 4 else 1.0
    acc *= row_scale[None, :]
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * (acc_up * row_scale[None, :])
    at = (lane * rows + n).to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    inside = (outputs < num_outputs)[:, None] & (n < rows)[None, :]
    if RESIDUAL:
        acc += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _integer_rows_kernel(x_tiles, weight_tiles, weight_ptr, row_scale_ptr, scale_ptr, residual_ptr,
                         out_ptr, part_ptr, counter_ptr, rows, num_outputs, weight_lane, scale_lane,
                         K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
                         R: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
                         SPLITS: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
                         GLU: tl.constexpr, RESIDUAL: tl.constexpr, ASM: tl.constexpr,
                         OVERLAP: tl.constexpr):
    """R outputs of N rows a program, over one of SPLITS parts of the columns.

    x_tiles describes the rows' bytes as [lanes * 2 * rows, K], weight_tiles the weights as [rows of
    weights, bytes], of which a lane has weight_lane; weight_ptr is the same. What a tile holds past
    a lane's last row or output is never stored.
    """
    BYTES: tl.constexpr = K * BITS // 8
    GROUPS: tl.constexpr = K // GROUP
    lane, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    first = tl.program_id(1) * R
    outputs = first + tl.arange(0, R)
    existing = tl.where(outputs < num_outputs, outputs, 0).to(tl.int64)
    first_weight = lane * weight_lane + first
    first_row = tl.program_id(0) * N
    scale_rows = scale_ptr + lane.to(tl.int64) * scale_lane + existing * GROUPS
    up = num_outputs.to(tl.int64)
    begin = split * (K // SPLITS)
    if OVERLAP:
        lines = begin * BITS // 8 + tl.arange(0, AHEAD // LINE_BYTES) * LINE_BYTES
        weight_rows = weight_ptr + (lane * weight_lane + existing) * BYTES
        first_lines = weight_rows[:, None] + tl.minimum(lines, BYTES - 1)[None, :]
        read_ahead(first_lines)
        if GLU:
            read_ahead(first_lines + up * BYTES)
    scales = _load_scales(scale_rows, begin, COLUMNS, K, GROUP)
    scales_up = scales
    if GLU:
        scales_up = _load_scales(scale_rows + up * GROUPS, begin, COLUMNS, K, GROUP)
    wait_for_previous(OVERLAP)
    first_byte = 2 * (lane * rows + first_row)
    acc = tl.zeros([R, 2 * N], tl.int32) if BITS == 8 else tl.zeros([R, N], tl.float32)
    acc_up = acc
    for column in tl.range(begin, begin + tl.cdiv(K, SPLITS), COLUMNS, num_stages=STAGES):
        then, then_up = scales, scales_up
        if BITS == 4:
            then = _load_scales(scale_rows, column + COLUMNS, COLUMNS, K, GROUP)
            if GLU:
                then_up = _load_scales(scale_rows + up * GROUPS, column + COLUMNS, COLUMNS, K,
                                       GROUP)
        xs = _load_rows(x_tiles, first_byte, column, COLUMNS, GROUP, BITS)
        acc = _add_products(acc, weight_tiles, first_weight, xs, scales, column, COLUMNS, GROUP,
                            BITS, ASM)
        if GLU:
            acc_up = _add_products(acc_up, weight_tiles, first_weight + num_outputs, xs, scales_up,
                                   column, COLUMNS, GROUP, BITS, ASM)
        scales, scales_up = then, then_up
    acc = _finish_sums(acc, scales[0], BITS)
    if GLU:
        acc_up = _finish_sums(acc_up, scales_up[0], BITS)
    is_last = True
    if SPLITS > 1:
        tile = (lane * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(
            0) + tl.program_id(0)
        sums = (acc, acc_up) if GLU else (acc,)
        is_last, sums = add_up_splits(sums, part_ptr, counter_ptr, tile, split, SPLITS)
        acc = sums[0]
        if GLU:
            acc_up = sums[1]
    if is_last:
        _store_rows(acc, acc_up, row_scale_ptr, residual_ptr, out_ptr, lane, first_row, outputs,
                    rows, num_outputs, BITS, GLU, RESIDUAL)


class IntegerRows:
    """Products of rows with packed weights of up to `lanes` lanes; owns split-sum scratch.

    Rows become bytes in `values`, int8 with place for twice the rows of all lanes.
    """

    def __init__(self, lanes: int, most_rows: int, values: Tensor):
        device = values.device
        self._values = values
        self._row_scale = torch.empty(lanes * most_rows, device=device)
        self._parts = torch.empty(lanes * _MOST_SUMS, device=device)
        self._counters = torch.zeros(lanes * _MOST_TILES, dtype=torch.int32, device=device)

    @staticmethod
    def takes(rows: int, weight: Tensor, scale: Tensor) -> bool:
        """Whether these weights can be multiplied here, and so many rows are so the fastest."""
        if weight.shape[2] % 16:
            return False
        group = 2 * weight.shape[2] // scale.shape[2]
        return weight.dtype is torch.int8 or (group >= _SMALLEST_GROUP
                                              and rows <= _MOST_GROUPED_ROWS)

    def __call__(self, x: Tensor, weight: Tensor, scale: Tensor, out: Tensor, *,
                 norm: Tensor | None = None, eps: float = 0.0, residual: Tensor | None = None,
                 gated: bool = False) -> None:
        """out [lanes, rows, outputs] = x [lanes, rows, K] times packed weights, as in `matvec`."""
        lanes, rows, k = x.shape
        num_outputs, bits = out.shape[2], 8 if weight.dtype is torch.int8 else 4
        width, group = k * bits // 8, k // scale.shape[2]
        assert weight.shape == (lanes, num_outputs * (1 + gated), width)
        assert weight.stride(2) == 1 and weight.stride(1) == width, "no rows of weights"
        assert x.is_contiguous() and out.is_contiguous(), "tensors must be contiguous"
        size = next_power_of_2(k)
        _split_kernel[(lanes * rows, )](x, x if norm is None else norm, self._values,
                                        self._row_scale, rows, k, eps, LIMIT=_MOST_STEPS,
                                        NORM=norm is not None, TILE=size,
                                        **options(16 if size > 4096 else 8))
        tiles = tiles_of(rows, num_outputs, k, bits, group, gated=gated)
        tile = tiles.outputs // 2 if gated else tiles.outputs
        tile_rows = min(_MOST_TILE_ROWS, max(8, next_power_of_2(rows)))
        bytes_at_once = tiles.columns if bits == 8 else group // 2
        lane_rows = weight.stride(0) // width
        x_tiles = TensorDescriptor(self._values, [2 * lanes * rows, k], [k, 1],
                                   [2 * tile_rows, bytes_at_once])
        weight_tiles = TensorDescriptor(weight, [(lanes - 1) * lane_rows + weight.shape[1], width],
                                        [width, 1], [tile, bytes_at_once])
        grid = (triton.cdiv(rows, tile_rows), triton.cdiv(num_outputs, tile), lanes * tiles.splits)
        _integer_rows_kernel[grid](
            x_tiles, weight_tiles, weight, self._row_scale, scale,
            out if residual is None else residual, out, self._parts, self._counters, rows,
            num_outputs, lane_rows, scale.stride(0), K=k, GROUP=group, BITS=bits, R=tile,
            N=tile_rows, COLUMNS=tiles.columns, SPLITS=tiles.splits, STAGES=tiles.stages,
            AHEAD=_AHEAD_BYTES, GLU=gated, RESIDUAL=residual is not None, ASM=not interpreted(),
            **options(_WARPS, tiles.stages))
