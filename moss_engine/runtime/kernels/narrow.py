"""Matrix products with few rows, in tiles for the tensor cores: more rows than `matvec` takes, too few to be bound by
arithmetic. Weights may be float8 with one float32 scale per output; they are widened to the rows' number format.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from moss_engine.runtime.kernels.launch import options, wait_for_previous

MAX_ROWS = 64


@triton.jit(do_not_specialize=["num_rows"])
def _narrow_kernel(x_ptr, weight_ptr, scale_ptr, residual_ptr, out_ptr, num_rows, num_outputs, K: tl.constexpr,
                   M: tl.constexpr, N: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr, GLU: tl.constexpr,
                   RESIDUAL: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr):
    """out[lane, :, tile of N] = epilogue(x[lane] @ weight[lane, tile]^T)."""
    lane = tl.program_id(1)
    outputs, rows, columns = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, M), tl.arange(0, CHUNK)
    FACTOR: tl.constexpr = 2 if GLU else 1
    EVEN: tl.constexpr = K % CHUNK == 0
    lane_outputs = lane.to(tl.int64) * num_outputs * FACTOR
    valid, inside = outputs < num_outputs, rows < num_rows
    weight_at = weight_ptr + (lane_outputs + outputs)[None, :] * K + columns[:, None]
    up_at = weight_at + num_outputs.to(tl.int64) * K
    x_at = x_ptr + (lane * num_rows + rows)[:, None] * K + columns[None, :]
    acc = tl.zeros([M, N], tl.float32)
    acc_up = tl.zeros([M, N], tl.float32)
    wait_for_previous(OVERLAP)
    for start in tl.range(0, K, CHUNK, num_stages=STAGES):
        if EVEN:
            x_mask, weight_mask = inside[:, None], valid[None, :]
        else:
            x_mask = inside[:, None] & (start + columns < K)[None, :]
            weight_mask = valid[None, :] & (start + columns < K)[:, None]
        x = tl.load(x_at + start, mask=x_mask, other=0.0)
        weights = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        acc = tl.dot(x, weights.to(x.dtype), acc, input_precision="ieee")
        if GLU:
            ups = tl.load(up_at + start, mask=weight_mask, other=0.0)
            acc_up = tl.dot(x, ups.to(x.dtype), acc_up, input_precision="ieee")
    if SCALED:
        acc *= tl.load(scale_ptr + lane_outputs + outputs, mask=valid, other=0.0)[None, :]
        if GLU:
            acc_up *= tl.load(scale_ptr + lane_outputs + num_outputs + outputs, mask=valid, other=0.0)[None, :]
    if GLU:
        acc = acc / (1.0 + tl.exp(-acc)) * acc_up
    at = (lane * num_rows + rows).to(tl.int64)[:, None] * num_outputs + outputs[None, :]
    mask = inside[:, None] & valid[None, :]
    if RESIDUAL:
        acc += tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=mask)


def narrow_product(x: Tensor, weight: Tensor, out: Tensor, *, scale: Tensor | None = None,
                   residual: Tensor | None = None, gated: bool = False) -> None:
    """out [lanes, rows, N] = x [lanes, rows, K] times weight [lanes, N, K], rows <= MAX_ROWS.

    residual, gated and scale are as in `matvec`.
    """
    lanes, rows, k = x.shape
    num_outputs = out.shape[2]
    assert rows <= MAX_ROWS and weight.shape == (lanes, num_outputs * (1 + gated), k), "shapes do not fit"
    assert x.is_contiguous() and weight.is_contiguous() and out.is_contiguous(), "the product takes contiguous tensors"
    tile = 32
    m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    chunk = 256 if x.element_size() == 2 else 64
    stages = 3 if m < 64 and not gated else 2
    _narrow_kernel[(triton.cdiv(num_outputs, tile), lanes)](
        x, weight, x if scale is None else scale, x if residual is None else residual, out, rows, num_outputs, K=k,
        M=m, N=tile, CHUNK=chunk, STAGES=stages, GLU=gated, RESIDUAL=residual is not None, SCALED=scale is not None,
        **options(4))
