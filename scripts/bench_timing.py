"""Times of work on a GPU, and the ceilings that they are compared with. Used by `scripts.bench`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPEATS = 30


@dataclass(frozen=True)
class Figure:
    """One measured time; `limit_ms` is the least time that the ceilings of this run allow."""

    name: str
    median_ms: float
    p90_ms: float
    limit_ms: float | None = None
    note: str = ""


def device_times_ms(run: Callable[[], object], repeats: int = REPEATS, warm: int = 3) -> list[float]:
    """Times between two device events around one call."""
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    events = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def wall_times_ms(run: Callable[[], object], repeats: int = REPEATS, warm: int = 3) -> list[float]:
    """Host times of one call each, the device idle before and after."""
    times = []
    for i in range(warm + repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if i >= warm:
            times.append((time.perf_counter() - start) * 1e3)
    return times


def figure(name: str, times_ms: list[float], limit_ms: float | None = None, note: str = "") -> Figure:
    times_ms = sorted(times_ms)
    return Figure(name, statistics.median(times_ms), times_ms[int(0.9 * (len(times_ms) - 1))], limit_ms, note)


@dataclass(frozen=True)
class Ceilings:
    """What this GPU did in this run: reading memory, copying it, and dense bfloat16 products on random values."""

    read_bytes_per_s: float
    copy_bytes_per_s: float
    dense_flop_per_s: float


def measure_ceilings() -> Ceilings:
    import triton
    import triton.language as tl

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
        read_kernel[(528,)](source, sums, per_program, TILE=2048, num_warps=8)  # pyright: ignore[reportCallIssue]

    read_s = statistics.median(device_times_ms(read)) / 1e3
    copy_s = statistics.median(device_times_ms(lambda: torch.bitwise_not(source, out=target))) / 1e3
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense_s = statistics.median(device_times_ms(lambda: a @ b)) / 1e3
    return Ceilings(528 * per_program * 4 / read_s, 2 * source.numel() * 4 / copy_s, 2 * 8192**3 / dense_s)


def table(figures: list[Figure]) -> str:
    lines = [f"{'':58}{'median ms':>10}{'p90':>9}{'limit':>9}{'share':>7}"]
    for f in figures:
        limit = "" if f.limit_ms is None else f"{f.limit_ms:9.3f}{100 * f.limit_ms / f.median_ms:6.0f}%"
        lines.append(f"{f.name + ' (' + f.note + ')':58}{f.median_ms:10.3f}{f.p90_ms:9.3f}{limit}")
    return "\n".join(lines)
