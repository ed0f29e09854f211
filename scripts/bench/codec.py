"""Speed of the codec alone, at its published size with random weights.

A chunk turns 5 codes of each reply into 400 ms of samples on the host. Whole replies of 60 s are
spoken, so that a cost that grows with their length would show.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from moss_engine.codec.base import Push, SpeechCodec
from moss_engine.codec.moss.load import CHUNK_CODES
from moss_engine.runtime.make import resolve_device
from scripts.bench.common import Report, whole_numbers
from scripts.bench.gpu import device_values, wall_times_ms
from scripts.bench.random_weights import Parts, Sizes
from scripts.command import count

FIRST_CODES = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="auto", help="cpu or cuda (a GPU when there is one)")
    add("--streams", type=whole_numbers, default=[1, 4, 8, 16], metavar="N,...",
        help="replies at a time (1,4,8,16)")  # fmt: skip
    add("--codes", type=count, default=750, metavar="N", help="codes of a reply (750: 60 s)")


def run(args: argparse.Namespace, report: Report, sizes: Sizes | None = None) -> None:
    device, sizes = resolve_device(args.device), sizes or Sizes()
    report.add(**device_values(device))
    report.say("making random weights")
    weights = Parts(sizes, device)
    report.add(voice_codes=sizes.voice_codes, history_codes=sizes.history_codes)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    start_s = time.perf_counter()
    codec = weights.codec(dtype, max(args.streams))
    report.add(
        number_format=str(dtype).removeprefix("torch."),
        ready_s=round(time.perf_counter() - start_s, 2),
    )
    wave = np.random.RandomState(0).standard_normal(160_000).astype(np.float32) * 0.1
    times_ms = wall_times_ms(lambda: codec.encode(wave, 16_000))
    report.add(encode_10_s_p50_ms=round(statistics.median(times_ms), 2))
    report.add(codes_of_a_reply=args.codes)
    for streams in args.streams:
        found = spoken(codec, streams, args.codes)
        report.say(f"{streams} at a time: {found}")
        report.add(**{f"chunk_of_{streams}_{name}": value for name, value in found.items()})


def spoken(codec: SpeechCodec, streams: int, num_codes: int) -> dict[str, Any]:
    """Speak whole replies, `streams` at a time; times of all chunks, first and last tenth."""
    random = np.random.RandomState(1)
    open_ = [codec.open_stream() for _ in range(streams)]
    replies = [random.randint(0, codec.num_codes, num_codes).tolist() for _ in open_]

    def push(start: int, end: int) -> list[np.ndarray]:
        work = [Push(s, reply[start:end]) for s, reply in zip(open_, replies, strict=True)]
        return codec.push_together(work)

    begun = FIRST_CODES + CHUNK_CODES  # the first two chunks give less sound than they take codes
    push(0, FIRST_CODES)
    push(FIRST_CODES, begun)
    times, samples = [], 0
    for at in range(begun, num_codes - CHUNK_CODES + 1, CHUNK_CODES):
        start_s = time.perf_counter()
        samples += len(push(at, at + CHUNK_CODES)[0])
        times.append((time.perf_counter() - start_s) * 1e3)
    assert samples, "nothing was spoken"
    tenth = max(1, len(times) // 10)
    return {
        "p50_ms": round(statistics.median(times), 2),
        "first_tenth_p50_ms": round(statistics.median(times[:tenth]), 2),
        "last_tenth_p50_ms": round(statistics.median(times[-tenth:]), 2),
    }
