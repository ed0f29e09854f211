"""Times of work on a GPU, the ceilings that they are compared with, and the report of them. Used by
`scripts.bench`."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

REPEATS = 30
REST_S = 0.02
"""Rest before timing arithmetic that fills the GPU.

Under sustained load an H200 meets its power limit and lowers its clock from 1,980 to 1,575 MHz.
"""


@dataclass(frozen=True)
class Figure:
    """One measured time; `limit_ms` is the least time that the ceilings of this run allow.

    `note` tells what it was measured by, `dtype` the number format of the weights, where it has
    any.
    """

    name: str
    median_ms: float
    p90_ms: float
    limit_ms: float | None = None
    note: str = ""
    dtype: str = ""


def device_times_ms(
    run: Callable[[], object], repeats: int = REPEATS, warm: int = 3, rest_s: float = 0.0
) -> list[float]:
    """Times between device events around one call, with rest before each or back to back."""
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    events = []
    for _ in range(repeats):
        if rest_s:
            torch.cuda.synchronize()
            time.sleep(rest_s)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def wall_times_ms(
    run: Callable[[], object], repeats: int = REPEATS, warm: int = 3, rest_s: float = 0.0
) -> list[float]:
    """Host times of one call each, the device idle before, for `rest_s`, and after."""
    times = []
    for i in range(warm + repeats):
        torch.cuda.synchronize()
        time.sleep(rest_s)
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if i >= warm:
            times.append((time.perf_counter() - start) * 1e3)
    return times


def figure(
    name: str, times_ms: list[float], limit_ms: float | None = None, note: str = ""
) -> Figure:
    times_ms = sorted(times_ms)
    return Figure(
        name, statistics.median(times_ms), times_ms[int(0.9 * (len(times_ms) - 1))], limit_ms, note
    )


@dataclass(frozen=True)
class Ceilings:
    """This GPU's limits in this run: reading and copying memory, dense products.

    `float8_flop_per_s` is that of float8 products, None on a GPU that has none.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    dense_flop_per_s: float
    float8_flop_per_s: float | None = None


def measure_ceilings() -> Ceilings:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def read_kernel(x_ptr, out_ptr, per_program, TILE: tl.constexpr):
        at = x_ptr + tl.program_id(0).to(tl.int64) * per_program + tl.arange(0, TILE)
        acc = tl.zeros([TILE], tl.int32)
        for start in tl.range(0, per_program, 4 * TILE):
            acc ^= tl.load(at + start) ^ tl.load(at + start + TILE)
            acc ^= tl.load(at + start + 2 * TILE) ^ tl.load(at + start + 3 * TILE)
        tl.store(out_ptr + tl.program_id(0), tl.sum(acc, 0))

    source = torch.randint(-(2**31), 2**31 - 1, (1 << 30,), dtype=torch.int32, device="cuda")
    target, sums = torch.empty_like(source), torch.empty(528, dtype=torch.int32, device="cuda")
    per_program = source.numel() // 528 // 8192 * 8192

    def read() -> None:
        read_kernel[(528,)](source, sums, per_program, TILE=2048, num_warps=8)  # pyright: ignore

    read_s = statistics.median(device_times_ms(read)) / 1e3
    copy_s = statistics.median(device_times_ms(lambda: torch.bitwise_not(source, out=target))) / 1e3
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense_s = statistics.median(device_times_ms(lambda: a @ b, rest_s=REST_S)) / 1e3
    return Ceilings(
        528 * per_program * 4 / read_s,
        2 * source.numel() * 4 / copy_s,
        2 * 8192**3 / dense_s,
        _float8_rate(a, b),
    )


def _float8_rate(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """Operations a second of a product of two square matrices in float8, one scale for each."""
    if torch.cuda.get_device_capability() < (8, 9):
        return None
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device=a.device)
    times = device_times_ms(
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16), rest_s=REST_S
    )
    return 2 * len(a) ** 3 / statistics.median(times) * 1e3


class Report:
    """Figures measured so far, printed and written at once: an interrupted run keeps the rest."""

    def __init__(self, values: dict[str, Any], path: Path | None):
        self.values: dict[str, Any] = {**values, "figures": []}
        self._path = path
        self._start_s = time.perf_counter()

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self._start_s:6.1f} s  {text}", flush=True)

    def save(self) -> None:
        if self._path:
            self._path.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")

    def add(self, figures: Iterable[Figure], dtype: str = "") -> None:
        """Take figures as they come; measuring goes on between one and the next."""
        for found in figures:
            found = replace(found, dtype=dtype)
            self.values["figures"].append(asdict(found))
            self.say(line(found))
            self.save()


def line(found: Figure) -> str:
    limit = (
        ""
        if found.limit_ms is None
        else f"{found.limit_ms:9.3f}{100 * found.limit_ms / found.median_ms:6.0f}%"
    )
    name = f"{found.name} ({found.note})"
    return f"{found.dtype:<11}{name:<58}{found.median_ms:10.3f}{found.p90_ms:9.3f}{limit}"


def table(figures: list[Figure]) -> str:
    head = f"{'':69}{'median ms':>10}{'p90':>9}{'limit':>9}{'share':>7}"
    return "\n".join([head, *map(line, figures)])
