"""Stage 7: speech for the vocoders, in its parts.

    python -m scripts.nano.vocoder_speech --work WORK [--hours 6] [--processes N]

The teacher's network makes its voice as filtered pulses plus a rest; both are kept apart here, with
F0 and the phase of the pulses. The second voice is made of both parts as everywhere.

Writes vocoder_speech/00000.npz and so on: int16 "voiced" and "rest", int16 "phase" (65,536 a
period) and float32 "f0" at 80 Hz.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from scripts.nano.speech.second_voice import convert, teacher_speed
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.speech.teacher_voice import load_hibari
from scripts.nano.speech.voices import ADA
from scripts.nano.stage import make_shards, stage_parser
from scripts.nano.tokenizer import read_prompts

CHARS_PER_S = 16
UNIT = 2400
"""Samples in which everything counts: 8 values of F0, 5 mel frames."""
F0_HOP = 300
MIN_F0_HZ = 40.0
PROMPTS_PER_SHARD = 48
SILENCE = 0.004

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""voiced and rest float32 [samples], phase float64 [samples] in periods, F0 [samples / F0_HOP]"""


class Speaker:
    """The teacher's network in one thread."""

    def __init__(self) -> None:
        self.hibari = load_hibari()

    def say(self, ids: list[int], voice: str, speed: float, rng: np.random.Generator) -> Parts:
        """The parts of phoneme ids in one of the voices."""
        if voice == ADA:
            voiced, rest, f0 = self._say(ids, speed, rng)
            return voiced, rest, phase_of(f0), f0
        voiced, rest, f0 = self._say(ids, teacher_speed(speed), rng)
        return second_voice_parts(voiced, rest, f0)

    def _say(
        self, ids: list[int], speed: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The teacher's wave as two parts that add up to it, and its F0."""
        from hibari import dsp  # pyright: ignore[reportMissingImports]

        feed = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        log_filter, turn, log_noise, log_free, angle, f0 = (
            part[0] for part in self.hibari.sess.run(None, feed)
        )
        f0 = f0.reshape(-1)
        pulse = (
            dsp.stft(dsp.pulses(f0), len(f0))
            * np.exp(1j * np.pi * np.tanh(turn))
            * dsp.ex(log_filter)
        )
        noise = rng.standard_normal((len(log_noise), 2 * len(f0)), dtype=np.float32)
        rest = noise.view(np.complex64) * dsp.ex(log_noise) + np.exp(1j * angle) * dsp.ex(log_free)
        voiced, rest = (dsp.ola(part.astype(np.complex64)) for part in (pulse, rest))
        return voiced, rest, f0


def phase_of(f0: np.ndarray) -> np.ndarray:
    """Periods up to and with each sample, from F0 at 80 Hz, as the teacher counts them"""
    samples = (np.arange(len(f0) * F0_HOP) + 0.5) / F0_HOP - 0.5
    hz = np.maximum(np.interp(samples, np.arange(len(f0)), f0), MIN_F0_HZ)
    return np.cumsum(hz) / SAMPLE_RATE_HZ


def second_voice_parts(voiced: np.ndarray, rest: np.ndarray, f0: np.ndarray) -> Parts:
    """The teacher's parts and F0 -> those of the second voice"""
    second = convert(np.stack([voiced, rest]), f0, SAMPLE_RATE_HZ)
    count = second.waves.shape[1] // F0_HOP
    voiced, rest = second.waves[:, : count * F0_HOP]
    phase = np.interp(np.arange(len(rest)), second.pulses, np.arange(len(second.pulses)))
    return voiced, rest, phase, second.f0_hz[F0_HOP // 2 :: F0_HOP][:count].astype(np.float32)


_speaker: Speaker | None = None


def _start() -> None:
    global _speaker
    _speaker = Speaker()


def _make_shard(task: tuple[Path, int, list[dict[str, Any]]]) -> Counter[str]:
    """Write one shard; -> samples of each kind in it"""
    folder, number, prompts = task
    assert _speaker is not None
    parts, samples = [], Counter[str]()
    for prompt in prompts:
        rng = np.random.default_rng(prompt["id"])
        for sentence in _speaker.hibari.phonemize(prompt["spoken"]):
            ids = _speaker.hibari.ids(sentence)
            found = trimmed(*_speaker.say(ids, prompt["voice"], prompt["speed"], rng))
            parts.append(found)
            samples[prompt["voice"]] += len(found[0])
    names = ("voiced", "rest", "phase", "f0")
    streams = {n: np.concatenate(values) for n, values in zip(names, zip(*parts), strict=True)}
    np.savez(folder / f"{number:05d}.npz", **streams)  # pyright: ignore[reportArgumentType]
    return samples


def trimmed(voiced: np.ndarray, rest: np.ndarray, phase: np.ndarray, f0: np.ndarray) -> Parts:
    """Whole units around the sound, in the types of the files"""
    loud = np.flatnonzero(np.abs(voiced + rest) > SILENCE)
    bounds = (loud[0], loud[-1]) if len(loud) else (0, 0)
    first, end = max(0, bounds[0] // UNIT - 1), min(len(rest) // UNIT, bounds[1] // UNIT + 2)
    cut = slice(first * UNIT, end * UNIT)
    voiced, rest = (
        np.clip(part[cut] * 32767, -32768, 32767).astype(np.int16) for part in (voiced, rest)
    )
    turns = (phase[cut] % 1 * 65536).astype(np.uint16).view(np.int16)
    f0 = f0[first * UNIT // F0_HOP : end * UNIT // F0_HOP].astype(np.float32)
    return voiced, rest, turns, f0


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
    given = (folder, prompts, PROMPTS_PER_SHARD, _start, _make_shard, args.processes)
    total = sum(make_shards(*given), Counter[str]())
    made = {kind: round(n / SAMPLE_RATE_HZ / 3600, 3) for kind, n in total.items()}
    print(f"vocoder speech: hours {made} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
