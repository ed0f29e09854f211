"""Products of many rows with one weight: which library or kernel does which."""

from __future__ import annotations

import torch
from torch import Tensor

from moss_engine.runtime.cuda_weights import Linear, Weights
from moss_engine.runtime.kernels.float8 import quantise_rows
from moss_engine.runtime.kernels.narrow import MAX_ROWS, narrow_product


class Products:
    """Matrix products with more rows than `matvec` takes.

    Weights of the rows' own number format go to cuBLAS. Float8 weights meet widened rows while there are few of them,
    where reading the weights is what takes the time, and float8 rows, each with its own scale, where there are many.
    """

    def __init__(self, weights: Weights, max_rows: int):
        layer, device = weights.trunk.layers[0], weights.text_table.device
        self._rows_scale = self._rows_values = self._product = None
        if layer.qkv.scale is not None:
            widest, hidden = layer.down.weight.shape[2], layer.down.weight.shape[1]
            self._rows_values = torch.empty(max_rows * max(widest, hidden), dtype=torch.float8_e4m3fn, device=device)
            self._rows_scale = torch.empty(max_rows, 1, device=device)
            self._product = torch.empty(max_rows * hidden, dtype=weights.text_table.dtype, device=device)

    def product(self, x: Tensor, linear: Linear, lane: int, out: Tensor) -> None:
        """out [rows, outputs] = x [rows, inputs] times one lane's weight."""
        if linear.scale is None:
            torch.mm(x, linear.weight[lane].T, out=out)
        elif len(x) <= MAX_ROWS:
            _narrow(x, linear, lane, out)
        else:
            self._both_float8(x, linear.weight[lane], linear.scale[lane], out)

    def add_product(self, x: Tensor, linear: Linear, lane: int, out: Tensor) -> None:
        """out += x times one lane's weight."""
        if linear.scale is None:
            torch.addmm(out, x, linear.weight[lane].T, out=out)
        elif len(x) <= MAX_ROWS:
            _narrow(x, linear, lane, out, residual=out)
        else:
            assert self._product is not None, "float8 weights without their scratch memory"
            product = self._product[: out.numel()].view_as(out)
            self._both_float8(x, linear.weight[lane], linear.scale[lane], product)
            out.add_(product)

    def product_float32(self, x: Tensor, linear: Linear, out: Tensor) -> None:
        """out float32 [rows, outputs] = x times a weight of one lane."""
        if linear.scale is not None:
            for start in range(0, len(x), MAX_ROWS):
                _narrow(x[start : start + MAX_ROWS], linear, 0, out[start : start + MAX_ROWS])
        elif x.dtype is torch.float32:
            torch.mm(x, linear.weight[0].T, out=out)
        else:
            torch.mm(x, linear.weight[0].T, out_dtype=torch.float32, out=out)

    def _both_float8(self, x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
        assert self._rows_values is not None and self._rows_scale is not None, "float8 weights without scratch memory"
        values, rows_scale = self._rows_values[: x.numel()].view(x.shape), self._rows_scale[: len(x)]
        quantise_rows(x, values, rows_scale)
        torch._scaled_mm(values, weight.T, scale_a=rows_scale, scale_b=scale.unsqueeze(0), out_dtype=out.dtype,
                         use_fast_accum=True, out=out)


def _narrow(x: Tensor, linear: Linear, lane: int, out: Tensor, residual: Tensor | None = None) -> None:
    assert linear.scale is not None
    narrow_product(x.unsqueeze(0), linear.weight[lane : lane + 1], out.unsqueeze(0),
                   scale=linear.scale[lane : lane + 1], residual=None if residual is None else residual.unsqueeze(0))
