"""Whether words with two pronunciations are said in the sense of their sentence: 30 sentences, by
the warped distance to the teacher's two ways of saying them, JSON on stdout.

    python -m scripts.nano.judges.homographs [--checkpoint assets/nano] [--seed 1]

Needs the teacher (`pip install hibari-tts==0.2.1`), who says each sentence with the phonemes of the
right sense and with those of the other. The log-mel of a reply is laid beside both by dynamic time
warping; the sense is the one that is nearer during the word. The teacher's own reading, with no
phonemes given, is judged in the same way, in the other voice's sound where there is one, so that a
figure of the judge itself stands beside it: how often it knows a sense that was forced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from moss_engine.api.errors import MossError
from moss_engine.build import build_service
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.config import NANO_CHECKPOINT, EngineConfig
from scripts.nano.judges.replies import SEED, speak_all
from scripts.nano.speech.shards import SAMPLE_RATE_HZ
from scripts.nano.speech.teacher_voice import Teacher
from scripts.nano.speech.voices import VOICES
from scripts.nano.text.hard_sentences import HOMOGRAPHS

FRAME_S = MOSS_MEL.hop_size / MOSS_MEL.sample_rate_hz
AROUND_S = 0.06
"""A word's neighbouring sounds are changed by it, too."""


@dataclass(frozen=True)
class Said:
    """A sentence as the teacher says it: mel [frames, mels], and the frames of the word judged."""

    mel: np.ndarray
    word: slice


def mel_of(wave: np.ndarray) -> np.ndarray:
    """float32 [samples] -> log-mel [frames, mels] without what is the same in all frames"""
    mel = log_mel(torch.from_numpy(np.ascontiguousarray(wave)), MOSS_MEL).T.numpy()
    return mel - mel.mean(0)


def warped(costs: np.ndarray) -> np.ndarray:
    """costs [a, b] of every frame beside every other -> [a], what each of the first costs on the
    cheapest way through all frames of both"""
    sums = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    sums[0, 0] = 0.0
    for i, row in enumerate(costs, 1):
        for j, cost in enumerate(row, 1):
            sums[i, j] = cost + min(sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1])
    spent, met = np.zeros(len(costs)), np.zeros(len(costs))
    i, j = costs.shape
    while i and j:
        spent[i - 1] += costs[i - 1, j - 1]
        met[i - 1] += 1
        before = {
            (i - 1, j - 1): sums[i - 1, j - 1],
            (i - 1, j): sums[i - 1, j],
            (i, j - 1): sums[i, j - 1],
        }
        i, j = min(before, key=before.__getitem__)
    return spent / met


def distance(said: Said, heard: np.ndarray) -> float:
    """How far the word of a sentence is from that of another wave's mel [frames, mels]"""
    costs = np.sqrt(np.square(said.mel[:, None] - heard[None]).mean(2))
    return float(warped(costs)[said.word].mean())


def teach(teacher: Teacher, sentence: str, place: int, phonemes: str | None, voice: str) -> Said:
    """The teacher's sentence; `phonemes` are forced upon the word at `place`, if given."""
    forced = {} if phonemes is None else {place: phonemes}
    row = {"spoken": sentence, "voice": voice, "speed": 1.0, "forced": forced}
    pcm, starts, _ = teacher.say(row, SEED)
    ends = [*starts[1:], len(pcm) / SAMPLE_RATE_HZ]
    mel = mel_of(pcm.astype(np.float32) / 32768)
    first = max(0, round((starts[place] - AROUND_S) / FRAME_S))
    return Said(mel, slice(first, max(first + 1, round((ends[place] + AROUND_S) / FRAME_S))))


def is_right(both: Sequence[Said], wave_mel: np.ndarray) -> bool:
    """Whether a mel [frames, mels] is nearer to the first, the right sense, than to the second."""
    right, wrong = (distance(said, wave_mel) for said in both)
    return right < wrong


def judge(checkpoint: Path, seed: int) -> dict[str, object]:
    """How many of the 30 each voice and its teacher say in the right sense, and the others."""
    teacher = Teacher()
    service = build_service(EngineConfig(checkpoint=checkpoint))
    service.start()
    figures: dict[str, object] = {"sentences": len(HOMOGRAPHS), "seed": seed}
    try:
        for voice in VOICES:
            texts = [sentence for sentence, *_ in HOMOGRAPHS]
            replies = asyncio.run(speak_all(service, texts, 2, voice, seed))
            known, own, wrong = 0, 0, []
            for (text, place, *senses), reply in zip(HOMOGRAPHS, replies, strict=True):
                both = [teach(teacher, text, place, phonemes, voice) for phonemes in senses]
                others = [teach(teacher, text, place, sense, _other(voice)) for sense in senses]
                known += is_right(both, others[0].mel) + (not is_right(both, others[1].mel))
                own += is_right(both, teach(teacher, text, place, None, _other(voice)).mel)
                if not is_right(both, mel_of(reply.wave)):
                    wrong.append(text)
                print(f"{voice}: {text}", "wrong" if text in wrong else "", file=sys.stderr)
            figures[voice] = {
                "right": len(HOMOGRAPHS) - len(wrong),
                "teacher_right": own,
                "forced_senses_known": f"{known} of {2 * len(HOMOGRAPHS)}",
                "wrong": wrong,
            }
    finally:
        service.close()
    return figures


def _other(voice: str) -> str:
    return VOICES[(VOICES.index(voice) + 1) % len(VOICES)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.nano.judges.homographs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkpoint", type=Path, default=NANO_CHECKPOINT)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    print(json.dumps(judge(args.checkpoint, args.seed), indent=1))


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
