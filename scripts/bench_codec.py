"""Speed, memory and rounding of the MOSS-Speech codec at its published size, with random weights.

python -m scripts.bench_codec [--parts memory,speed,rounding,history] [--device cpu] [--out FILE.json]

A chunk is 5 codes of each reply, 400 ms of sound, through flow and vocoder to samples on the host. Replies of 60 s are
spoken to the end, so that a cost that grew with their length would show. Memory is that of the tensors that the codec
keeps; rounding compares 16-bit formats with float32, history a reply's mel with that of a codec that forgets nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.cuda_flow import CudaFlow
from moss_engine.codec.flow import OUTSIDE, Chunk, flow_voice, prompt_memory, run_chunks
from moss_engine.codec.flow_config import FlowConfig
from moss_engine.codec.flow_encoder import LOOK_BACK
from moss_engine.codec.flow_memory import FlowMemory
from moss_engine.codec.flow_weights import pack_flow
from moss_engine.codec.hift_config import HiftConfig
from moss_engine.codec.hift_weights import pack_hift
from moss_engine.codec.mel import log_mel
from moss_engine.codec.mel_vocoder import MelVocoder, Work
from moss_engine.codec.moss import HISTORY_CODES, MossCodec
from moss_engine.codec.moss_layout import CHUNK_CODES
from moss_engine.codec.moss_load import hift_vocoder
from moss_engine.codec.voice import SPEAKER_DIM, Voice
from moss_engine.codec.whisper_config import WhisperVqConfig, expected_tensors
from moss_engine.codec.whisper_vq import WhisperVq, build_whisper_vq
from scripts.make_tiny_encoder import PUBLISHED_CONFIG
from scripts.make_tiny_moss import random_flow, random_hift

PARTS = ("memory", "speed", "rounding", "history")
NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are the published codec's, and replies of 60 s."""

    flow: FlowConfig = FlowConfig()
    hift: HiftConfig = HiftConfig()
    encoder: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(PUBLISHED_CONFIG))
    voice_codes: int = 60
    reply_codes: int = 750
    compared_codes: int = 100
    history_codes: int = HISTORY_CODES
    streams: tuple[int, ...] = (1, 4, 8, 16)
    repeats: int = 20

    @property
    def num_codes(self) -> int:
        return int(self.encoder["quantize_vocab_size"])


class Parts:
    """Random weights, made once, and codecs of them in any number format."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.flow, self.hift = random_flow(sizes.flow), random_hift(sizes.hift)
        random = np.random.RandomState(0)
        codes = random.randint(0, sizes.num_codes, sizes.voice_codes).tolist()
        mel = torch.from_numpy(random.standard_normal((80, 4 * sizes.voice_codes)).astype(np.float32)) * 2 - 5
        self.voice = Voice("random", tuple(codes), mel,
                           torch.from_numpy(random.standard_normal(SPEAKER_DIM).astype(np.float32)))

    def codec(self, dtype: torch.dtype, max_together: int) -> MossCodec:
        """As `load_moss_codec` joins one."""
        weights = pack_flow(self.flow, self.sizes.flow, self.device, dtype)
        vocoder = hift_vocoder(pack_hift(self.hift, self.sizes.hift, self.device), self.sizes.flow, max_together)
        run = CudaFlow(weights, CHUNK_CODES, max_together) if self.device.type == "cuda" else run_chunks
        return MossCodec(self.encoder(dtype), weights, vocoder, [self.voice], num_codes=self.sizes.num_codes, run=run,
                         max_together=max_together)

    def encoder(self, dtype: torch.dtype) -> WhisperVq:
        """The speech encoder alone."""
        config = WhisperVqConfig.from_dict(self.sizes.encoder, source="the bench")
        generator = torch.Generator(self.device).manual_seed(0)

        def values(name: str, shape: tuple[int, ...]) -> Tensor:
            tensor = torch.randn(shape, generator=generator, device=self.device)
            if "norm" in name:
                return 0.1 * tensor + name.endswith("weight")
            return tensor * (0.1 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5)

        tensors = {name: values(name, shape) for name, shape in expected_tensors(config).items()}
        return build_whisper_vq(config, tensors, self.device, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda text: tuple(text.split(",")))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    parser.add_argument("--voice-codes", type=int, default=Sizes.voice_codes, help="codes of the voice's sample (60)")
    parser.add_argument("--compared-codes", type=int, default=Sizes.compared_codes,
                        help="codes of the reply that rounding is measured on (100)")
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


def measure(sizes: Sizes, device: torch.device, parts: Sequence[str] = PARTS) -> Iterator[dict[str, Any]]:
    """The figures of these parts so far, after each; speed in float16 on a GPU, in float32 elsewhere."""
    print("making random weights", flush=True)
    weights = Parts(sizes, device)
    kind = torch.float16 if device.type == "cuda" else torch.float32
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU", "torch": torch.__version__,
        "weights": "random, seed 0", "voice_codes": sizes.voice_codes, "history_codes": sizes.history_codes,
    }  # fmt: skip
    found = {"memory": memory, "speed": functools.partial(speed, kind=kind), "rounding": rounding, "history": history}
    for part in PARTS:
        if part in parts:
            start_s = time.perf_counter()
            report |= found[part](weights)
            print(f"{part} measured in {time.perf_counter() - start_s:.0f} s", flush=True)
            yield report


def speed(weights: Parts, kind: torch.dtype) -> dict[str, Any]:
    """Everything that somebody waits for."""
    sizes, device = weights.sizes, weights.device
    start_s = time.perf_counter()
    codec = weights.codec(kind, max(sizes.streams))
    report: dict[str, Any] = {"number_format": str(kind).removeprefix("torch."), "codes_of_a_reply": sizes.reply_codes,
                              "ready_s": round(time.perf_counter() - start_s, 2)}
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
        report |= {f"chunk_of_{streams}_{name}": value for name, value in speak(codec, streams, sizes).items()}
        print({name: value for name, value in report.items() if name.startswith(f"chunk_of_{streams}_")}, flush=True)
    if device.type == "cuda":
        report["reserved_on_the_device_mb"] = round(torch.cuda.memory_reserved() / 1e6)
    return report


def settle(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def first_sound(codec: MossCodec, repeats: int) -> dict[str, float]:
    """From 8 codes at hand to the first samples on the host; also where 3 of them had been pushed before."""
    codes = list(range(8))
    times: dict[str, list[float]] = {"all_at_once": [], "three_earlier": []}
    for _ in range(repeats + 2):
        for name, before in (("all_at_once", 0), ("three_earlier", 3)):
            stream = codec.open_stream()
            stream.push(codes[:before])
            settle(codec.flow.noise.device)
            start_s = time.perf_counter()
            assert len(stream.push(codes[before:])) == 5760, "12 frames are final after the first 8 codes"
            times[name].append((time.perf_counter() - start_s) * 1e3)
    return {f"first_sound_of_8_codes_{name}_ms": round(statistics.median(values[2:]), 2)
            for name, values in times.items()}


def speak(codec: MossCodec, streams: int, sizes: Sizes) -> dict[str, Any]:
    """Whole replies, `streams` at a time in step: times of their chunks, and of the first and last tenth of them."""
    random = np.random.RandomState(1)
    open_ = [codec.open_stream() for _ in range(streams)]
    replies = [random.randint(0, sizes.num_codes, sizes.reply_codes).tolist() for _ in open_]
    codec.push_together([(stream, reply[:8]) for stream, reply in zip(open_, replies, strict=True)])
    times, samples = [], 0
    for at in range(8, sizes.reply_codes - CHUNK_CODES + 1, CHUNK_CODES):
        work = [(stream, reply[at : at + CHUNK_CODES]) for stream, reply in zip(open_, replies, strict=True)]
        start_s = time.perf_counter()
        waves = codec.push_together(work)
        times.append((time.perf_counter() - start_s) * 1e3)
        samples += len(waves[0])
    assert samples == len(times) * CHUNK_CODES * 1920, "every chunk gives as much sound as it takes codes"
    start_s = time.perf_counter()
    codec.flush_together(open_)
    flush_ms = (time.perf_counter() - start_s) * 1e3
    tenth, ordered = max(1, len(times) // 10), sorted(times)
    return {"p50_ms": round(statistics.median(times), 2), "p95_ms": round(ordered[int(0.95 * (len(times) - 1))], 2),
            "worst_ms": round(ordered[-1], 2), "first_tenth_p50_ms": round(statistics.median(times[:tenth]), 2),
            "last_tenth_p50_ms": round(statistics.median(times[-tenth:]), 2), "flush_ms": round(flush_ms, 2)}


def memory(weights: Parts) -> dict[str, float]:
    """Megabytes of the tensors of the codec in float16: of its parts, of a voice's prompt, and of a reply in it."""
    flow = pack_flow(weights.flow, weights.sizes.flow, torch.device("cpu"), torch.float16)
    hift = pack_hift(weights.hift, weights.sizes.hift, torch.device("cpu"))
    prompt_chunks = weights.sizes.voice_codes // CHUNK_CODES - 1
    prompt = FlowMemory(flow, CHUNK_CODES, prompt_chunks)
    reply = FlowMemory(flow, CHUNK_CODES, weights.sizes.history_codes // CHUNK_CODES + 1, prompt)
    parts = {"encoder": sum(map(num_bytes, weights.encoder(torch.float16).tensors())),
             "flow": num_bytes(flow), "hift": num_bytes(hift), "voice": prompt.num_bytes, "reply": reply.num_bytes}
    found = {f"float16_{name}_mb": round(size / 1e6, 1) for name, size in parts.items()}
    return found | {"float16_one_voice_one_reply_mb": round(sum(parts.values()) / 1e6, 1)}


def num_bytes(value: Any) -> int:
    """Bytes of all tensors in a value of dataclasses and tuples."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if dataclasses.is_dataclass(value):
        return sum(num_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return sum(num_bytes(inner) for inner in value) if isinstance(value, tuple) else 0


class Listener:
    """A vocoder that keeps the mel it is given."""

    def __init__(self, vocoder: MelVocoder) -> None:
        self.open, self._speak = vocoder.open, vocoder.speak
        self.mels: list[Tensor] = []

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, Any]]:
        self.mels += [one.mel for one in work]
        return self._speak(work)


def rounding(weights: Parts) -> dict[str, Any]:
    """Mel and wave of one reply in each 16-bit format against float32, and the wave's own log-mel, which does not hear
    its phase: relative root mean square."""
    sizes = weights.sizes
    codes = np.random.RandomState(2).randint(0, sizes.num_codes, sizes.compared_codes).tolist()
    results: dict[torch.dtype, dict[str, Tensor]] = {}
    for dtype in (torch.float32, *NARROW):
        codec = weights.codec(dtype, 1)
        codec.vocoder = listener = Listener(codec.vocoder)
        stream = codec.open_stream()
        wave = torch.from_numpy(np.concatenate([*(stream.push(codes[i : i + 5]) for i in range(0, len(codes), 5)),
                                                stream.flush()]))
        results[dtype] = {"mel": torch.cat(listener.mels, 1), "wave": wave, "log_mel_of_wave": log_mel(wave, MOSS_MEL)}
    found: dict[str, Any] = {"compared_codes": sizes.compared_codes}
    for dtype in NARROW:
        for part, wanted in results[torch.float32].items():
            share = float((results[dtype][part] - wanted).norm() / wanted.norm())
            name = f"{part}_in_{str(dtype).removeprefix('torch.')}_against_float32"
            found |= {f"{name}_rms": round(share, 5), f"{name}_db": round(20 * math.log10(share), 1)}
    return found


def history(weights: Parts) -> dict[str, Any]:
    """Mel of a reply that looks back to `history_codes` against that of one that looks back to all, in float32:
    relative root mean square of the frames whose past differs."""
    sizes, voice = weights.sizes, weights.voice
    flow = pack_flow(weights.flow, sizes.flow, weights.device, torch.float32)
    of_flow = flow_voice(flow, voice.codes, voice.mel, voice.speaker)
    prompt = prompt_memory(flow, of_flow, CHUNK_CODES)
    reply = np.random.RandomState(2).randint(0, sizes.num_codes, sizes.compared_codes).tolist()
    row = [*of_flow.codes.tolist()[-CHUNK_CODES - LOOK_BACK :], *reply, *[OUTSIDE] * sizes.flow.look_ahead]
    mels = []
    for kept in (sizes.history_codes, sizes.compared_codes + CHUNK_CODES):
        memory, made = FlowMemory(flow, CHUNK_CODES, kept // CHUNK_CODES + 1, prompt), []
        for at in range(0, sizes.compared_codes, CHUNK_CODES):
            window = tuple(row[at : at + LOOK_BACK + CHUNK_CODES + sizes.flow.look_ahead])
            condition = of_flow.mel[-CHUNK_CODES * sizes.flow.ratio :] if at == 0 else None
            made.append(run_chunks(flow, [Chunk(memory, of_flow, window, condition)])[0])
        mels.append(torch.cat(made)[sizes.history_codes * sizes.flow.ratio :])
    share = float((mels[0] - mels[1]).norm() / mels[1].norm())
    return {"compared_codes": sizes.compared_codes, "mel_with_bounded_history_rms": round(share, 5)}


if __name__ == "__main__":
    main()
