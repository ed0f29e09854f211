"""The whole program at its published size within the memory of a smaller card.

Caps what this process may allocate on the GPU, then builds the language model with random weights,
KV for so many sessions, and the codec in 16 bit: speech encoder, flow and HiFT. Then it fills every
session to its last row, decodes, encodes a question and speaks some replies at a time. Anything
above the cap is an out-of-memory error. The growth of the whole device's used memory is reported,
too; it includes the driver's part and, on a shared GPU, what others have taken meanwhile.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch

from moss_engine.codec.base import Push
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.models.config import PUBLISHED
from moss_engine.runtime.base import ScheduledBatch, ScheduledSequence
from moss_engine.runtime.make import resolve_device
from moss_engine.runtime.sampler import LogitsRuntime
from scripts.bench.common import Report
from scripts.bench.gpu import FORMATS, device_values, make_runtime, rows_of
from scripts.bench.random_weights import Parts, Sizes
from scripts.command import count

STEP_ROWS = 512
QUESTION_S = 10
SPOKEN_CODES = 20
DECODED_ROWS = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--limit-gb", type=float, default=22.0, help="10^9 bytes that may be allocated (22)")
    add("--dtype", choices=FORMATS, default="float8", help="number format (float8)")
    add("--sessions", type=count, default=4, help="replies at a time (4)")
    add("--rows", type=count, default=2048, help="rows of KV of each session (2048)")
    add("--replies", type=count, default=4, help="spoken at a time, at most one a session (4)")


def run(args: argparse.Namespace, report: Report) -> None:
    """Build and use everything under the cap; raises torch's OutOfMemoryError."""
    device = resolve_device("cuda")
    torch.zeros(1, device=device)  # the driver's own memory of this process counts from here on
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction(args.limit_gb * 1e9 / total, device)
    kv_rows = args.sessions * math.ceil(args.rows / 16) * 16
    runtime = make_runtime(PUBLISHED, args.sessions, kv_rows, args.dtype, STEP_ROWS, device=device)
    report.say(f"language model ready, {torch.cuda.memory_reserved(device) / 1e9:.2f} GB reserved")
    codec = Parts(Sizes(), device).codec(torch.float16, args.replies)
    report.say(f"codec ready, {torch.cuda.memory_reserved(device) / 1e9:.2f} GB reserved")
    fill_sessions(runtime, args.rows)
    talk(codec, args.replies)
    torch.cuda.synchronize(device)
    report.add(
        **device_values(device),
        format=args.dtype,
        sessions=args.sessions,
        rows_each=args.rows,
        replies_spoken=args.replies,
        limit_gb=args.limit_gb,
        allocated_peak_gb=torch.cuda.max_memory_allocated(device) / 1e9,
        reserved_peak_gb=torch.cuda.max_memory_reserved(device) / 1e9,
        device_more_gb=(free - torch.cuda.mem_get_info(device)[0]) / 1e9,
    )


def fill_sessions(runtime: LogitsRuntime, num_rows: int) -> None:
    """Prefill every session almost to its limit, then decode its last rows in a batch."""
    limits = runtime.limits
    each, prefilled = limits.num_blocks // limits.max_batch, num_rows - DECODED_ROWS
    tables = [tuple(range(i * each, (i + 1) * each)) for i in range(limits.max_batch)]
    prompts = [rows_of(num_rows, PUBLISHED, i) for i in range(limits.max_batch)]
    sessions = list(zip(prompts, tables, strict=True))
    for rows, table in sessions:
        for start in range(0, prefilled, STEP_ROWS):
            part = rows[start : min(start + STEP_ROWS, prefilled)]
            runtime.forward(ScheduledBatch((ScheduledSequence(part, start, table, True),)))
    for at in range(prefilled, num_rows):
        parts = (ScheduledSequence(rows[at : at + 1], at, table, True) for rows, table in sessions)
        logits = runtime.forward(ScheduledBatch(tuple(parts)))
        assert bool(logits.text.isfinite().all()) and bool(logits.audio.isfinite().all())


def talk(codec: MossCodec, num_replies: int) -> None:
    """Encode a question of 10 s, then speak so many replies at a time."""
    wave = np.random.RandomState(0).standard_normal(QUESTION_S * 16_000).astype(np.float32) * 0.1
    codes = codec.encode(wave, 16_000)
    streams = [codec.open_stream() for _ in range(num_replies)]
    work = [Push(stream, codes[:SPOKEN_CODES], is_last=True) for stream in streams]
    samples = np.concatenate(codec.push_together(work))
    assert len(samples) == num_replies * SPOKEN_CODES * 1920 and np.isfinite(samples).all()
