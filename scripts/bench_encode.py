"""Time the speech encoder at its published size with random weights: `python -m scripts.bench_encode --device cuda`.

Wall time of whole calls: from samples in the program's memory at 44.1 kHz to codes in a list. Agreement is the share of
codes that a 16-bit encoder gives as the float32 one does; with random weights, neighbouring codebook rows lie closer
than trained ones.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from moss_engine.codec.whisper_config import WhisperVqConfig, expected_tensors
from moss_engine.codec.whisper_vq import WhisperVq, build_whisper_vq
from scripts.make_tiny_encoder import PUBLISHED_CONFIG, TINY_CONFIG

RATE_HZ = 44_100
DURATIONS_S = (4.0, 10.0, 30.0)
STREAMS = 16


def measure_encode(device: torch.device | str, *, runs: int = 20, tiny: bool = False) -> dict[str, Any]:
    """One figure or mapping for each name; milliseconds are medians and the slowest of `runs` calls."""
    config = WhisperVqConfig.from_dict(TINY_CONFIG if tiny else PUBLISHED_CONFIG, source="published")
    tensors = random_tensors(config, device)
    exact = build_whisper_vq(config, tensors, device, torch.float32)
    wave = speech(10.0)
    wanted = np.array(exact.encode(wave, RATE_HZ))
    results: dict[str, Any] = {"float32": {"encode_10_s_ms": timed(exact, [wave], runs)}}
    del exact
    for dtype in (torch.bfloat16, torch.float16):
        encoder = build_whisper_vq(config, tensors, device, dtype)
        figures: dict[str, Any] = {f"encode_{s:g}_s_ms": timed(encoder, [speech(s)], runs) for s in DURATIONS_S}
        figures[f"encode_{STREAMS}_x_4_s_ms"] = timed(encoder, [speech(4.0)] * STREAMS, runs)
        figures["same_codes"] = float((np.array(encoder.encode(wave, RATE_HZ)) == wanted).mean())
        figures["weight_mb"] = sum(t.numel() * t.element_size() for t in encoder.tensors()) / 1e6
        results[str(dtype).removeprefix("torch.")] = figures
    return results


def random_tensors(config: WhisperVqConfig, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Weights of the usual size for each kind, made on the device."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        values = torch.randn(shape, generator=generator, device=device)
        is_norm = "norm" in name and name.endswith("weight")
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 and "embed" not in name and "codebook" not in name else 4
        tensors[name] = 1 + 0.1 * values if is_norm else values * fan_in**-0.5
    return tensors


def speech(duration_s: float) -> np.ndarray:
    """float32 [samples] at 44.1 kHz of something that rises, falls and hisses."""
    seconds = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    phase = 2 * np.pi * (140 * seconds + 6 * np.sin(5 * seconds))
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(7 * seconds) > -0.4)
    return (0.1 * tone + 0.02 * np.random.RandomState(0).standard_normal(len(seconds))).astype(np.float32)


def timed(encoder: WhisperVq, waves: list[np.ndarray], runs: int) -> list[float]:
    """Median and slowest, in ms; the codes are on the host when a call returns, so nothing is still running."""
    sounds = [(wave, RATE_HZ) for wave in waves]
    for _ in range(3):
        encoder.encode_together(sounds)
    times_ms = []
    for _ in range(runs):
        start = time.perf_counter()
        encoder.encode_together(sounds)
        times_ms.append((time.perf_counter() - start) * 1e3)
    return [round(float(np.median(times_ms)), 2), round(max(times_ms), 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder, to try the command")
    args = parser.parse_args()
    print(json.dumps(measure_encode(args.device, runs=args.runs, tiny=args.tiny)))


if __name__ == "__main__":
    main()
