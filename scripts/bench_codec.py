"""Speed, memory and rounding of the MOSS-Speech codec at its published size, with random weights, on one GPU.

python -m scripts.bench_codec [--out FILE.json]

A chunk is 5 codes of each reply, 400 ms of sound, through flow and vocoder to samples on the host. Replies of 60 s are
spoken to the end, so that a cost that grew with their length would show.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.cuda_flow import CudaFlow
from moss_engine.codec.cuda_hift import CudaHift
from moss_engine.codec.flow_config import FlowConfig
from moss_engine.codec.flow_weights import pack_flow
from moss_engine.codec.hift_config import HiftConfig
from moss_engine.codec.hift_stream import Hift
from moss_engine.codec.hift_weights import pack_hift
from moss_engine.codec.mel_vocoder import HiftVocoder, MelVocoder, Work
from moss_engine.codec.moss import HISTORY_CODES, MossCodec
from moss_engine.codec.moss_layout import CHUNK_CODES
from moss_engine.codec.voice import SPEAKER_DIM, Voice
from moss_engine.codec.whisper_config import WhisperVqConfig, expected_tensors
from moss_engine.codec.whisper_vq import WhisperVq, build_whisper_vq
from moss_engine.errors import ConfigError
from scripts.bench_timing import figure, wall_times_ms
from scripts.make_tiny_encoder import PUBLISHED_CONFIG
from scripts.make_tiny_moss import random_flow, random_hift

NUM_CODES = 16_384
VOICE_CODES = 60
REPLY_CODES = 750
STREAMS = (1, 4, 8, 16)
COMPARED_CODES = 100
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the figures there as JSON")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise ConfigError("scripts.bench_codec measures a GPU, and this machine has none.")
    report = measure(torch.device("cuda"))
    text = json.dumps(report, indent=1)
    print(text, flush=True)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


def measure(device: torch.device) -> dict[str, Any]:
    """Every figure of a codec in float16, then how float16 and bfloat16 differ from float32."""
    print("making random weights", flush=True)
    flow, hift, voice = random_flow(FlowConfig()), random_hift(HiftConfig()), random_voice()
    torch.cuda.reset_peak_memory_stats()
    encoder = random_encoder(device, torch.float16)
    start_s = time.perf_counter()
    codec = make_codec(flow, hift, encoder, voice, device, torch.float16)
    ready_s = time.perf_counter() - start_s
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "weights": "random, seed 0",
        "number_format": "float16", "voice_codes": VOICE_CODES, "history_codes": HISTORY_CODES,
        "codes_of_a_reply": REPLY_CODES, "capturing_graphs_s": round(ready_s, 2),
    }  # fmt: skip
    start_s = time.perf_counter()
    with torch.inference_mode():
        codec.open_stream()
    torch.cuda.synchronize()
    report["prompt_of_a_voice_once_ms"] = round((time.perf_counter() - start_s) * 1e3, 1)
    report |= memory(codec)
    wave = np.random.RandomState(0).standard_normal(160_000).astype(np.float32) * 0.1
    times = figure("encode", wall_times_ms(lambda: codec.encode(wave, 16_000), 20))
    report |= {"encode_10_s_p50_ms": round(times.median_ms, 2), "encode_10_s_p90_ms": round(times.p90_ms, 2)}
    report |= first_sound(codec)
    for streams in STREAMS:
        report |= {f"chunk_of_{streams}_{name}": value for name, value in speak(codec, streams).items()}
        print({name: value for name, value in report.items() if name.startswith(f"chunk_of_{streams}_")}, flush=True)
    return report | rounding(flow, hift, encoder, voice, device)


def make_codec(flow: dict[str, Tensor], hift: dict[str, Tensor], encoder: WhisperVq, voice: Voice,
               device: torch.device, dtype: torch.dtype, max_together: int = max(STREAMS)) -> MossCodec:
    """The codec as `load_moss_codec` joins it, from tensors."""
    weights, vocoder = pack_flow(flow, FlowConfig(), device, dtype), pack_hift(hift, HiftConfig(), device)
    frames = CHUNK_CODES * weights.config.ratio
    return MossCodec(encoder, weights, HiftVocoder(Hift(vocoder, CudaHift(vocoder, frames, max_together))), [voice],
                     num_codes=NUM_CODES, run=CudaFlow(weights, CHUNK_CODES, max_together), max_together=max_together)


def random_voice() -> Voice:
    random = np.random.RandomState(0)
    mel = torch.from_numpy(random.standard_normal((80, 4 * VOICE_CODES)).astype(np.float32)) * 2 - 5
    return Voice("random", tuple(random.randint(0, NUM_CODES, VOICE_CODES).tolist()), mel,
                 torch.from_numpy(random.standard_normal(SPEAKER_DIM).astype(np.float32)))


def random_encoder(device: torch.device, dtype: torch.dtype) -> WhisperVq:
    config = WhisperVqConfig.from_dict(PUBLISHED_CONFIG, source="published")
    generator = torch.Generator(device).manual_seed(0)

    def values(name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.randn(shape, generator=generator, device=device)
        if "norm" in name:
            return 0.1 * tensor + name.endswith("weight")
        return tensor * (0.1 if len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5)

    tensors = {name: values(name, shape) for name, shape in expected_tensors(config).items()}
    return build_whisper_vq(config, tensors, device, dtype)


def first_sound(codec: MossCodec) -> dict[str, float]:
    """From 8 codes at hand to the first samples on the host; also where 3 of them had been pushed before."""
    codes = list(range(8))
    times: dict[str, list[float]] = {"all_at_once": [], "three_earlier": []}
    for _ in range(12):
        for name, before in (("all_at_once", 0), ("three_earlier", 3)):
            stream = codec.open_stream()
            stream.push(codes[:before])
            torch.cuda.synchronize()
            start_s = time.perf_counter()
            assert len(stream.push(codes[before:])) == 5760, "12 frames are final after the first 8 codes"
            times[name].append((time.perf_counter() - start_s) * 1e3)
    return {f"first_sound_of_8_codes_{name}_ms": round(statistics.median(values[2:]), 2)
            for name, values in times.items()}


def speak(codec: MossCodec, streams: int) -> dict[str, Any]:
    """Replies of 60 s, `streams` at a time in step: times of their chunks, and of the first and last tenth of them."""
    random = np.random.RandomState(1)
    open_ = [codec.open_stream() for _ in range(streams)]
    replies = [random.randint(0, NUM_CODES, REPLY_CODES).tolist() for _ in open_]
    codec.push_together([(stream, reply[:8]) for stream, reply in zip(open_, replies, strict=True)])
    times, samples = [], 0
    for at in range(8, REPLY_CODES - 2, CHUNK_CODES):
        work = [(stream, reply[at : at + CHUNK_CODES]) for stream, reply in zip(open_, replies, strict=True)]
        start_s = time.perf_counter()
        waves = codec.push_together(work)
        times.append((time.perf_counter() - start_s) * 1e3)
        samples += len(waves[0])
    assert samples == len(times) * CHUNK_CODES * 1920, "every chunk gives as much sound as it takes codes"
    start_s = time.perf_counter()
    codec.flush_together(open_)
    flush_ms = (time.perf_counter() - start_s) * 1e3
    tenth = len(times) // 10
    ordered = sorted(times)
    return {"p50_ms": round(statistics.median(times), 2), "p95_ms": round(ordered[int(0.95 * len(ordered))], 2),
            "worst_ms": round(ordered[-1], 2), "first_tenth_p50_ms": round(statistics.median(times[:tenth]), 2),
            "last_tenth_p50_ms": round(statistics.median(times[-tenth:]), 2), "flush_ms": round(flush_ms, 2)}


def memory(codec: MossCodec) -> dict[str, float]:
    """All that PyTorch holds with one voice, without replies and with one."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    idle = torch.cuda.memory_allocated() / 1e6
    stream = codec.open_stream()
    stream.push(list(range(18)))
    one = torch.cuda.memory_allocated() / 1e6
    return {"memory_without_replies_mb": round(idle), "memory_with_a_reply_mb": round(one),
            "memory_reserved_mb": round(torch.cuda.memory_reserved() / 1e6)}


class Listener:
    """A vocoder that keeps the mel it is given."""

    def __init__(self, vocoder: MelVocoder) -> None:
        self.open, self._speak = vocoder.open, vocoder.speak
        self.mels: list[Tensor] = []

    def speak(self, work: Sequence[Work]) -> list[tuple[Tensor, Any]]:
        self.mels += [one.mel for one in work]
        return self._speak(work)


def rounding(flow: dict[str, Tensor], hift: dict[str, Tensor], encoder: WhisperVq, voice: Voice,
             device: torch.device) -> dict[str, Any]:
    """Mel and wave of one reply in each 16-bit format against float32: relative root mean square."""
    codes = np.random.RandomState(2).randint(0, NUM_CODES, COMPARED_CODES).tolist()
    results: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
    for dtype in DTYPES:
        codec = make_codec(flow, hift, encoder, voice, device, dtype, max_together=1)
        codec.vocoder = listener = Listener(codec.vocoder)
        stream = codec.open_stream()
        wave = np.concatenate([*(stream.push(codes[i : i + 5]) for i in range(0, len(codes), 5)), stream.flush()])
        results[dtype] = torch.cat(listener.mels, 1), torch.from_numpy(wave)
    found = {}
    for dtype in DTYPES[1:]:
        for part, value, wanted in zip(("mel", "wave"), results[dtype], results[torch.float32], strict=True):
            share = float((value - wanted).norm() / wanted.norm())
            name = f"{part}_in_{str(dtype).removeprefix('torch.')}_against_float32"
            found |= {f"{name}_rms": round(share, 5), f"{name}_db": round(20 * math.log10(share), 1)}
    return found


if __name__ == "__main__":
    main()
