"""The whole program at its published size within the memory of a smaller card:

    python -m scripts.bench.service.budget --limit-gb 22 --float8 trunk --out OUT.json
    python -m scripts.bench.service.budget --limit-gb 11 --bits 4 --out OUT.json
    python -m scripts.bench.service.budget --limit-gb 15 --bits 8 --replies 1 --out OUT.json

Caps what this process may allocate on the GPU, then builds the language model with random weights,
KV for so many sessions, and the codec in 16 bit: speech encoder, flow and HiFT, and a BigVGAN of
112 M parameters beside it. Then it fills every session to its last row, decodes, encodes a question
and speaks some replies at a time. Anything above the cap is an out-of-memory error, and what the
whole device holds more than before is reported, too: with the driver's part, and on a GPU that is
shared with what others took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from moss_engine.api.errors import MossError
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.cuda.weights import Float8
from moss_engine.runtime.make import resolve_device
from scripts.bench.lm.cuda import make_runtime, rows_of
from scripts.bench.random_weights import Parts, Sizes

if TYPE_CHECKING:
    from moss_engine.runtime.cuda.runtime import CudaRuntime

STEP_ROWS = 512
QUESTION_S = 10
SPOKEN_CODES = 20


def fill_sessions(runtime: CudaRuntime, num_rows: int, num_decoded: int) -> None:
    """Prefill every session up to its last `num_decoded` rows, then decode those in a batch."""
    limits = runtime.limits
    blocks_each = limits.num_blocks // limits.max_batch
    tables = [tuple(range(i * blocks_each, (i + 1) * blocks_each)) for i in range(limits.max_batch)]
    prompts = [rows_of(num_rows, PUBLISHED, i) for i in range(limits.max_batch)]
    for rows, table in zip(prompts, tables, strict=True):
        for start in range(0, num_rows - num_decoded, STEP_ROWS):
            end = min(start + STEP_ROWS, num_rows - num_decoded)
            runtime.forward(
                ScheduledBatch((ScheduledSequence(rows[start:end], start, table, True),))
            )
    for at in range(num_rows - num_decoded, num_rows):
        logits = runtime.forward(
            ScheduledBatch(
                tuple(
                    ScheduledSequence(rows[at : at + 1], at, table, True)
                    for rows, table in zip(prompts, tables, strict=True)
                )
            )
        )
        assert bool(logits.text.isfinite().all()) and bool(logits.audio.isfinite().all())


def talk(codec: MossCodec, num_replies: int) -> None:
    """Encode a question of 10 s, then speak so many replies at a time."""
    wave = np.random.RandomState(0).standard_normal(QUESTION_S * 16_000).astype(np.float32) * 0.1
    codes = codec.encode(wave, 16_000)
    streams = [codec.open_stream() for _ in range(num_replies)]
    waves = [
        codec.push_together([(stream, codes[:SPOKEN_CODES]) for stream in streams]),
        codec.flush_together(streams),
    ]
    samples = np.concatenate([piece for pieces in waves for piece in pieces])
    assert len(samples) == num_replies * SPOKEN_CODES * 1920 and np.isfinite(samples).all()


def measure(
    limit_bytes: float, number_format: str, sessions: int, rows: int, replies: int
) -> dict[str, float | str | int]:
    """Build and use everything under the cap; raises torch's OutOfMemoryError."""
    device = resolve_device("cuda")
    from scripts.bench.service.speech import CHUNK_FRAMES, LEFT_FRAMES, RIGHT_FRAMES, Vocoder

    torch.zeros(1, device=device)  # the driver's own memory of this process counts from here on
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, device)
    kv_rows = sessions * math.ceil(rows / 16) * 16
    runtime = make_runtime(PUBLISHED, sessions, kv_rows, number_format, STEP_ROWS, device=device)
    print(
        f"language model ready, {torch.cuda.memory_reserved(device) / 1e9:.2f} GB reserved",
        flush=True,
    )
    codec = Parts(Sizes(), device).codec(torch.float16, replies)
    vocoder = Vocoder(replies, LEFT_FRAMES + CHUNK_FRAMES + RIGHT_FRAMES, torch.float16, device)
    print(f"codec ready, {torch.cuda.memory_reserved(device) / 1e9:.2f} GB reserved", flush=True)
    fill_sessions(runtime, rows, 8)
    talk(codec, replies)
    vocoder.replay()
    torch.cuda.synchronize(device)
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "weights": "random, seed 0",
        "format": number_format,
        "sessions": sessions,
        "rows_each": rows,
        "replies_spoken": replies,
        "limit_gb": limit_bytes / 1e9,
        "allocated_peak_gb": torch.cuda.max_memory_allocated(device) / 1e9,
        "reserved_peak_gb": torch.cuda.max_memory_reserved(device) / 1e9,
        "device_more_gb": (free - torch.cuda.mem_get_info(device)[0]) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.budget",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--limit-gb", type=float, default=22.0, help="10^9 bytes that may be allocated (22)"
    )
    parser.add_argument(
        "--float8",
        default="trunk",
        choices=[kind.value for kind in Float8],
        help="linear layers in float8 (trunk)",
    )
    parser.add_argument(
        "--bits", type=int, choices=(8, 4), help="weights in so many bits, not in float8"
    )
    parser.add_argument("--sessions", type=int, default=4, help="replies at a time (4)")
    parser.add_argument("--rows", type=int, default=2048, help="rows of KV of each session (2048)")
    parser.add_argument(
        "--replies", type=int, default=4, help="spoken at a time, at most one a session (4)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the figures there as JSON"
    )
    args = parser.parse_args()
    number_format = f"int{args.bits}" if args.bits else args.float8
    found = measure(args.limit_gb * 1e9, number_format, args.sessions, args.rows, args.replies)
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
