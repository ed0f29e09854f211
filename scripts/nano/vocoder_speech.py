"""Stage 7: speech for the vocoders, in its parts.

    python -m scripts.nano.vocoder_speech --work WORK [--hours 6] [--processes N]

The teacher's network makes its voice as filtered pulses plus a rest; both are kept apart here, with
F0 and the phase of the pulses. A part of the speech has another pitch and another length of the
vocal tract, so that the vocoder knows more than one voice.

Writes vocoder_speech/00000.npz and so on: int16 "voiced" and "rest", int16 "phase" (65,536 a
period) and float32 "f0" at 80 Hz.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import CheckpointError
from scripts.judges.words import resample
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.speech.teacher_voice import load_hibari
from scripts.nano.stage import stage_parser
from scripts.nano.tokenizer import read_prompts

CHARS_PER_S = 16
UNIT = 2400
"""Samples in which everything counts: 8 values of F0, 5 mel frames."""
F0_HOP = 300
MIN_F0_HZ = 40.0
PROMPTS_PER_SHARD = 48
ALTERED_SHARE = 0.225
SILENCE = 0.004

Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""voiced and rest float32 [samples], phase float64 [samples] in periods, F0 [samples / F0_HOP]"""


class Speaker:
    """The teacher's network in one thread."""

    def __init__(self) -> None:
        self.hibari = load_hibari()

    def say(
        self, ids: list[int], speed: float, is_altered: bool, rng: np.random.Generator
    ) -> Parts:
        """The parts of phoneme ids as they are said, or of another voice."""
        if not is_altered:
            return self._say(ids, speed, 1.0, rng)
        stretch, pitch = rng.uniform(0.8, 1.12), rng.choice([1.0, rng.uniform(0.6, 0.95)])
        return played_at(stretch, *self._say(ids, speed / stretch, pitch, rng))

    def _say(self, ids: list[int], speed: float, pitch: float, rng: np.random.Generator) -> Parts:
        """The teacher's wave as two parts that add up to it, its F0 multiplied by `pitch`."""
        from hibari import dsp  # pyright: ignore[reportMissingImports]

        feed = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        log_filter, turn, log_noise, log_free, angle, f0 = (
            part[0] for part in self.hibari.sess.run(None, feed)
        )
        f0 = f0.reshape(-1) * np.float32(pitch)
        pulse = (
            dsp.stft(dsp.pulses(f0), len(f0))
            * np.exp(1j * np.pi * np.tanh(turn))
            * dsp.ex(log_filter)
        )
        noise = rng.standard_normal((len(log_noise), 2 * len(f0)), dtype=np.float32)
        rest = noise.view(np.complex64) * dsp.ex(log_noise) + np.exp(1j * angle) * dsp.ex(log_free)
        voiced, rest = (dsp.ola(part.astype(np.complex64)) for part in (pulse * pitch, rest))
        return voiced, rest, phase_of(f0), f0


def phase_of(f0: np.ndarray) -> np.ndarray:
    """Periods up to and with each sample, from F0 at 80 Hz, as the teacher counts them"""
    samples = (np.arange(len(f0) * F0_HOP) + 0.5) / F0_HOP - 0.5
    hz = np.maximum(np.interp(samples, np.arange(len(f0)), f0), MIN_F0_HZ)
    return np.cumsum(hz) / SAMPLE_RATE_HZ


def played_at(
    stretch: float, voiced: np.ndarray, rest: np.ndarray, phase: np.ndarray, f0: np.ndarray
) -> Parts:
    """As if played at `stretch` times the speed: pitch and formants move together."""
    percent = round(100 * stretch)
    voiced, rest = (resample(part, percent, 100) for part in (voiced, rest))
    count = len(voiced) // F0_HOP
    at = np.arange(count * F0_HOP) * percent / 100
    phase = np.interp(at, np.arange(len(phase)), phase)
    at_f0 = (np.arange(count) + 0.5) * percent / 100 - 0.5
    f0 = np.interp(at_f0, np.arange(len(f0)), f0).astype(np.float32) * np.float32(percent / 100)
    return voiced[: len(at)], rest[: len(at)], phase, f0


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
        is_altered = random.Random(prompt["id"]).random() < ALTERED_SHARE
        rng = np.random.default_rng(prompt["id"])
        for sentence in _speaker.hibari.phonemize(prompt["spoken"]):
            ids = _speaker.hibari.ids(sentence)
            found = trimmed(*_speaker.say(ids, prompt["speed"], is_altered, rng))
            parts.append(found)
            samples["altered" if is_altered else "as it is"] += len(found[0])
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
    if folder.exists():
        raise CheckpointError(f"{folder} is there already; remove it to have it made anew.")
    chars, prompts = args.hours * 3600 * CHARS_PER_S, []
    for prompt in read_prompts(args.work):
        if chars > 0 and prompt["mode"] != "chat" and prompt["split"] != "held":
            prompts.append(prompt)
            chars -= len(prompt["spoken"])
    count = -(-len(prompts) // PROMPTS_PER_SHARD)
    folder.mkdir()
    tasks = [(folder, k, prompts[k::count]) for k in range(count)]
    with multiprocessing.get_context("spawn").Pool(args.processes, _start) as pool:
        total = sum(pool.imap_unordered(_make_shard, tasks), Counter[str]())
    made = {kind: round(n / SAMPLE_RATE_HZ / 3600, 3) for kind, n in total.items()}
    print(f"vocoder speech: hours {made} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
