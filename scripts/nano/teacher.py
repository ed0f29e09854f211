"""Stage 3: the teacher says every prompt -> speech/, with word times and phonemes.

    python -m scripts.nano.teacher --work WORK [--processes N]

The teacher is hibari-tts, voice heart; the second voice is made of it (`speech/second_voice.py`).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.nano.speech.shards import DONE, SAMPLE_RATE_HZ, Utterance, write_shard
from scripts.nano.speech.teacher_voice import UnusablePromptError, teacher
from scripts.nano.stage import make_shards, stage_parser
from scripts.nano.tokenizer import read_prompts

PROMPTS_PER_SHARD = 96


def _make_shard(task: tuple[Path, int, list[dict[str, Any]]]) -> tuple[int, int, Counter[str]]:
    """Write one shard; -> utterances, samples, and why prompts were left out"""
    folder, number, prompts = task
    said, left_out = [], Counter[str]()
    for prompt in prompts:
        try:
            pcm, starts_s, labels = teacher().say(prompt, prompt["id"])
        except UnusablePromptError as error:
            left_out[str(error)] += 1
            continue
        said.append(Utterance(prompt["id"], prompt["split"], pcm, tuple(starts_s), labels))
    write_shard(folder, number, said)
    return len(said), sum(len(u.pcm) for u in said), left_out


def main() -> None:
    parser = stage_parser("teacher", __doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    folder, began = args.work / "speech", time.monotonic()
    prompts = list(read_prompts(args.work))
    utterances, samples, left_out = 0, 0, Counter[str]()
    given = (folder, prompts, PROMPTS_PER_SHARD, _make_shard, args.processes)
    for said, length, reasons in make_shards(*given):
        utterances, samples, left_out = utterances + said, samples + length, left_out + reasons
    figures = {
        "utterances": utterances,
        "hours": round(samples / SAMPLE_RATE_HZ / 3600, 3),
        "left_out": left_out,
        "wall_s": round(time.monotonic() - began, 1),
    }
    (folder / DONE).write_text(json.dumps(figures), encoding="utf-8")
    print("teacher: " + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
