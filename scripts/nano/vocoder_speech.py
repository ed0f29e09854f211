"""Stage 7: speech for the vocoders, in its parts.

    python -m scripts.nano.vocoder_speech --work WORK [--hours 6] [--processes N]

Writes vocoder_speech/00000.npz and so on: int16 "voiced" and "rest", int16 "phase" (65,536 a
period) and float32 "f0" at 80 Hz.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scripts.nano.speech.second_voice import FRAME_SAMPLES
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.speech.teacher_voice import Sound, UnusablePromptError, teacher
from scripts.nano.stage import make_shards, stage_parser
from scripts.nano.tokenizer import read_prompts

CHARS_PER_S = 16
UNIT = 2400
"""Samples in which everything counts: 8 values of F0, 5 mel frames."""
PROMPTS_PER_SHARD = 48
SILENCE = 0.004


def _make_shard(task: tuple[Path, int, list[dict[str, Any]]]) -> Counter[str]:
    """Write one shard; -> samples of each voice in it"""
    folder, number, prompts = task
    found, samples = [], Counter[str]()
    for prompt in prompts:
        rng, voice = np.random.default_rng(prompt["id"]), prompt["voice"]
        with suppress(UnusablePromptError):
            for words in teacher().sentences(prompt):
                sound = teacher().sound(words.phonemes, voice, prompt["speed"], rng)
                found.append(trimmed(sound))
                samples[voice] += len(found[-1]["rest"])
    streams = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
    np.savez(folder / f"{number:05d}.npz", **streams)  # pyright: ignore[reportArgumentType]
    return samples


def trimmed(sound: Sound) -> dict[str, np.ndarray]:
    """Whole units around the sound, in the types of the files"""
    loud = np.flatnonzero(np.abs(sound.voiced + sound.rest) > SILENCE)
    bounds = (loud[0], loud[-1]) if len(loud) else (0, 0)
    first, end = max(0, bounds[0] // UNIT - 1), min(len(sound.rest) // UNIT, bounds[1] // UNIT + 2)
    cut = slice(first * UNIT, end * UNIT)
    frames = slice(first * UNIT // FRAME_SAMPLES, end * UNIT // FRAME_SAMPLES)
    voiced, rest = (
        np.clip(part[cut] * 32767, -32768, 32767).astype(np.int16)
        for part in (sound.voiced, sound.rest)
    )
    turns = (sound.phase[cut] % 1 * 65536).astype(np.uint16).view(np.int16)
    return {"voiced": voiced, "rest": rest, "phase": turns, "f0": sound.f0_hz[frames]}


def main() -> None:
    parser = stage_parser("vocoder_speech", __doc__)
    parser.add_argument("--hours", type=float, default=6.0, help="about so much speech")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    folder, began = args.work / "vocoder_speech", time.monotonic()
    chars, prompts = args.hours * 3600 * CHARS_PER_S, []
    for prompt in read_prompts(args.work):
        if chars > 0 and prompt["split"] != "held":
            prompts.append(prompt)
            chars -= len(prompt["spoken"])
    given = (folder, prompts, PROMPTS_PER_SHARD, _make_shard, args.processes)
    total = sum(make_shards(*given), Counter[str]())
    made = {kind: round(n / SAMPLE_RATE_HZ / 3600, 3) for kind, n in total.items()}
    print(f"vocoder speech: hours {made} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
