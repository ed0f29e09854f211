"""Weights on their way into the L2 cache before the kernel that reads them has begun.

A kernel that leaves the memory idle, because it waits for latency or is about to end, asks for the
first bytes of the next kernel's weights. Nothing that it computes changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from moss_engine.kernels.launch import overlaps

_LINE = tl.constexpr(128)  # bytes


@triton.jit
def prefetch(lines):
    """Cache lines of global memory into L2."""
    tl.inline_asm_elementwise("{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [lines],
                              dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def read_ahead(weight_ptr, second, place, LINES: tl.constexpr):
    """This program's share of the next weights, bytes, LINES cache lines; `place` counts from 0 the
    programs that take part.

    Those of odd places come from `second` bytes on: where the next kernel reads gates and ups.
    """
    if LINES > 0 and (place >= 0):
        start = place.to(tl.int64) * (LINES * _LINE)
        if second > 0:
            start = (place // 2).to(tl.int64) * (LINES * _LINE) + (place % 2).to(tl.int64) * second
        prefetch(weight_ptr + start + tl.arange(0, LINES) * _LINE)


@dataclass(frozen=True)
class Then:
    """Weights that the next kernel reads, a lane's gates before its ups where `gated`."""

    weight: Tensor
    gated: bool = False

    @property
    def second(self) -> int:
        """Bytes from a lane's gates to its ups, or 0."""
        return self.weight[0].nbytes // 2 if self.gated else 0

    def lines(self, most_bytes: int, programs: int) -> int:
        """Cache lines for each of `programs`, a power of two; 0 where kernels do not overlap."""
        if not overlaps():
            return 0
        lines = min(most_bytes, self.weight[0].nbytes) // (_LINE.value * programs)
        return 0 if lines < 1 else 1 << (lines.bit_length() - 1)


def arguments(then: Then | None, most_bytes: int, programs: int,
              unread: Tensor) -> dict[str, Tensor | int]:
    """A kernel's arguments for `read_ahead`; `unread` stands for weights that are never read."""
    if then is None or not (lines := then.lines(most_bytes, programs)):
        return {"then_ptr": unread, "then_second": 0, "THEN": 0}
    return {"then_ptr": then.weight.view(torch.uint8), "then_second": then.second, "THEN": lines}
