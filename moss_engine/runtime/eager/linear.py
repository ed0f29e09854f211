"""Linear layers of the torch runtime: float weights, or per-row int8 weights kept as they are
stored.

A step's rows are packed with its decode rows first. An int8 layer has one kernel for these and
another for prefill rows, and both compute every row independently of the others, so that a sequence
gets the same values in any batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

FINE_STEP, COARSE_STEP = 16, 64
"""16-bit products on a CPU have numbers of rows that are multiples of these: of the first up to
COARSE_STEP rows, beyond of the second."""


class Linear(Protocol):
    """x [rows, in], of which the first `num_decode` are decode rows -> [rows, out]."""

    def __call__(self, x: Tensor, num_decode: int) -> Tensor: ...


class FloatLinear:
    """weight: [out, in], in the dtype to compute in; the result has that dtype."""

    def __init__(self, weight: Tensor):
        self.weight = weight

    def __call__(self, x: Tensor, num_decode: int) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.linear(x, self.weight) if num_decode == len(x) else _product(x, self.weight)


class Int8Linear:
    """values: int8 [out, in]; scale: float32 [out]; weight = values * scale; the result is float32.

    Decode rows go through torch's weight-only int8 kernel with bfloat16 activations. Prefill rows,
    where arithmetic and not the reading of weights takes the time, go through an ordinary product
    in `prefill_dtype`, in which int8 values are exact. The scale is applied afterwards in float32,
    as bfloat16 would round it.
    """

    def __init__(self, values: Tensor, scale: Tensor, prefill_dtype: torch.dtype):
        self.values = values.contiguous()
        self.scale = scale.float()
        self.prefill_dtype = prefill_dtype
        self._ones = torch.ones(values.shape[0], dtype=torch.bfloat16, device=values.device)

    def __call__(self, x: Tensor, num_decode: int) -> Tensor:
        if num_decode == x.shape[0]:
            return self._decode(x)
        if num_decode == 0:
            return self._prefill(x)
        return torch.cat([self._decode(x[:num_decode]), self._prefill(x[num_decode:])])

    def _decode(self, x: Tensor) -> Tensor:
        return (
            torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.values, self._ones) * self.scale
        )

    def _prefill(self, x: Tensor) -> Tensor:
        return _product(x.to(self.prefill_dtype), self.values.to(self.prefill_dtype)) * self.scale


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] times weight [out, in]: the same values for a row whatever comes with it.

    For 16-bit values on a CPU, oneDNN makes a kernel for every number of rows and PyTorch keeps a
    thousand of them, of a megabyte each; so rows are filled up to one of a few numbers.
    """
    rows = x.shape[0]
    if x.dtype is torch.float32 or x.device.type != "cpu":
        return F.linear(x, weight)
    step = FINE_STEP if rows <= COARSE_STEP else COARSE_STEP
    return F.linear(F.pad(x, (0, 0, 0, -rows % step)), weight)[:rows]


CLEARLY = 1.3
"""How many times as fast another number format must be to be chosen: a smaller difference may come
from what else the machine does."""


def int8_decodes_well(threads: int) -> bool:
    """Whether this CPU multiplies one row by int8 weights about as fast as by float32 weights, or
    faster (takes a few ms). Without the vector instructions that torch's kernel is written for, it
    can be far slower.
    """
    size, num_matrices = (
        768,
        8,
    )  # 19 MB of float32 in all: as in a model, more than the caches near the core
    weights = [torch.randn(size, size) for _ in range(num_matrices)]
    values = [weight.mul(10).to(torch.int8) for weight in weights]
    x, ones = torch.randn(1, size), torch.ones(size, dtype=torch.bfloat16)
    int8_s, float32_s = _fastest_s(
        threads,
        lambda: [torch.ops.aten._weight_int8pack_mm(x.bfloat16(), v, ones) for v in values],
        lambda: [F.linear(x, w) for w in weights],
    )
    return int8_s < CLEARLY * float32_s


def fastest_prefill_dtype(threads: int) -> torch.dtype:
    """bfloat16, unless this CPU multiplies matrices of many rows clearly faster in float32 (takes a
    few ms)."""
    values, x = torch.ones(512, 512, dtype=torch.int8), torch.randn(64, 512)
    bfloat16_s, float32_s = _fastest_s(
        threads,
        lambda: F.linear(x.bfloat16(), values.bfloat16()),
        lambda: F.linear(x, values.float()),
    )
    return torch.float32 if CLEARLY * float32_s < bfloat16_s else torch.bfloat16


def _fastest_s(threads: int, *runs: Callable[[], object], times: int = 9) -> list[float]:
    """The shortest time of each, taken in turns, so that a busy moment hits all of them."""

    def once(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [
            min(taken)
            for taken in zip(*([once(run) for run in runs] for _ in range(times)), strict=True)
        ]
    finally:
        torch.set_num_threads(before)
