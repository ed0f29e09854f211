"""Speech for the vocoder's training, in its parts: phonemes first, then sound on many cores.

    python -m scripts.nano.vocoder.speech phonemes --work DIR [--second VOICE.onnx]
    python -m scripts.nano.vocoder.speech speak --work DIR [--second VOICE.onnx] [--processes 16]

The teacher's network makes its voice as filtered pulses plus a rest; both are kept apart here, with
F0 and the phase of the pulses. A part of the speech is the teacher's at another pitch and another
vocal tract's length, so that the vocoder knows more than one voice. With --second a part is another
voice's: a Piper model, of which F0 is tracked and everything is rest. Look at its licence, and at
those of the voices that it was fine-tuned from.

`phonemes` reads DIR/prompts.jsonl.gz and writes DIR/vocoder_phonemes.jsonl.gz; it needs espeak-ng
for a second voice. `speak` writes DIR/vocoder_speech/00000.npz and so on: int16 "voiced" and
"rest", int16 "phase" (65,536 a period), float32 "f0" at 80 Hz, and bool "parted" at 10 Hz, whether
the two parts are known.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from scripts.nano.speech.pitch_track import track_f0
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.tokenizer import read_prompts

UNIT = 2400
"""Samples in which everything counts: 8 values of F0, 5 mel frames, one of "parted"."""
F0_HOP = 300
MIN_F0_HZ = 40.0
ROWS_PER_SHARD = 48
SHARES = {"teacher": 0.62, "altered": 0.18, "second": 0.20}
SECOND_RMS, SECOND_GAIN_DB = 0.075, 4.0
SILENCE = 0.004


def phonemes(work: Path, second: Path | None, chars: int) -> None:
    """Rows of about `chars` characters in all, each with a voice and its phoneme ids."""
    from hibari.tts import Hibari  # pyright: ignore[reportMissingImports]

    teacher, rng = Hibari(voice="heart"), random.Random(0)
    prompts = [
        row for row in read_prompts(work) if row["mode"] != "chat" and row["split"] != "held"
    ]
    shares = SHARES if second else {k: v for k, v in SHARES.items() if k != "second"}
    rows: list[dict[str, Any]] = []
    for prompt in prompts:
        voice = rng.choices(list(shares), list(shares.values()))[0]
        text = prompt["spoken"]
        if voice == "second":
            assert second is not None
            ids = [_piper_ids(text, json.loads(second.with_suffix(".onnx.json").read_text()))]
        else:
            ids = [teacher.ids(part) for part in teacher.phonemize(text)]
        rows += [{"voice": voice, "ids": part, "speed": prompt["speed"]} for part in ids]
        chars -= len(text)
        if chars < 0:
            break
    with gzip.open(work / "vocoder_phonemes.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    print(
        f"phonemes: {len(rows)} rows, {[sum(r['voice'] == v for r in rows) for v in shares]} of "
        f"{list(shares)}"
    )


def _piper_ids(text: str, config: dict[str, Any]) -> list[int]:
    """Phonemes by espeak-ng clause by clause, since it leaves out the marks between them."""
    table, clauses = config["phoneme_id_map"], re.findall(r"[^.,;:?!]+[.,;:?!]*", text)
    command = ["espeak-ng", "-q", "--ipa", "-v", config["espeak"]["voice"]]
    spoken = subprocess.run(
        [*command, "\n\n".join(clauses)], capture_output=True, text=True, check=True
    ).stdout
    said = [line.strip() for line in spoken.splitlines() if line.strip()]
    marks = [clause.strip()[-1] if clause.strip()[-1:] in ".,;:?!" else "" for clause in clauses]
    joined = " ".join(f"{line}{mark}" for line, mark in zip(said, [*marks, *[""] * len(said)]))
    ids = [table["^"][0], table["_"][0]]
    for phoneme in joined:
        if phoneme in table:
            ids += [table[phoneme][0], table["_"][0]]
    return [*ids, table["$"][0]]


class Speakers:
    """The networks of one process, one thread each."""

    def __init__(self, second: Path | None) -> None:
        import onnxruntime
        from hibari.tts import Hibari  # pyright: ignore[reportMissingImports]

        self.teacher = Hibari(voice="heart", threads=1).sess
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if second is not None:
            config = json.loads(second.with_suffix(".onnx.json").read_text())
            self.piper = onnxruntime.InferenceSession(
                str(second), options, providers=["CPUExecutionProvider"]
            )
            self.piper_rate_hz = config["audio"]["sample_rate"]
            self.piper_scales = [
                config["inference"][k] for k in ("noise_scale", "length_scale", "noise_w")
            ]

    def say(self, row: dict[str, Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """-> voiced and rest float32 [samples], phase float64 [samples] in periods, F0 float32
        [samples / F0_HOP]"""
        if row["voice"] == "second":
            return self._say_second(row, rng)
        if row["voice"] == "teacher":
            return self._say_first(row["ids"], row["speed"], 1.0, rng)
        stretch, pitch = rng.uniform(0.8, 1.12), rng.choice([1.0, rng.uniform(0.6, 0.95)])
        made = self._say_first(row["ids"], row["speed"] / stretch, pitch, rng)
        return _played_at(stretch, *made)

    def _say_first(
        self, ids: list[int], speed: float, pitch: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, ...]:
        """The teacher's wave as two parts that add up to it, its F0 multiplied by `pitch`."""
        from hibari import dsp  # pyright: ignore[reportMissingImports]

        feed = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        log_filter, turn, log_noise, log_free, angle, f0 = (
            part[0] for part in self.teacher.run(None, feed)
        )
        f0 = f0.reshape(-1) * np.float32(pitch)
        pulse = (
            dsp.stft(dsp.pulses(f0), len(f0))
            * np.exp(1j * np.pi * np.tanh(turn))
            * dsp.ex(log_filter)
        )
        noise = rng.standard_normal((len(log_noise), 2 * len(f0)), dtype=np.float32).view(
            np.complex64
        )
        rest = noise * dsp.ex(log_noise) + np.exp(1j * angle) * dsp.ex(log_free)
        voiced, rest = (dsp.ola(part.astype(np.complex64)) for part in (pulse * pitch, rest))
        return voiced, rest, _phase_of(f0), f0

    def _say_second(self, row: dict[str, Any], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        from scripts.nano.judge import resample

        noise, length, spread = self.piper_scales
        feed = {
            "input": np.asarray([row["ids"]], np.int64),
            "input_lengths": np.asarray([len(row["ids"])], np.int64),
            "scales": np.asarray([noise, length / row["speed"], spread], np.float32),
        }
        wave = resample(
            np.asarray(self.piper.run(None, feed)[0]).reshape(-1),
            self.piper_rate_hz,
            SAMPLE_RATE_HZ,
        )
        wave = wave[: len(wave) // F0_HOP * F0_HOP]
        loud = wave[np.abs(wave) > 0.02 * np.abs(wave).max()]
        gain_db = rng.uniform(-SECOND_GAIN_DB, SECOND_GAIN_DB)
        wave = wave * (SECOND_RMS / np.sqrt(np.mean(loud**2)) * 10 ** (gain_db / 20))
        f0 = track_f0(wave, SAMPLE_RATE_HZ, F0_HOP)
        return np.zeros_like(wave), wave, _phase_of(f0), f0


def _phase_of(f0: np.ndarray) -> np.ndarray:
    """Periods up to and with each sample, from F0 at 80 Hz, as the teacher counts them"""
    samples = (np.arange(len(f0) * F0_HOP) + 0.5) / F0_HOP - 0.5
    return (
        np.cumsum(np.maximum(np.interp(samples, np.arange(len(f0)), f0), MIN_F0_HZ))
        / SAMPLE_RATE_HZ
    )


def _played_at(
    stretch: float, voiced: np.ndarray, rest: np.ndarray, phase: np.ndarray, f0: np.ndarray
) -> tuple[np.ndarray, ...]:
    """As if played at `stretch` times the speed: pitch and formants move together."""
    from scripts.nano.judge import resample

    percent = round(100 * stretch)
    voiced, rest = (resample(part, percent, 100) for part in (voiced, rest))
    count = len(voiced) // F0_HOP
    at = np.arange(count * F0_HOP) * percent / 100
    phase = np.interp(at, np.arange(len(phase)), phase)
    at_f0 = (np.arange(count) + 0.5) * percent / 100 - 0.5
    f0 = np.interp(at_f0, np.arange(len(f0)), f0).astype(np.float32) * np.float32(percent / 100)
    return voiced[: len(at)], rest[: len(at)], phase, f0


_speakers: Speakers | None = None


def _start(second: Path | None) -> None:
    global _speakers
    _speakers = Speakers(second)


def _make_shard(task: tuple[int, list[dict[str, Any]], Path]) -> tuple[float, dict[str, float]]:
    number, rows, folder = task
    assert _speakers is not None
    parts, hours = [], dict.fromkeys(SHARES, 0.0)
    for k, row in enumerate(rows):
        voiced, rest, phase, f0 = _speakers.say(row, np.random.default_rng(number * 1000 + k))
        loud = np.flatnonzero(np.abs(voiced + rest) > SILENCE)
        if len(loud) == 0:
            continue
        first, end = max(0, loud[0] // UNIT - 1), min(len(rest) // UNIT, loud[-1] // UNIT + 2)
        cut, cut_f0 = (
            slice(first * UNIT, end * UNIT),
            slice(first * UNIT // F0_HOP, end * UNIT // F0_HOP),
        )
        pcm = [
            np.clip(part[cut] * 32767, -32768, 32767).astype(np.int16) for part in (voiced, rest)
        ]
        turns = (phase[cut] % 1 * 65536).astype(np.uint16).view(np.int16)
        parts.append(
            (
                *pcm,
                turns,
                f0[cut_f0].astype(np.float32),
                np.full(end - first, row["voice"] != "second"),
            )
        )
        hours[row["voice"]] += (end - first) * UNIT / SAMPLE_RATE_HZ / 3600
    names = ("voiced", "rest", "phase", "f0", "parted")
    streams = {
        name: np.concatenate(values) for name, values in zip(names, zip(*parts), strict=True)
    }
    temporary = folder / f"{number:05d}.part"
    with open(temporary, "wb") as file:
        np.savez(file, **streams)  # pyright: ignore[reportArgumentType]
    temporary.rename(folder / f"{number:05d}.npz")
    return time.time(), hours


def speak(work: Path, second: Path | None, processes: int) -> None:
    folder, began = work / "vocoder_speech", time.time()
    folder.mkdir(parents=True, exist_ok=True)
    lines = (
        gzip.decompress((work / "vocoder_phonemes.jsonl.gz").read_bytes())
        .decode("utf-8")
        .splitlines()
    )
    rows = [json.loads(line) for line in lines]
    count = -(-len(rows) // ROWS_PER_SHARD)
    tasks = [(k, rows[k::count], folder) for k in range(count)]
    total = dict.fromkeys(SHARES, 0.0)
    with multiprocessing.get_context("spawn").Pool(processes, _start, (second,)) as pool:
        for _, hours in pool.imap_unordered(_make_shard, tasks):
            total = {voice: total[voice] + hours[voice] for voice in total}
    made = ", ".join(f"{voice} {hours:.2f} h" for voice, hours in total.items())
    print(f"vocoder speech: {made} in {time.time() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.vocoder.speech",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("phonemes", "speak"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--second", type=Path, help="a Piper voice, its .onnx.json beside it")
    parser.add_argument("--hours", type=float, default=10.0, help="about so much speech")
    parser.add_argument("--processes", type=int, default=16)
    args = parser.parse_args()
    if args.command == "phonemes":
        phonemes(args.work, args.second, int(args.hours * 3600 * 16))
    else:
        speak(args.work, args.second, args.processes)


if __name__ == "__main__":
    main()
