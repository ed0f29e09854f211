"""Matrix times a few rows on tensor cores; the weights are read once.

All functions compute `out[lane] = epilogue(weight[lane] @ x[lane].T).T`. Tiles of weights and of
rows come by the tensor memory accelerator, several on their way at a time. Before the previous
kernel has ended, the first columns of weights are read ahead into the L2 cache: rows cannot be
loaded then, and both come by the same pipeline.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from moss_engine.kernels.launch import interpreted, next_power_of_2, options, wait_for_previous

MOST_ROWS = 64
_SMALLEST_DOT = 16
LINE_BYTES = tl.constexpr(128)
# Bytes of tiles on their way in one program: two or three programs share an SM.
_STAGED = 72 << 10
_AHEAD = 256  # columns
# Where there are few outputs, columns are split over at most this many programs.
_FEW_OUTPUTS, _SPLITS = 8192, 4
_SPLIT_OUTPUTS = 64  # of a tile


@dataclass(frozen=True)
class Tiles:
    """How one product is cut: outputs and columns of a tile, programs that share the columns,
    tiles on their way, and warps of a program."""

    outputs: int
    columns: int
    splits: int
    stages: int
    warps: int = 4


# The fastest of those tried on an H200, by bytes of a value, rows of a tile, outputs and columns,
# where that is 2 % or more; all others are cut by `_usual_tiles`.
MEASURED = {
    (2, 16, 6144, 4096): Tiles(64, 128, 4, 3),
    (2, 32, 6144, 4096): Tiles(64, 128, 4, 3),
    (2, 32, 4096, 4096): Tiles(64, 128, 2, 8),
    (2, 64, 6144, 4096): Tiles(64, 128, 1, 6),
    (2, 64, 4096, 4096): Tiles(64, 128, 1, 6),
    (2, 64, 4096, 12288): Tiles(64, 128, 2, 6),
    (1, 16, 6144, 4096): Tiles(64, 128, 4, 6),
    (1, 16, 4096, 4096): Tiles(64, 256, 4, 4, 8),
    (1, 16, 12288, 4096): Tiles(64, 256, 1, 3),
    (1, 16, 4096, 12288): Tiles(64, 256, 4, 5),
    (1, 32, 6144, 4096): Tiles(64, 256, 4, 3),
    (1, 32, 4096, 4096): Tiles(64, 256, 2, 8, 8),
    (1, 32, 12288, 4096): Tiles(64, 128, 1, 5),
    (1, 32, 4096, 12288): Tiles(64, 256, 2, 8),
    (1, 64, 12288, 4096): Tiles(64, 128, 1, 4),
    (1, 64, 4096, 12288): Tiles(64, 256, 2, 6),
}


def tiles_of(size: int, rows: int, outputs: int, k: int, *, gated: bool) -> Tiles:
    """The tiles of a product with `rows` of values of `size` bytes, `rows` a power of two."""
    found = MEASURED.get((size, rows, outputs, k))
    return found or _usual_tiles(size, rows, outputs, k, gated)


def _usual_tiles(size: int, rows: int, outputs: int, k: int, gated: bool) -> Tiles:
    """The sums of up to 64 rows fit in one program's registers with more outputs than of 128."""
    tile = 32 if gated else _SPLIT_OUTPUTS
    columns = min(256 // max(size, 2), next_power_of_2(k))
    is_split = not gated and outputs < _FEW_OUTPUTS and k % (_SPLITS * columns) == 0
    tile_bytes = (tile * (1 + gated) + rows) * columns * size
    return Tiles(tile, columns, _SPLITS if is_split else 1, max(2, _STAGED // tile_bytes) + 1)


@functools.cache
def has_few_rows() -> bool:
    """Whether the device has the shared memory and tensor cores (9.0) that these kernels need."""
    return interpreted() or torch.cuda.get_device_capability()[0] == 9


@triton.jit
def read_ahead(lines):
    """Cache lines of global memory into L2."""
    tl.inline_asm_elementwise("{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [lines],
                              dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def add_up_splits(sums, part_ptr, counter_ptr, tile, split, SPLITS: tl.constexpr):
    """Store this split's sums, a tuple of [R, N]; in the program that arrives last return (True,
    those of all splits)."""
    R: tl.constexpr = sums[0].shape[0]
    N: tl.constexpr = sums[0].shape[1]
    COUNT: tl.constexpr = len(sums)
    parts = part_ptr + tile.to(tl.int64) * (COUNT * SPLITS * R * N) + tl.arange(
        0, R)[:, None] * N + tl.arange(0, N)[None, :]
    for i in tl.static_range(COUNT):
        tl.store(parts + (i * SPLITS + split) * (R * N), sums[i])
    tl.debug_barrier()
    is_last = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if is_last:
        tl.store(counter_ptr + tile, 0)
        added = ()
        for i in tl.static_range(COUNT):
            acc = tl.zeros([R, N], tl.float32)
            for part in tl.static_range(SPLITS):
                acc += tl.load(parts + (i * SPLITS + part) * (R * N), cache_modifier=".cg")
            added += (acc,)
        sums = added
    return is_last, sums


@triton.jit
def _store_sums(acc, acc_up, row_scale_ptr, scale_ptr, residual_ptr, out_ptr, lane, outputs, rows,
                num_outputs, SCALED: tl.constexpr, GLU: tl.constexpr, RESIDUAL: tl.constexpr):
    """One tile of sums [R, N], scaled, gated and added to what `_few_rows_kernel` says."""
    n = tl.arange(0, acc.shape[1])
    valid = outputs < num_outputs
    if SCALED:
        row_scale = tl.load(row_scale_ptr + lane * rows + n, mask=n < rows, other=0.0)
        scales = scale_ptr + lane * num_outputs * (2 if GLU else 1) + outputs
        acc *= tl.load(scales, mask=valid, other=0.0)[:, None] * row_scale[None, :]
        if GLU:
            acc_up *= tl.load(scales + num_outputs, mask=valid,
                              other=0.0)[:, None] * row_scale[None, :]
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    at = (lane * rows + n).to(tl.int64)[None, :] * num_outputs + outputs[:, None]
    inside = valid[:, None] & (n < rows)[None, :]
    if RESIDUAL:
        acc += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _few_rows_kernel(x_tiles, weight_tiles, weight_ptr, row_scale_ptr, scale_ptr, residual_ptr,
                     out_ptr, part_ptr, counter_ptr, rows, num_outputs, K: tl.constexpr,
                     R: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
                     SPLITS: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
                     SCALED: tl.constexpr, GLU: tl.constexpr, RESIDUAL: tl.constexpr,
                     OVERLAP: tl.constexpr):
    """R outputs of up to N rows a program, over one of SPLITS parts of the columns.

    x_tiles describes x as [lanes * rows, K], weight_tiles the weights as [lanes * outputs, K];
    weight_ptr is the same. SCALED: row_scale [lanes * rows] and scale [lanes, outputs] multiply
    the sums. What a tile holds past a lane's last row or output is never stored.
    """
    lane, split = tl.program_id(1), tl.program_id(2)
    first = tl.program_id(0) * R
    outputs = first + tl.arange(0, R)
    valid = outputs < num_outputs
    first_weight = lane * num_outputs * (2 if GLU else 1) + first
    begin = split * (K // SPLITS)
    if OVERLAP:
        PER_LINE: tl.constexpr = LINE_BYTES // (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
        lines = tl.minimum(begin + tl.arange(0, AHEAD // PER_LINE) * PER_LINE, K - 1)
        existing = first_weight + tl.where(valid, tl.arange(0, R), 0)
        weight_rows = weight_ptr + existing.to(tl.int64)[:, None] * K + lines[None, :]
        read_ahead(weight_rows)
        if GLU:
            read_ahead(weight_rows + num_outputs.to(tl.int64) * K)
    wait_for_previous(OVERLAP)
    acc = tl.zeros([R, N], tl.float32)
    acc_up = tl.zeros([R, N], tl.float32)
    for column in tl.range(begin, begin + tl.cdiv(K, SPLITS), COLUMNS, num_stages=STAGES):
        weights = weight_tiles.load([first_weight, column])
        if GLU:
            ups = weight_tiles.load([first_weight + num_outputs, column])
        x = x_tiles.load([lane * rows, column])
        acc = tl.dot(weights, x.T, acc, input_precision="ieee")
        if GLU:
            acc_up = tl.dot(ups, x.T, acc_up, input_precision="ieee")
    is_last = True
    if SPLITS > 1:
        tile = lane * tl.num_programs(0) + tl.program_id(0)
        is_last, added = add_up_splits((acc,), part_ptr, counter_ptr, tile, split, SPLITS)
        acc = added[0]
    if is_last:
        _store_sums(acc, acc_up, row_scale_ptr, scale_ptr, residual_ptr, out_ptr, lane, outputs,
                    rows, num_outputs, SCALED, GLU, RESIDUAL)


class FewRows:
    """Products of up to MOST_ROWS rows with up to `lanes` lanes; owns split-sum scratch."""

    def __init__(self, lanes: int, device: torch.device):
        most_outputs = lanes * _FEW_OUTPUTS
        self._parts = torch.empty(_SPLITS * most_outputs * MOST_ROWS, device=device)
        tiles = most_outputs // _SPLIT_OUTPUTS
        self._counters = torch.zeros(tiles, dtype=torch.int32, device=device)

    def __call__(self, x: Tensor, weight: Tensor, out: Tensor, *, residual: Tensor | None = None,
                 gated: bool = False, scales: tuple[Tensor, Tensor] | None = None) -> None:
        """out [lanes, rows, outputs] = x [lanes, rows, K] times weight [lanes, outputs, K].

        scales: float32 [lanes * rows] of float8 rows and [lanes, outputs] of float8 weights.
        residual, of out's shape, is added, and may be `out`. gated: the weight is [lanes, 2 *
        outputs, K], gates then ups, and out is silu(gate) * up.
        """
        lanes, rows, k = x.shape
        num_outputs = out.shape[2]
        assert weight.shape == (lanes, num_outputs *
                                (1 + gated), k) and rows <= MOST_ROWS, "shapes do not fit"
        assert x.is_contiguous() and weight.is_contiguous() and out.is_contiguous(
        ), "tensors must be contiguous"
        padded_rows = max(_SMALLEST_DOT, next_power_of_2(rows))
        tiles = tiles_of(x.element_size(), padded_rows, num_outputs, k, gated=gated)
        row_scale, scale = (out, out) if scales is None else scales
        _few_rows_kernel[(triton.cdiv(num_outputs, tiles.outputs), lanes, tiles.splits)](
            TensorDescriptor(x, [lanes * rows, k], [k, 1], [padded_rows, tiles.columns]),
            TensorDescriptor(weight, [lanes * weight.shape[1], k], [k, 1],
                             [tiles.outputs, tiles.columns]),
            weight, row_scale, scale, out if residual is None else residual, out, self._parts,
            self._counters, rows, num_outputs, K=k, R=tiles.outputs, N=padded_rows,
            COLUMNS=tiles.columns, SPLITS=tiles.splits, STAGES=tiles.stages, AHEAD=_AHEAD,
            SCALED=scales is not None, GLU=gated, RESIDUAL=residual is not None,
            **options(tiles.warps, tiles.stages))
