"""Speed, memory and rounding of the MOSS-Speech codec at its published size, with random weights.

    python -m scripts.bench.codec.codec [--parts memory,speed,rounding,history] [--device cpu]
        [--out FILE.json]

A chunk is 5 codes of each reply, 400 ms of sound, through flow and vocoder to samples on the host.
Replies of 60 s are spoken to the end, so that a cost that grew with their length would show. Memory
is that of the tensors that the codec keeps; rounding compares 16-bit formats with float32, history
a reply's mel with that of a codec that forgets nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moss_engine.codec.moss.codec import MossCodec
from moss_engine.codec.moss.load import CHUNK_CODES
from scripts.bench.codec.accuracy import history, memory, rounding
from scripts.bench.random_weights import Parts, Sizes

PARTS = ("memory", "speed", "rounding", "history")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.codec.codec",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        type=lambda text: tuple(text.split(",")),
        metavar="PART,...",
        help=f"what to measure ({','.join(PARTS)})",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        type=torch.device,
        help="cpu or cuda (a GPU when there is one)",
    )
    parser.add_argument(
        "--voice-codes",
        type=int,
        default=Sizes.voice_codes,
        help="codes of the voice's sample (60)",
    )
    parser.add_argument(
        "--compared-codes",
        type=int,
        default=Sizes.compared_codes,
        help="codes of the reply that rounding is measured on (100)",
    )
    parser.add_argument("--out", type=Path, help="also write the figures there as JSON")
    args = parser.parse_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f"--parts are {', '.join(PARTS)}")
    sizes = Sizes(voice_codes=args.voice_codes, compared_codes=args.compared_codes)
    text = ""
    for report in measure(sizes, args.device, args.parts):
        text = json.dumps(report, indent=1)
        if args.out:
            args.out.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)


def measure(
    sizes: Sizes, device: torch.device, parts: Sequence[str] = PARTS
) -> Iterator[dict[str, Any]]:
    """The figures of these parts so far, after each; float16 on a GPU, float32 elsewhere."""
    print("making random weights", flush=True)
    weights = Parts(sizes, device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "weights": "random, seed "
                   "0", "voice_codes": sizes.voice_codes, "history_codes": sizes.history_codes,
    }  # fmt: skip
    found = {
        "memory": memory,
        "speed": functools.partial(speed, dtype=dtype),
        "rounding": rounding,
        "history": history,
    }
    for part in PARTS:
        if part in parts:
            start_s = time.perf_counter()
            report |= found[part](weights)
            print(f"{part} measured in {time.perf_counter() - start_s:.0f} s", flush=True)
            yield report


def speed(weights: Parts, dtype: torch.dtype) -> dict[str, Any]:
    """Everything that somebody waits for."""
    sizes, device = weights.sizes, weights.device
    start_s = time.perf_counter()
    codec = weights.codec(dtype, max(sizes.streams))
    report: dict[str, Any] = {
        "number_format": str(dtype).removeprefix("torch."),
        "codes_of_a_reply": sizes.reply_codes,
        "ready_s": round(time.perf_counter() - start_s, 2),
    }
    start_s = time.perf_counter()
    codec.open_stream()
    settle(device)
    report["prompt_of_a_voice_once_ms"] = round((time.perf_counter() - start_s) * 1e3, 1)
    wave = np.random.RandomState(0).standard_normal(160_000).astype(np.float32) * 0.1
    times = []
    for _ in range(sizes.repeats + 2):
        start_s = time.perf_counter()
        codec.encode(wave, 16_000)
        times.append((time.perf_counter() - start_s) * 1e3)
    report["encode_10_s_p50_ms"] = round(statistics.median(times[2:]), 2)
    report |= first_sound(codec, sizes.repeats)
    for streams in sizes.streams:
        report |= {
            f"chunk_of_{streams}_{name}": value
            for name, value in speak(codec, streams, sizes).items()
        }
        print(
            {
                name: value
                for name, value in report.items()
                if name.startswith(f"chunk_of_{streams}_")
            },
            flush=True,
        )
    if device.type == "cuda":
        report["reserved_on_the_device_mb"] = round(torch.cuda.memory_reserved() / 1e6)
    return report


def settle(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def first_sound(codec: MossCodec, repeats: int) -> dict[str, float]:
    """Latency of the first samples after 8 codes, 0 or 3 of which were pushed earlier."""
    codes = list(range(8))
    times: dict[str, list[float]] = {"all_at_once": [], "three_earlier": []}
    for _ in range(repeats + 2):
        for name, before in (("all_at_once", 0), ("three_earlier", 3)):
            stream = codec.open_stream()
            stream.push(codes[:before])
            settle(codec.flow.noise.device)
            start_s = time.perf_counter()
            assert len(stream.push(codes[before:])) == 5760, (
                "12 frames are final after the first 8 codes"
            )
            times[name].append((time.perf_counter() - start_s) * 1e3)
    return {
        f"first_sound_of_8_codes_{name}_ms": round(statistics.median(values[2:]), 2)
        for name, values in times.items()
    }


def speak(codec: MossCodec, streams: int, sizes: Sizes) -> dict[str, Any]:
    """Whole replies, `streams` at a time: times of chunks, and of the first and last tenth."""
    random = np.random.RandomState(1)
    open_ = [codec.open_stream() for _ in range(streams)]
    replies = [random.randint(0, sizes.num_codes, sizes.reply_codes).tolist() for _ in open_]
    begun = 8 + CHUNK_CODES  # the first two chunks give less sound than they take codes
    for part in (slice(8), slice(8, begun)):
        codec.push_together(
            [(stream, reply[part]) for stream, reply in zip(open_, replies, strict=True)]
        )
    times, samples = [], 0
    for at in range(begun, sizes.reply_codes - CHUNK_CODES + 1, CHUNK_CODES):
        work = [
            (stream, reply[at : at + CHUNK_CODES])
            for stream, reply in zip(open_, replies, strict=True)
        ]
        start_s = time.perf_counter()
        waves = codec.push_together(work)
        times.append((time.perf_counter() - start_s) * 1e3)
        samples += len(waves[0])
    assert samples == len(times) * CHUNK_CODES * 1920, (
        "every chunk gives as much sound as it takes codes"
    )
    start_s = time.perf_counter()
    codec.flush_together(open_)
    flush_ms = (time.perf_counter() - start_s) * 1e3
    tenth, ordered = max(1, len(times) // 10), sorted(times)
    return {
        "p50_ms": round(statistics.median(times), 2),
        "p95_ms": round(ordered[int(0.95 * (len(times) - 1))], 2),
        "worst_ms": round(ordered[-1], 2),
        "first_tenth_p50_ms": round(statistics.median(times[:tenth]), 2),
        "last_tenth_p50_ms": round(statistics.median(times[-tenth:]), 2),
        "flush_ms": round(flush_ms, 2),
    }


if __name__ == "__main__":
    main()
