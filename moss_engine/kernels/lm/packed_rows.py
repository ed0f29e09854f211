"""Matrix times several rows on tensor cores for weights of 8 and 4 bits: each tile of weights is
widened to bfloat16 on its way, in which its values are exact, and scales multiply float32 sums.

Weights by plain loads: for compute capability 8.0 and later. Rows come by the tensor memory
accelerator where there is one and tiles are large. On compute capability 9 `IntegerRows` is faster
with weights of 8 bits, and up to 192 rows with those of 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from moss_engine.kernels.launch import (
    interpreted,
    next_power_of_2,
    options,
    shared_memory_bytes,
    wait_for_previous,
)
from moss_engine.kernels.lm.few_rows import LINE_BYTES, add_up_splits, read_ahead
from moss_engine.kernels.lm.packed import widen_4, widen_8

_SMALLEST_DOT = 16
# Products with fewer outputs than this are split along their columns over at most so many programs.
_FEW_OUTPUTS, _SPLITS = 8192, 4
_MOST_FLOAT32_ROWS = 64  # of a tile


class RowsTuning(NamedTuple):
    """Outputs and rows of a tile, warps, pipeline stages, whether scales of groups multiply weights
    rather than sums, which leaves registers for larger tiles, and whether rows come by the tensor
    memory accelerator."""

    outputs: int
    rows: int
    warps: int
    stages: int
    scaled: bool = False
    descriptors: bool = False


_AHEAD = 2  # cache lines of each row of weights
_LARGE_MEMORY = 220_000  # bytes of shared memory that an H100 has


def _is_large() -> bool:
    return shared_memory_bytes() >= _LARGE_MEMORY


def most_packed_rows() -> int:
    """Rows up to which these kernels are faster than the library with a widened copy."""
    return 512 if _is_large() else 64


def rows_tuning(rows: int, num_outputs: int, k: int, bits: int, *, gated: bool,
                size: int = 2) -> RowsTuning:
    """For so many rows, whose values have `size` bytes, and a weight's outputs, inputs and bits, as
    measured in whole steps on an H200, within this device's shared memory; more than 64 rows of
    float32 go in several tiles."""
    rows = min(rows, _MOST_FLOAT32_ROWS) if size > 2 else rows
    padded = max(_SMALLEST_DOT, next_power_of_2(rows))
    # of 8 bits Triton 3.6 makes tiles of 64 outputs and of 256 rows whose sums are wrong now and
    # then on an H100, where those go to `IntegerRows` unless their sizes are odd
    if rows > 128 and bits == 4 and _is_large():
        return RowsTuning(128, 256, 8, 3, scaled=True, descriptors=True)
    if rows > 64:
        return RowsTuning(128, 128, 8, 2, scaled=True)
    if bits == 8 and _is_large():
        return RowsTuning(32, padded, 4, 3)
    if rows > 32:
        stages = 3 if bits == 4 and num_outputs > k else 4
        return RowsTuning(128, 64, 4, 3) if gated else RowsTuning(64, 64, 4, stages, scaled=True)
    is_small = bits == 4 and rows <= 16 and not gated and num_outputs <= _FEW_OUTPUTS
    return RowsTuning(32 if is_small else 64, padded, 4, 4)


@triton.jit
def _load_inputs(x_tiles, x_rows, first_row, column, COLUMNS: tl.constexpr, BITS: tl.constexpr,
                 TMA: tl.constexpr):
    """COLUMNS columns of a program's rows in as many parts as a byte of weights has values: [N,
    columns] each."""
    PART: tl.constexpr = COLUMNS * BITS // 8
    xs = ()
    for part in tl.static_range(8 // BITS):
        at = column + part * PART
        if TMA:
            xs += (x_tiles.load([first_row, at]),)
        else:
            xs += (tl.load(x_rows[:, None] + (at + tl.arange(0, PART))[None, :]),)
    return xs


@triton.jit
def _load_weights(weight_rows, scale, column, dtype: tl.constexpr, COLUMNS: tl.constexpr,
                  BITS: tl.constexpr, SCALED: tl.constexpr, ASM: tl.constexpr):
    """The weights that meet `_load_inputs`, widened; those of one group of 4 bits are multiplied by
    `scale` where SCALED."""
    count = tl.arange(0, COLUMNS * BITS // 8)
    values = tl.load(weight_rows[:, None] + (column * BITS // 8 + count)[None, :])
    if BITS == 8:
        wide = (widen_8(values, dtype, ASM),)
    else:
        low, high = widen_4(values, dtype, ASM)
        if SCALED:
            low *= scale.to(dtype)[:, None]
            high *= scale.to(dtype)[:, None]
        wide = (low, high)
    return wide


@triton.jit
def _add_columns(acc, weights, xs, scale, K: tl.constexpr, GROUP: tl.constexpr,
                 SCALED: tl.constexpr):
    """acc [R, N] plus the products of some columns, times the scale [R] of their group, if any."""
    part = acc if GROUP == K or SCALED else tl.zeros(acc.shape, tl.float32)
    for i in tl.static_range(len(xs)):
        part = tl.dot(weights[i], xs[i].T, part, input_precision="ieee")
    return part if GROUP == K or SCALED else acc + scale[:, None] * part


@triton.jit
def _load_scales(scale_rows, column, K: tl.constexpr, GROUP: tl.constexpr):
    """The scales [R] of the group that `column`, or else the last, is in."""
    return tl.load(scale_rows + tl.minimum(column, K - GROUP) // GROUP).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def _packed_rows_kernel(x_tiles, x_ptr, weight_ptr, scale_ptr, residual_ptr, out_ptr, part_ptr,
                        counter_ptr, rows, num_outputs, weight_lane, scale_lane, K: tl.constexpr,
                        GROUP: tl.constexpr, BITS: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
                        COLUMNS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
                        AHEAD: tl.constexpr, SCALED: tl.constexpr, GLU: tl.constexpr,
                        RESIDUAL: tl.constexpr, ASM: tl.constexpr, TMA: tl.constexpr,
                        OVERLAP: tl.constexpr):
    """R outputs of N rows a program, over one of SPLITS parts of the columns.

    Before the previous kernel has ended, the first AHEAD cache lines of each row of weights are
    read into the L2 cache. The scales of a group are loaded one tile before their use. Programs of
    the same outputs are neighbours. What a tile holds past a lane's last row or output is a copy of
    another, and never stored.
    """
    BYTES: tl.constexpr = K * BITS // 8
    GROUPS: tl.constexpr = K // GROUP
    lane, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    outputs = tl.program_id(1) * R + tl.arange(0, R)
    valid = outputs < num_outputs
    existing = tl.where(valid, outputs, 0).to(tl.int64)
    n = tl.program_id(0) * N + tl.arange(0, N)
    first_row = lane * rows + tl.program_id(0) * N
    x_rows = x_ptr + (lane * rows + tl.minimum(n, rows - 1)).to(tl.int64) * K
    weight_rows = weight_ptr + lane.to(tl.int64) * weight_lane + existing * BYTES
    scale_rows = scale_ptr + lane.to(tl.int64) * scale_lane + existing * GROUPS
    up = num_outputs.to(tl.int64)
    begin = split * (K // SPLITS)
    if OVERLAP:
        lines = begin * BITS // 8 + tl.arange(0, AHEAD) * LINE_BYTES
        first_lines = weight_rows[:, None] + tl.minimum(lines, BYTES - 1)[None, :]
        read_ahead(first_lines)
        if GLU:
            read_ahead(first_lines + up * BYTES)
    scale, scale_up = _load_scales(scale_rows, begin, K, GROUP), 1.0
    if GLU:
        scale_up = _load_scales(scale_rows + up * GROUPS, begin, K, GROUP)
    wait_for_previous(OVERLAP)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    acc = tl.zeros([R, N], tl.float32)
    acc_up = tl.zeros([R, N], tl.float32)
    for column in tl.range(begin, begin + K // SPLITS, COLUMNS, num_stages=STAGES):
        then, then_up = scale, scale_up
        if GROUP < K:  # tiles of scaled weights have no registers for more
            later = column + (0 if SCALED else COLUMNS)
            then = _load_scales(scale_rows, later, K, GROUP)
            if GLU:
                then_up = _load_scales(scale_rows + up * GROUPS, later, K, GROUP)
        if SCALED:
            scale, scale_up = then, then_up
        weights = _load_weights(weight_rows, scale, column, dtype, COLUMNS, BITS, SCALED, ASM)
        xs = _load_inputs(x_tiles, x_rows, first_row, column, COLUMNS, BITS, TMA)
        acc = _add_columns(acc, weights, xs, scale, K, GROUP, SCALED)
        if GLU:
            weights = _load_weights(weight_rows + up * BYTES, scale_up, column, dtype, COLUMNS,
                                    BITS, SCALED, ASM)
            acc_up = _add_columns(acc_up, weights, xs, scale_up, K, GROUP, SCALED)
        scale, scale_up = then, then_up
    is_last = True
    if SPLITS > 1:
        tile = (lane * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(
            0) + tl.program_id(0)
        is_last, added = add_up_splits((acc,), part_ptr, counter_ptr, tile, split, SPLITS)
        acc = added[0]
    if is_last:
        if GROUP == K:
            acc *= scale[:, None]
            if GLU:
                acc_up *= scale_up[:, None]
        if GLU:
            acc = acc / (1.0 + tl.exp(-acc)) * acc_up
        at = (lane * rows + n).to(tl.int64)[None, :] * num_outputs + outputs[:, None]
        inside = valid[:, None] & (n < rows)[None, :]
        if RESIDUAL:
            acc += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _widen_kernel(weight_ptr, scale_ptr, out_ptr, scale_row, K: tl.constexpr, GROUP: tl.constexpr,
                  BITS: tl.constexpr, TILE: tl.constexpr, ASM: tl.constexpr,
                  OVERLAP: tl.constexpr):
    """TILE bytes of one row of weights, times their scales, as values of out's type.

    Weights and scales do not change, but what the last product reads is overwritten here.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    BYTES: tl.constexpr = K * BITS // 8
    inside = at < BYTES
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    values = tl.load(weight_ptr + row * BYTES + at, mask=inside, other=0)
    group = at * 8 // (BITS * GROUP)
    scale = tl.load(scale_ptr + row * scale_row + group, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    if BITS == 8:
        wide = widen_8(values, dtype, ASM).to(tl.float32) * scale
        tl.store(out_ptr + row * K + at, wide.to(dtype), mask=inside)
    else:
        low, high = widen_4(values, dtype, ASM)
        HALF: tl.constexpr = GROUP // 2
        first = out_ptr + row * K + group * GROUP + at % HALF
        tl.store(first, (low.to(tl.float32) * scale).to(dtype), mask=inside)
        tl.store(first + HALF, (high.to(tl.float32) * scale).to(dtype), mask=inside)


def widen(weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """Packed weights [outputs, bytes] times float16 scales [outputs, groups] -> out [outputs, K]:
    more than `most_packed_rows` are sooner multiplied with these by the library, but by gates."""
    outputs, k = out.shape
    bits = 8 if weight.dtype is torch.int8 else 4
    tile = min(2048, next_power_of_2(weight.shape[1]))
    _widen_kernel[(outputs, triton.cdiv(weight.shape[1], tile))](
        weight, scale, out, scale.stride(0), K=k, GROUP=k // scale.shape[1], BITS=bits, TILE=tile,
        ASM=not interpreted() and out.dtype is torch.bfloat16, **options(4))


class PackedRows:
    """Products of rows with packed weights of up to `lanes` lanes; owns split-sum scratch."""

    def __init__(self, lanes: int, device: torch.device):
        self._most_sums = _SPLITS * _FEW_OUTPUTS * (128 if _is_large() else 64)  # of a lane
        self._parts = torch.empty(lanes * self._most_sums, device=device)
        most_tiles = lanes * self._most_sums // (2 * 32 * _SMALLEST_DOT)
        self._counters = torch.zeros(most_tiles, dtype=torch.int32, device=device)

    def __call__(self, x: Tensor, weight: Tensor, scale: Tensor, out: Tensor, *,
                 residual: Tensor | None = None, gated: bool = False) -> None:
        """out [lanes, rows, outputs] = x [lanes, rows, K] times packed weights, as in
        `matvec`.

        residual, of out's shape, is added, and may be `out`. gated: gates, then ups, and out is
        silu(gate) * up.
        """
        lanes, rows, k = x.shape
        num_outputs, bits = out.shape[2], 8 if weight.dtype is torch.int8 else 4
        group = k // scale.shape[2]
        assert weight.shape == (lanes, num_outputs * (1 + gated), k * bits // 8)
        assert weight.stride(2) == 1 and weight.stride(1) == weight.shape[2], "no rows of weights"
        assert x.is_contiguous() and out.is_contiguous(), "tensors must be contiguous"
        tuning = rows_tuning(rows, num_outputs, k, bits, gated=gated, size=x.element_size())
        columns = group if group < k else min(128, k & -k)
        tile = tuning.outputs // 2 if gated and tuning.outputs > 16 else tuning.outputs
        row_tiles, tiles = triton.cdiv(rows, tuning.rows), triton.cdiv(num_outputs, tile)
        sums = row_tiles * tuning.rows * tiles * tile
        splits = 1
        if not gated and num_outputs < _FEW_OUTPUTS and k % (_SPLITS * columns) == 0:
            splits = next((count for count in (_SPLITS, 2) if count * sums <= self._most_sums), 1)
        grid = (row_tiles, tiles, lanes * splits)
        part = columns * bits // 8
        is_described = tuning.descriptors and part % 8 == 0  # 16 bytes
        x_tiles = TensorDescriptor(x, [lanes * rows, k], [k, 1],
                                   [tuning.rows, part]) if is_described else x
        _packed_rows_kernel[grid](
            x_tiles, x, weight, scale, out if residual is None else residual, out, self._parts,
            self._counters, rows, num_outputs, weight.stride(0), scale.stride(0), K=k, GROUP=group,
            BITS=bits, R=tile, N=tuning.rows, COLUMNS=columns, SPLITS=splits, STAGES=tuning.stages,
            AHEAD=_AHEAD, SCALED=tuning.scaled and group < k, GLU=gated,
            RESIDUAL=residual is not None, ASM=not interpreted() and x.dtype is torch.bfloat16,
            TMA=is_described, **options(tuning.warps, tuning.stages))
