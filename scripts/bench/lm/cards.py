"""Steps of the CUDA runtime in 8 and 4 bits at the published size, with random weights:

    python -m scripts.bench.lm.cards --formats none int8 int4 --batches 1 16 --out OUT.json

For each format the weights' bytes, decode steps as the device runs them, with both heads, the
prefill of 512 rows as the caller waits for it, and the share of this GPU's measured read rate at
which a step of one row reads its weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import ScheduledBatch
from moss_engine.runtime.make import resolve_device
from moss_engine.runtime.roofline import read_rate
from scripts.bench.common.timing import REST_S, device_times_ms, wall_times_ms
from scripts.bench.lm.cuda import CONTEXT_ROWS, blocks_each, make_runtime, sequence, step_bytes

PREFILL_ROWS = 512


def measure(number_format: str, batches: list[int], device: torch.device) -> dict[str, Any]:
    """Medians of one format: bytes, milliseconds."""
    start_s = time.perf_counter()
    most = max(batches)
    runtime = make_runtime(
        PUBLISHED, most, most * blocks_each() * 16 + 4096, number_format, 512, device=device
    )
    found: dict[str, Any] = {
        "format": number_format,
        "step_weight_gb": step_bytes(PUBLISHED, number_format) / 1e9,
        "allocated_gb": torch.cuda.memory_allocated(device) / 1e9,
        "made_s": time.perf_counter() - start_s,
        "decode_ms": {},
        "decode_speaking_ms": {},
    }
    for index in range(most):
        for cached in range(0, CONTEXT_ROWS, PREFILL_ROWS):
            count = min(PREFILL_ROWS, CONTEXT_ROWS - cached)
            rows = sequence(PUBLISHED, index, cached, count, blocks_each())
            runtime.forward(ScheduledBatch((rows,)))
    for batch in batches:
        shares = tuple(sequence(PUBLISHED, i, CONTEXT_ROWS, 1, blocks_each()) for i in range(batch))
        logits = runtime.forward(ScheduledBatch(shares))
        assert bool(logits.text.isfinite().all()) and bool(logits.audio.isfinite().all())
        found["decode_ms"][str(batch)] = statistics.median(
            device_times_ms(runtime.decode_again(batch))
        )
        found["decode_speaking_ms"][str(batch)] = statistics.median(
            device_times_ms(runtime.decode_again(batch, text_logits=False, draw=True))
        )
    step = ScheduledBatch((sequence(PUBLISHED, 0, 0, PREFILL_ROWS, PREFILL_ROWS // 16 + 1),))
    run = lambda: runtime.forward(step)  # noqa: E731
    found["prefill_512_ms"] = statistics.median(wall_times_ms(run, rest_s=REST_S))
    runtime.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.lm.cards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--formats", nargs="+", default=["none", "int8", "int4"], metavar="FORMAT",
        help="none (bfloat16), trunk or all (float8), int8, int4",
    )  # fmt: skip
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=[1, 16],
        metavar="N",
        help="sequences of the decode steps (1 16)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the figures there as JSON"
    )
    args = parser.parse_args()
    device = resolve_device("cuda")
    rate = read_rate(1 << 32, device)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "weights": "random, seed 0",
        "context_rows": CONTEXT_ROWS,
        "read_tb_per_s": rate / 1e12,
        "formats": [],
    }
    for number_format in args.formats:
        found = measure(number_format, args.batches, device)
        found["read_share"] = (
            found["step_weight_gb"] * 1e9 / (found["decode_ms"][str(args.batches[0])] / 1e3) / rate
        )
        report["formats"].append(found)
        print(json.dumps(found), flush=True)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
