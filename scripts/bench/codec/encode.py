"""Time the speech encoder at its published size: `python -m scripts.bench.codec.encode`.

Wall time of whole calls: from samples in the program's memory at 44.1 kHz to codes in a list.
Agreement is the share of codes that a 16-bit encoder gives as the float32 one does, with codebook
rows scattered around the network's points.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from scripts.bench.common.random_codec import PUBLISHED_CONFIG, TINY_CONFIG

from moss_engine.codec.moss.whisper import (
    WhisperVq,
    WhisperVqConfig,
    build_whisper_vq,
    expected_tensors,
    to_16_khz,
    whisper_features,
)

RATE_HZ = 44_100
DURATIONS_S = (4.0, 10.0, 30.0)
STREAMS = 16
RUNS = 30
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def measure_encode(
    device: torch.device | str, *, runs: int = RUNS, tiny: bool = False
) -> dict[str, float]:
    """Figures by name: ms are medians of `runs` calls, or the slowest where the name says so."""
    config = WhisperVqConfig.from_dict(
        TINY_CONFIG if tiny else PUBLISHED_CONFIG, source="published"
    )
    tensors = random_tensors(config, device)
    figures: dict[str, float] = {}
    for dtype in DTYPES:
        encoder, name = (
            build_whisper_vq(config, tensors, device, dtype),
            str(dtype).removeprefix("torch."),
        )
        figures[f"weights,_{name}_mb"] = round(
            sum(t.numel() * t.element_size() for t in encoder.tensors()) / 1e6
        )
        for duration_s in DURATIONS_S:
            median_ms, slowest_ms = timed(encoder, [speech(duration_s)], runs)
            figures[f"encode_{duration_s:g}_s,_{name}_ms"] = median_ms
            figures[f"encode_{duration_s:g}_s,_{name},_slowest_ms"] = slowest_ms
        figures[f"encode_{STREAMS}_times_4_s_together,_{name}_ms"] = timed(
            encoder, [speech(4.0)] * STREAMS, runs
        )[0]
    return figures


def measure_agreement(
    device: torch.device | str, *, duration_s: float = 4.0, tiny: bool = False
) -> dict[str, float]:
    """Share of codes that 16 bits leave as they are, over three sounds of `duration_s`."""
    config = WhisperVqConfig.from_dict(
        TINY_CONFIG if tiny else PUBLISHED_CONFIG, source="published"
    )
    tensors = random_tensors(config, device)
    spread_codebook(config, tensors, device, duration_s)
    waves = [speech(duration_s, pitch_hz) for pitch_hz in (110, 150, 205)]
    codes = {}
    for dtype in DTYPES:
        encoder = build_whisper_vq(config, tensors, device, dtype)
        codes[dtype] = np.array([encoder.encode(wave, RATE_HZ) for wave in waves])
    wanted = codes.pop(torch.float32)
    figures: dict[str, float] = {
        "codes_compared": wanted.size,
        "different_ones_among_them": len(np.unique(wanted)),
    }
    return figures | {
        f"codes_as_in_float32,_{str(dtype).removeprefix('torch.')}_percent": round(
            100 * float((found == wanted).mean()), 2
        )
        for dtype, found in codes.items()
    }


def random_tensors(config: WhisperVqConfig, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Weights of the usual size for each kind, made on the device."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        values = torch.randn(shape, generator=generator, device=device)
        is_norm = "norm" in name and name.endswith("weight")
        fan_in = (
            int(np.prod(shape[1:]))
            if len(shape) > 1 and "embed" not in name and "codebook" not in name
            else 4
        )
        tensors[name] = 1 + 0.1 * values if is_norm else values * fan_in**-0.5
    return tensors


@torch.inference_mode()
def spread_codebook(
    config: WhisperVqConfig,
    tensors: dict[str, torch.Tensor],
    device: torch.device | str,
    duration_s: float,
) -> None:
    """Spread codebook rows over the network's outputs, as training does."""
    network = build_whisper_vq(config, tensors, device).network
    sounds = [
        torch.from_numpy(speech(duration_s, pitch_hz)).to(device) for pitch_hz in range(80, 300, 20)
    ]
    features = torch.stack(
        [whisper_features(to_16_khz(sound, RATE_HZ)[None])[0] for sound in sounds]
    )
    points = torch.cat([network.points(part)[0] for part in features.split(1)])  # [points, dim]
    generator = torch.Generator(device).manual_seed(1)
    near = torch.randint(len(points), (config.num_codes,), generator=generator, device=device)
    away = torch.randn((config.num_codes, config.d_model), generator=generator, device=device)
    tensors["encoder.codebook.weight"] = points[near] + 0.3 * points.std(0) * away


def speech(duration_s: float, pitch_hz: float = 140) -> np.ndarray:
    """float32 [samples] at 44.1 kHz of something that rises, falls and hisses."""
    seconds = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    phase = 2 * np.pi * (pitch_hz * seconds + 6 * np.sin(5 * seconds))
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(7 * seconds) > -0.4)
    return (0.1 * tone + 0.02 * np.random.RandomState(0).standard_normal(len(seconds))).astype(
        np.float32
    )


def timed(encoder: WhisperVq, waves: list[np.ndarray], runs: int) -> list[float]:
    """Median and slowest, in ms; a call returns codes on the host."""
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
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.codec.encode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each length ({RUNS})")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument(
        "--only-agreement", action="store_true", help="no times; 4 minutes on a core of a CPU"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder, to try the command")
    args = parser.parse_args()
    name = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else "CPU"
    report = {"device": name, "torch": torch.__version__, "weights": "random, published size"}
    if not args.only_agreement:
        report |= measure_encode(args.device, runs=args.runs, tiny=args.tiny)
    report |= measure_agreement(args.device, tiny=args.tiny)
    text = json.dumps(report, indent=1)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
