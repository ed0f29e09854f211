"""Stage 3: the teacher says every prompt -> speech/, with word times and phonemes.

    python -m scripts.nano.teacher --work WORK [--processes N]

The teacher is hibari-tts, voice heart; the second voice is made of it (`speech/second_voice.py`).
For the vocoders some of its speech is also kept in parts: speech/00000.npz and so on hold int16
"voiced" and "rest", int16 "phase" (65,536 a period) and float32 "f0" at 80 Hz.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from moss_engine.api.errors import CheckpointError
from scripts.nano.prompts import CHARS_PER_S
from scripts.nano.speech.second_voice import FRAME_SAMPLES
from scripts.nano.speech.shards import DONE, SAMPLE_RATE_HZ, Utterance, write_shard
from scripts.nano.speech.teacher_voice import Sound, UnusablePromptError, teacher
from scripts.nano.stage import stage_parser
from scripts.nano.tokenizer import read_prompts

PROMPTS_PER_SHARD = 96
UNIT = 2400
"""Samples of a unit of the parts, in which 8 values of F0 and 5 mel frames come out whole."""
SILENCE = 0.004


def _make_shard(task: tuple[Path, int, list[dict[str, Any]]]) -> tuple[Counter[str], Counter[str]]:
    """Write one shard; returns how many utterances it has, their samples and those kept in parts,
    and how often each reason left a prompt out."""
    folder, number, prompts = task
    utterances, parts, left_out = [], [], Counter[str]()
    for prompt in prompts:
        try:
            said = teacher().say(prompt, prompt["id"])
        except UnusablePromptError as error:
            left_out[str(error)] += 1
            continue
        utterances.append(Utterance(prompt["id"], prompt["split"], *said[:3]))
        parts += map(trimmed, said.sounds if prompt["in_parts"] else ())
    write_shard(folder, number, utterances)
    if parts:
        streams = {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}
        np.savez(folder / f"{number:05d}.npz", **streams)  # pyright: ignore[reportArgumentType]
    made = Counter(
        utterances=len(utterances),
        samples=sum(len(utterance.pcm) for utterance in utterances),
        in_parts=sum(len(part["rest"]) for part in parts),
    )
    return made, left_out


def trimmed(sound: Sound) -> dict[str, np.ndarray]:
    """The sound in whole units without the silence around, in the types of the files."""
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
    parser = stage_parser("teacher", __doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part-hours", type=float, default=6.0, help="about so much in parts")
    args = parser.parse_args()
    folder, began = args.work / "speech", time.monotonic()
    prompts, chars = list(read_prompts(args.work)), args.part_hours * 3600 * CHARS_PER_S
    for prompt in prompts:
        prompt["in_parts"] = chars > 0 and prompt["split"] == "train"
        chars -= prompt["in_parts"] * len(prompt["spoken"])
    if folder.exists():
        raise CheckpointError(f"{folder} is there already; remove it to have it made anew.")
    folder.mkdir()
    count = -(-len(prompts) // PROMPTS_PER_SHARD)
    tasks = [(folder, number, prompts[number::count]) for number in range(count)]
    made, left_out = Counter[str](), Counter[str]()
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for found, reasons in pool.imap_unordered(_make_shard, tasks):
            made, left_out = made + found, left_out + reasons
    figures = {
        "utterances": made["utterances"],
        "hours": round(made["samples"] / SAMPLE_RATE_HZ / 3600, 3),
        "hours_in_parts": round(made["in_parts"] / SAMPLE_RATE_HZ / 3600, 3),
        "left_out": left_out,
        "wall_s": round(time.monotonic() - began, 1),
    }
    (folder / DONE).write_text(json.dumps(figures), encoding="utf-8")
    print("teacher: " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
