"""The published size within the memory of a smaller card:

    python -m scripts.bench_budget --limit-gb 22 --float8 trunk --out OUT.json

Caps what this process may allocate on the GPU, then builds the language model with random weights, KV for so many
sessions and a BigVGAN of 112 M parameters, fills every session to its last row, decodes and vocodes. Anything above the
cap is an out-of-memory error, and what the whole device holds more than before is reported, with the driver's own part.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from moss_engine.runtime.base import Limits, ScheduledBatch, ScheduledSequence
from moss_engine.runtime.cuda import CudaRuntime, make_random_runtime
from moss_engine.runtime.cuda_weights import Float8
from scripts.bench_cuda import PUBLISHED, rows_of
from scripts.bench_speech import CHUNK_FRAMES, LEFT_FRAMES, RIGHT_FRAMES, Vocoder

STEP_ROWS = 512


def fill_sessions(runtime: CudaRuntime, num_rows: int, num_decoded: int) -> None:
    """Prefill every session up to its last `num_decoded` rows, in chunks, and decode those together."""
    limits = runtime.limits
    blocks_each = limits.num_blocks // limits.max_batch
    tables = [tuple(range(i * blocks_each, (i + 1) * blocks_each)) for i in range(limits.max_batch)]
    prompts = [rows_of(num_rows, PUBLISHED, i) for i in range(limits.max_batch)]
    for rows, table in zip(prompts, tables, strict=True):
        for start in range(0, num_rows - num_decoded, STEP_ROWS):
            end = min(start + STEP_ROWS, num_rows - num_decoded)
            runtime.forward(ScheduledBatch((ScheduledSequence(rows[start:end], start, table, True),)))
    for at in range(num_rows - num_decoded, num_rows):
        logits = runtime.forward(ScheduledBatch(tuple(
            ScheduledSequence(rows[at : at + 1], at, table, True)
            for rows, table in zip(prompts, tables, strict=True))))
        assert bool(logits.text.isfinite().all()) and bool(logits.audio.isfinite().all())


def measure(limit_bytes: float, float8: Float8, sessions: int, rows: int) -> dict[str, float | str | int]:
    """Build and use everything under the cap; raises torch's OutOfMemoryError where it does not fit."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)  # the driver's own memory of this process counts from here on
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, device)
    limits = Limits(16, sessions * math.ceil(rows / 16), sessions, STEP_ROWS, rows)
    runtime = make_random_runtime(PUBLISHED, limits, device=device, dtype=torch.bfloat16, seed=0, float8=float8)
    vocoder = Vocoder(sessions, LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES, torch.float16, device)
    fill_sessions(runtime, rows, 8)
    vocoder.replay()
    torch.cuda.synchronize(device)
    return {"device": torch.cuda.get_device_name(device), "torch": torch.__version__, "weights": "random, seed 0",
            "float8": float8.value, "sessions": sessions, "rows_each": rows, "limit_gb": limit_bytes / 1e9,
            "allocated_peak_gb": torch.cuda.max_memory_allocated(device) / 1e9,
            "reserved_peak_gb": torch.cuda.max_memory_reserved(device) / 1e9,
            "device_more_gb": (free - torch.cuda.mem_get_info(device)[0]) / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-gb", type=float, default=22.0, help="10^9 bytes that may be allocated (22)")
    parser.add_argument("--float8", default="trunk", choices=[kind.value for kind in Float8])
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--rows", type=int, default=2048, help="rows of KV of each session (2048)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = measure(args.limit_gb * 1e9, Float8(args.float8), args.sessions, args.rows)
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
