"""Products of rows with one weight: which kernel or library does which."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moss_engine.kernels.launch import interpreted
from moss_engine.kernels.lm.few_rows import MOST_ROWS, FewRows, has_few_rows
from moss_engine.kernels.lm.integer_rows import IntegerRows
from moss_engine.kernels.lm.matvec import matvec
from moss_engine.kernels.lm.packed_rows import PackedRows, most_packed_rows, widen
from moss_engine.kernels.lm.rows import gate, quantise_rows, rescale, rms_norm
from moss_engine.runtime.cuda.weights import LaneLinear, Weights

# float8 weights of one product in one lane from which on our own kernels are faster for more than
# _FEW rows, too.
_LARGE, _FEW = 1 << 25, 32


class Products:
    """Linear layers of [lanes, rows, size] tensors, with the RMSNorm before them and what follows.

    One row goes to our own kernel, which reads the weights at the speed of memory. Two to 64 rows,
    32 of small float8 weights, go to our kernels for few rows: launched dependently, and ending in
    the gate or the residual, they make the whole step on an H200 5 to 9 % faster than cuBLAS with
    up to 16 rows and 2 to 4 % with 32 and 64. More rows go to cuBLAS: with 512 rows neither
    sums split in two nor a Triton product that ends in the gate is faster. Where float8 weights
    multiply more than one row, the rows are rounded to float8 as well, each with its own scale; up
    to 16 such rows are 15 % faster by our kernels, 64 of them 6 %.

    On compute capability 9 rows meet weights of 8 bits, and up to 192 rows those of 4, as integers
    (`IntegerRows`). Elsewhere, and with more rows, both are widened to 16 bits on their way through
    kernels of our own up to `most_packed_rows`, and gates for any number; more rows meet a widened
    copy, which costs less time than tiles that each widen the same weights.

    Prefetching weights into the L2 cache while attention waits or a product ends does not pay: a
    step of one row on an H200 gained nothing from 4 or 8 MB and lost 5 % with 16.
    """

    def __init__(self, weights: Weights, max_rows: int, eps: float):
        layer, self._eps = weights.trunk.layers[0], eps
        hidden, ffn = layer.down.weight.shape[1], layer.down.inputs
        table = weights.text_table

        def scratch(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=table.device)

        is_measured = table.element_size() == 2 or interpreted()
        self._few_rows = (
            FewRows(weights.branches.lanes, table.device)
            if is_measured and has_few_rows()
            else None
        )
        self._normed = scratch(2 * max_rows * hidden, table.dtype)
        gate_up = 2 * max_rows * 2 * ffn
        self._widened_size = 0
        if layer.down.is_packed and max_rows > most_packed_rows():
            self._widened_size = max(hidden * ffn, layer.qkv.weight.shape[1] * hidden)
        # of gates, or where those are not needed of widened weights or of rows as integers
        self._gate_up = scratch(max(gate_up, self._widened_size), table.dtype)
        lanes = weights.branches.lanes
        self._packed_rows = PackedRows(lanes, table.device)
        self._integer_rows = None
        if layer.down.is_packed and self._few_rows is not None:
            self._integer_rows = IntegerRows(lanes, max_rows, self._gate_up.view(torch.int8))
        if layer.qkv.weight.dtype is torch.float8_e4m3fn:
            self._float8_rows = scratch(
                2 * max_rows * max(ffn, layer.o.weight.shape[2]), torch.float8_e4m3fn
            )
            self._row_scale = scratch(2 * max_rows, torch.float32)
            self._product = scratch(max_rows * hidden, table.dtype)
            self._one = torch.ones((), device=table.device)

    def __call__(
        self,
        x: Tensor,
        linear: LaneLinear,
        out: Tensor,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """out = linear(x), or linear(norm(x)) with RMSNorm's weight [lanes, size].

        residual: `out` itself, to which the product is then added. gated: linear gives gates, then
        ups, and out = silu(gate) * up.
        """
        if x.shape[1] == 1:
            matvec(
                x[:, 0],
                linear.weight,
                out[:, 0],
                scale=linear.scale,
                norm=norm,
                eps=self._eps,
                residual=None if residual is None else residual[:, 0],
                gated=gated,
            )
            return
        by_integers = self._integer_rows_for(x, linear)
        if by_integers is not None and linear.scale is not None:
            by_integers(
                x,
                linear.weight,
                linear.scale,
                out,
                norm=norm,
                eps=self._eps,
                residual=residual,
                gated=gated,
            )
            return
        few_rows = self._few_rows_for(x, linear)
        if few_rows is not None and linear.scale is not None:
            values = _view(self._float8_rows, x.shape)
            quantise_rows(x.flatten(0, 1), values.flatten(0, 1), self._row_scale, norm, self._eps)
            scales = self._row_scale, linear.scale
            few_rows(values, linear.weight, out, residual=residual, gated=gated, scales=scales)
            return
        if norm is not None:
            normed = _view(self._normed, x.shape)
            rms_norm(x, norm, self._eps, normed)
            x = normed
        if few_rows is not None:
            few_rows(x, linear.weight, out, residual=residual, gated=gated)
        elif linear.is_packed:
            self._packed(x, linear, out, residual, gated=gated)
        elif gated:
            gate_up = _view(self._gate_up, (*out.shape[:2], 2 * out.shape[2]))
            self._by_library(x, linear, gate_up, None)
            gate(gate_up, out)
        else:
            self._by_library(x, linear, out, residual)

    def _packed(
        self, x: Tensor, linear: LaneLinear, out: Tensor, residual: Tensor | None, *, gated: bool
    ) -> None:
        """A product with packed weights: of few rows, of a head, or gated, by our kernels, of more
        with a widened copy of the weights."""
        weight, scale = linear.weight, linear.scale
        assert scale is not None, "packed weights have scales"
        shape, is_few = (weight.shape[1], x.shape[2]), x.shape[1] <= most_packed_rows()
        if gated and x.shape[1] > MOST_ROWS:
            gate_up = _view(self._gate_up, (*out.shape[:2], 2 * out.shape[2]))
            self._packed_rows(x, weight, scale, gate_up)
            gate(gate_up, out)
            return
        if is_few or shape[0] * shape[1] > self._widened_size:
            self._packed_rows(x, weight, scale, out, residual=residual, gated=gated)
            return
        wide = _view(self._gate_up, shape)
        for lane in range(len(x)):
            widen(weight[lane], scale[lane], wide)
            one = slice(lane, lane + 1)
            _product(x[one], wide[None], out[one], None if residual is None else residual[one])

    def _by_library(
        self, x: Tensor, linear: LaneLinear, out: Tensor, residual: Tensor | None
    ) -> None:
        """By cuBLAS; rows of float8 weights become float8 themselves."""
        if linear.scale is None:
            _product(x, linear.weight, out, residual)
            return
        for lane in range(len(x)):
            product = out[lane]
            if residual is not None:
                product = _view(self._product, product.shape)
            self._float8_product(x[lane], linear.weight[lane], product)
            added = None if residual is None else residual[lane]
            rescale(product, self._row_scale, linear.scale[lane], out[lane], residual=added)

    def _integer_rows_for(self, x: Tensor, linear: LaneLinear) -> IntegerRows | None:
        """Our own kernels for integers, where they are the faster ones and can do it."""
        if self._integer_rows is None or not linear.is_packed or linear.scale is None:
            return None
        can = self._integer_rows.takes(x.shape[1], linear.weight, linear.scale)
        return self._integer_rows if can else None

    def _few_rows_for(self, x: Tensor, linear: LaneLinear) -> FewRows | None:
        """Our own kernels for few rows, where they are the faster ones and can do it."""
        weight = linear.weight
        _, outputs, inputs = weight.shape
        is_better = linear.scale is None or outputs * inputs >= _LARGE
        most = MOST_ROWS if is_better else _FEW
        can = (
            not linear.is_packed
            and weight.is_contiguous()
            and inputs * weight.element_size() % 16 == 0
        )
        return self._few_rows if can and x.shape[1] <= most else None

    def _float8_product(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out = float8 rows times float8 weights, without either's scales; the rows' are left in
        `_row_scale`."""
        values = _view(self._float8_rows, x.shape)
        quantise_rows(x, values, self._row_scale)
        torch._scaled_mm(
            values,
            weight.T,
            scale_a=self._one,
            scale_b=self._one,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )


def _product(x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None) -> None:
    """out [lanes, rows, outputs] = x [lanes, rows, inputs] times weight [lanes, outputs, inputs],
    in out's dtype; added to `out` where that is the residual."""
    if residual is not None:
        if len(x) == 1:
            torch.addmm(residual[0], x[0], weight[0].T, out=out[0])
        else:
            torch.baddbmm(residual, x, weight.transpose(1, 2), out=out)
    elif len(x) > 1:
        torch.bmm(x, weight.transpose(1, 2), out=out)
    elif x.dtype is out.dtype:
        torch.mm(x[0], weight[0].T, out=out[0])
    else:
        torch.mm(x[0], weight[0].T, out_dtype=out.dtype, out=out[0])


def _view(scratch: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    return scratch[: math.prod(shape)].view(shape)
