"""Speed and memory of the codec alone, at its published size with random weights.

A chunk is 5 codes of each reply, 400 ms of sound, to samples on the host. Replies of 60 s are
spoken to the end, so that a cost that grew with their length would show. Memory is that of the
tensors that the published codec keeps in float16; --memory measures it alone, without a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.base import Push, SpeechCodec
from moss_engine.codec.moss.flow.network import FlowMemory
from moss_engine.codec.moss.flow.weights import pack_flow
from moss_engine.codec.moss.load import CHUNK_CODES
from moss_engine.codec.vocoder.hift.weights import pack_hift
from moss_engine.runtime.make import resolve_device
from scripts.bench.common import Report, count, whole_numbers
from scripts.bench.gpu import device_values
from scripts.bench.random_weights import Parts, Sizes

FIRST_CODES = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="auto", help="cpu or cuda (a GPU when there is one)")
    add("--memory", action="store_true", help="the memory alone")
    add("--streams", type=whole_numbers, default=[1, 4, 8, 16], metavar="N,...",
        help="replies at a time (1,4,8,16)")  # fmt: skip
    add("--codes", type=count, default=750, metavar="N", help="codes of a reply (750: 60 s)")
    add("--repeats", type=count, default=20, metavar="N", help="of first sounds (20)")


def run(args: argparse.Namespace, report: Report, sizes: Sizes | None = None) -> None:
    device, sizes = resolve_device(args.device), sizes or Sizes()
    report.add(**device_values(device))
    report.say("making random weights")
    weights = Parts(sizes, device)
    report.add(voice_codes=sizes.voice_codes, history_codes=sizes.history_codes)
    report.add(**memory(weights))
    if args.memory:
        return
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    start_s = time.perf_counter()
    codec = weights.codec(dtype, max(args.streams))
    report.add(
        number_format=str(dtype).removeprefix("torch."),
        ready_s=round(time.perf_counter() - start_s, 2),
    )
    wave = np.random.RandomState(0).standard_normal(160_000).astype(np.float32) * 0.1
    times = [timed_ms(lambda: codec.encode(wave, 16_000), device) for _ in range(args.repeats + 2)]
    report.add(encode_10_s_p50_ms=round(statistics.median(times[2:]), 2))
    speak(codec, args, report, device)


def memory(weights: Parts) -> dict[str, float]:
    """Megabytes of the codec's tensors in float16: its parts, a voice's prompt, a reply."""
    flow = pack_flow(weights.flow, weights.sizes.flow, torch.device("cpu"), torch.float16)
    hift = pack_hift(weights.hift, weights.sizes.hift, torch.device("cpu"))
    prompt_chunks = weights.sizes.voice_codes // CHUNK_CODES - 1
    prompt = FlowMemory(flow, CHUNK_CODES, prompt_chunks)
    reply = FlowMemory(flow, CHUNK_CODES, weights.sizes.history_codes // CHUNK_CODES + 1, prompt)
    parts = {
        "encoder": sum(map(num_bytes, weights.encoder(torch.float16).tensors())),
        "flow": num_bytes(flow),
        "hift": num_bytes(hift),
        "voice": prompt.num_bytes,
        "reply": reply.num_bytes,
    }
    found = {f"float16_{name}_mb": round(size / 1e6, 1) for name, size in parts.items()}
    return found | {"float16_one_voice_one_reply_mb": round(sum(parts.values()) / 1e6, 1)}


def num_bytes(value: Any) -> int:
    """Bytes of all tensors in a value of dataclasses and tuples."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if dataclasses.is_dataclass(value):
        return sum(num_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return sum(num_bytes(inner) for inner in value) if isinstance(value, tuple) else 0


def timed_ms(work: Any, device: torch.device) -> float:
    """Of one call, the device idle before and after."""
    settle(device)
    start_s = time.perf_counter()
    work()
    settle(device)
    return (time.perf_counter() - start_s) * 1e3


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speak(
    codec: SpeechCodec, args: argparse.Namespace, report: Report, device: torch.device
) -> None:
    """The first sound of one reply, and whole replies, some at a time."""
    times = []
    for _ in range(args.repeats + 2):
        stream = codec.open_stream()
        times.append(timed_ms(lambda: stream.push(list(range(FIRST_CODES))), device))  # noqa: B023
    report.add(first_sound_of_8_codes_ms=round(statistics.median(times[2:]), 2))
    report.add(codes_of_a_reply=args.codes)
    for streams in args.streams:
        found = spoken(codec, streams, args.codes)
        report.say(f"{streams} at a time: {found}")
        report.add(**{f"chunk_of_{streams}_{name}": value for name, value in found.items()})


def spoken(codec: SpeechCodec, streams: int, num_codes: int) -> dict[str, Any]:
    """Whole replies, `streams` at a time: times of chunks, and of the first and last tenth."""
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
