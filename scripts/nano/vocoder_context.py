"""How much context the streamed vocoder needs, and what a chunk costs: two tables for choosing the window.

python -m scripts.nano.vocoder_context --checkpoint DIR SPEECH.wav [...] [--json FILE]

The mels are those of the recordings after the codec, as at run time. Errors are against one run with the whole support
on both sides: the largest one relative to the peak, and the RMS one relative to the signal's RMS. Times are medians of
CPU time on one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano import CHUNK_CODES, CONTEXT_SHARE
from moss_engine.codec.resample import resample
from moss_engine.codec.store import load_fsq, load_vocoder
from moss_engine.codec.vocoder_stream import VocoderStream, WindowPlan, context_frames, support_frames, whole_wave

REPEATS = 7
SHARES = (1.0, CONTEXT_SHARE, 0.6)


def main() -> None:
    args = _parse()
    torch.set_num_threads(1)
    fsq, (generator, config) = load_fsq(args.checkpoint / "codec"), load_vocoder(args.checkpoint / "vocoder")
    support, hop, step = support_frames(config), config["hop_size"], fsq.config.frames_per_code
    with torch.inference_mode():
        mels = [
            fsq.mel_of_codes(fsq.codes_of_mel(_mel(path, fsq.config.mel, step * hop)[None]))[0] for path in args.speech
        ]
    print(f"support {support} frames ({1000 * support * hop / config['sampling_rate']:.0f} ms) on each side")
    errors = [
        {"left": left, "right": right, **_error(generator, mels, hop, support, left, right, args.chunk_frames)}
        for left, right in _contexts(support)
    ]
    print("left right   max/peak   RMS dB")
    for row in errors:
        print(f"{row['left']:4d} {row['right']:5d} {row['max']:10.1e} {row['rms_db']:8.1f}")
    costs = [
        _cost(generator, mels[0], config, context_frames(config, share), codes, step)
        for share in SHARES
        for codes in CHUNK_CODES
    ]
    print("context  codes  window  CPU ms    RTF")
    for row in costs:
        print(f"{row['context']:7d} {row['codes']:6d} {row['window']:7d} {row['ms']:7.1f} {row['rtf']:6.3f}")
    if args.json:
        args.json.write_text(json.dumps({"support": support, "errors": errors, "costs": costs}, indent=1) + "\n")


def _contexts(support: int) -> list[tuple[int, int]]:
    sides = sorted({0, 2, 3, 4, 5, 6, 7, 8, support} - set(range(support + 1, 99)))
    return [(support, right) for right in sides] + [(left, support) for left in sides[:-1]]


def _mel(path: Path, spec: MelSpec, multiple: int) -> Tensor:
    import soundfile

    wave, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    samples = resample(torch.from_numpy(np.ascontiguousarray(wave[:, 0])), rate_hz, spec.sample_rate_hz)
    return log_mel(samples[: len(samples) // multiple * multiple], spec)


def _error(
    generator: nn.Module, mels: list[Tensor], hop: int, support: int, left: int, right: int, chunk: int
) -> dict[str, float]:
    largest, noise, power = 0.0, 0.0, 0.0
    for mel in mels:
        stream = VocoderStream(generator, mel.shape[0], hop, WindowPlan((chunk,), left, right), mel.device)
        wave, expected = torch.cat([stream.push(mel), stream.flush()]), whole_wave(generator, mel, support)
        difference = wave - expected
        largest = max(largest, (difference.abs().max() / expected.abs().max()).item())
        noise, power = noise + difference.square().sum().item(), power + expected.square().sum().item()
    return {"max": largest, "rms_db": 10 * np.log10(max(noise, 1e-30) / power)}


def _cost(
    generator: nn.Module, mel: Tensor, config: dict[str, Any], context: int, codes: int, step: int
) -> dict[str, float]:
    window = codes * step + 2 * context
    mel = mel.repeat(1, -(-window // mel.shape[1]))[None, :, :window]
    with torch.inference_mode():
        ms = 1000 * _median_s(lambda: generator(mel))
    rtf = ms / 1000 / (codes * step * config["hop_size"] / config["sampling_rate"])
    return {"context": context, "codes": codes, "window": window, "ms": ms, "rtf": rtf}


def _median_s(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        run()
        times.append(time.thread_time() - began)
    return statistics.median(times)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder with codec/ and vocoder/")
    parser.add_argument("speech", type=Path, nargs="+", help="recordings of speech")
    parser.add_argument(
        "--chunk-frames", type=int, default=8, help="chunk of the error table; small ones have many joins"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
