"""The whole MOSS-Speech program at its published size, with random weights, on one GPU.

    python -m scripts.bench.service.moss [--listeners 1:1,16:16] [--out FILE.json]

Speech in, speech out: 4 s of sound are encoded, put before the language model, and the time is
taken until the first samples of the reply are there. Then so many listeners at a time hear replies
of 6 s, each to its end. The file is written after every part, so that it holds what was measured
when a later part fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import AudioChunk, Sampled
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.models.config import PUBLISHED, ModelConfig
from moss_engine.models.layout import bits_of_format
from moss_engine.runtime.base import Limits, Runtime
from moss_engine.service.core import ServiceCore
from scripts.bench.common.load import load_table
from scripts.bench.random_weights import Parts, Sizes
from scripts.bench.service.streams import (
    Level,
    StreamSetup,
    measure_levels,
    random_service,
    requests,
)

SPEECH_S = 4
PROMPT_ROWS = 96
"""50 codes of speech, their marks, and a system turn."""
REPLY_CODES = 75
TALKS = 12
FIRST_CODES = 8
"""Codes that the first sound takes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.service.moss",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listeners",
        default="1:1,16:16",
        metavar="N:REPLIES,...",
        help="numbers of listeners, and the replies of each number (1:1,16:16)",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=(4, 8, 16),
        default=16,
        help="of the language model's weights (16)",
    )
    parser.add_argument("--out", type=Path, help="also write the figures there as JSON")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise ConfigError("scripts.bench.service.moss measures a GPU, and this machine has none.")
    levels = [
        Level(int(replies), listeners=int(count))
        for count, replies in (part.split(":") for part in args.listeners.split(","))
    ]
    start_s = time.perf_counter()
    for report in measure(levels, torch.device("cuda"), args.bits):
        report["seconds"] = round(time.perf_counter() - start_s, 1)
        text = json.dumps(report, indent=1)
        if args.out:
            args.out.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


def measure(
    levels: Sequence[Level], device: torch.device, bits: int = 16
) -> Iterator[dict[str, Any]]:
    """What was measured at the published size so far, after each part."""
    from moss_engine.runtime.cuda.runtime import make_random_runtime

    most = max(level.listeners for level in levels)
    codec = Parts(Sizes(), device).codec(torch.float16, min(16, most))
    print("the codec is ready", flush=True)
    blocks = (most + 1) * -(-(PROMPT_ROWS + REPLY_CODES) // 16)
    limits = Limits(16, blocks, most, max(512, most), PROMPT_ROWS + REPLY_CODES + 16)
    runtime = make_random_runtime(
        PUBLISHED,
        limits,
        device=device,
        dtype=torch.bfloat16,
        seed=0,
        bits=None if bits == 16 else bits_of_format(PUBLISHED, f"int{bits}"),
    )
    print("the language model is ready", flush=True)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "weights": "random, "
                                                                                       "seed 0",
        "language_model": "bfloat16" if bits == 16 else f"int{bits}", "codec": "float16",
    }  # fmt: skip
    for part in serve(PUBLISHED, runtime, codec, levels, REPLY_CODES):
        report |= part
        report["memory_reserved_gb"] = round(torch.cuda.max_memory_reserved() / 1e9, 2)
        yield report


def serve(
    model: ModelConfig,
    runtime: Runtime,
    codec: MossCodec,
    levels: Sequence[Level],
    reply_codes: int,
    talks: int = TALKS,
) -> Iterator[dict[str, Any]]:
    """Figures of the times to first sound with one speaker, then those of every level. Closes the
    runtime."""
    setup = StreamSetup(PROMPT_ROWS, reply_codes)
    codec.open_stream()  # the voice's prompt
    service = random_service(model, runtime, codec, setup)
    yield {"prompt_rows": PROMPT_ROWS, "reply_codes": reply_codes}
    reply_s = float(reply_codes / codec.code_rate_hz)
    for number, load in enumerate(measure_levels(service, setup, levels, reply_s)):
        if number == 0:
            first = asyncio.run(talk(service, setup, talks))
            print(first, flush=True)
            yield first
        print(load_table(load), flush=True)
        name, figures = f"listeners_{load.concurrency}", load.figures
        yield {f"{name}_{kind}_{rank}": round(figures[kind][rank], 4) for kind in ("ttfa_ms", "rtf")
               for rank in ("p50", "p95")} | {
            f"{name}_worst_rtf": round(load.worst_rtf, 4), f"{name}_late_chunks": load.late_chunks,
            f"{name}_replies": load.replies,
        }  # fmt: skip


async def talk(service: ServiceCore, setup: StreamSetup, talks: int) -> dict[str, float]:
    """From 4 s of sound at hand until their codes are there, until the reply's eighth code was
    sampled (by the event's own time, since listeners are woken for several at once) and until its
    first samples are heard of; the reply is stopped then."""
    wave = np.random.RandomState(0).standard_normal(SPEECH_S * 16_000).astype(np.float32) * 0.1
    make, times = requests(setup, 1000), []
    for number in range(talks + 2):
        start_s, at, rows = time.monotonic(), [], 0
        codes = await asyncio.wrap_future(service.encode(wave, 16_000))
        assert len(codes) == SPEECH_S * 12.5
        at.append(time.monotonic())
        reply = service.submit(make(0, number))
        async for event in reply.events():
            rows += isinstance(event, Sampled)
            if rows == FIRST_CODES and len(at) == 1:
                at.append(reply.accepted_s + event.time_s)
            if isinstance(event, AudioChunk):
                at.append(time.monotonic())
                reply.cancel()
                break
        times.append([(moment - start_s) * 1e3 for moment in at])
        await asyncio.sleep(0.05)
    encoded, eighth, heard = zip(*times[2:], strict=True)
    return {
        "speech_in_4_s_encode_p50_ms": round(statistics.median(encoded), 2),
        "speech_in_4_s_eighth_code_p50_ms": round(statistics.median(eighth), 1),
        "speech_in_4_s_first_sound_p50_ms": round(statistics.median(heard), 1),
        "speech_in_4_s_first_sound_worst_ms": round(max(heard), 1),
    }


if __name__ == "__main__":
    main()
