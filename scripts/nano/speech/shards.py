"""The teacher's speech on disk: shards that are readable as soon as they are complete.

A work folder holds `speech/shard-00012.s16` (int16, 24 kHz, mono, utterances one after another) and
beside it `shard-00012.json`, which is written last and in one move: a shard is there when its index
is there. The index is {"utterances": [{"id", "split", "offset", "samples", "words": [[word,
start_s], ...], "phonemes"}], "dropped": [[id, reason]]}; "phonemes" is base64 of one byte for every
40 ms, the teacher's id of what is said there, 0 in silence. `speech/done.json` appears when the
teacher has finished; it holds the totals.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_RATE_HZ = 24_000


@dataclass(frozen=True)
class Utterance:
    """Where one utterance lies. `word_starts_s` is relative to its own first sample, one per item
    of `words`."""

    id: int
    split: str
    pcm_path: Path
    offset: int
    num_samples: int
    words: tuple[str, ...]
    word_starts_s: tuple[float, ...]
    phonemes: bytes

    @property
    def duration_s(self) -> float:
        return self.num_samples / SAMPLE_RATE_HZ

    def read(self) -> np.ndarray:
        """-> float32 [num_samples] in [-1, 1]"""
        pcm = np.fromfile(
            self.pcm_path, dtype="<i2", count=self.num_samples, offset=2 * self.offset
        )
        assert len(pcm) == self.num_samples, f"{self.pcm_path} ends before utterance {self.id} does"
        return pcm.astype(np.float32) / 32768.0


def speech_dir(work: Path) -> Path:
    return work / "speech"


def shard_indexes(work: Path) -> list[Path]:
    """Index files of the complete shards, in order of their numbers."""
    return sorted(speech_dir(work).glob("shard-*.json"))


def read_index(index: Path) -> Iterator[Utterance]:
    pcm_path = index.with_suffix(".s16")
    for entry in json.loads(index.read_text(encoding="utf-8"))["utterances"]:
        words = entry["words"]
        yield Utterance(
            id=entry["id"],
            split=entry["split"],
            pcm_path=pcm_path,
            offset=entry["offset"],
            num_samples=entry["samples"],
            words=tuple(word for word, _ in words),
            word_starts_s=tuple(start_s for _, start_s in words),
            phonemes=base64.b64decode(entry["phonemes"]),
        )


def read_utterances(work: Path, split: str | None = None) -> list[Utterance]:
    """Every utterance of the complete shards (of one split, if given), ordered by id."""
    found = [
        u
        for index in shard_indexes(work)
        for u in read_index(index)
        if split is None or u.split == split
    ]
    return sorted(found, key=lambda u: u.id)


def teacher_is_done(work: Path) -> bool:
    return (speech_dir(work) / "done.json").exists()


def hours_on_disk(work: Path) -> float:
    """Hours of speech in the complete shards, from the file sizes alone."""
    samples = sum(os.path.getsize(index.with_suffix(".s16")) // 2 for index in shard_indexes(work))
    return samples / SAMPLE_RATE_HZ / 3600


def wait_for_speech(
    work: Path, hours: float, *, deadline: float = float("inf"), poll_s: float = 0.5
) -> float:
    """Return once `hours` of speech are on disk or the teacher has finished; -> the hours there
    are.

    Returns what there is at `deadline` (time.monotonic()), which may be nothing.
    """
    while True:
        done = teacher_is_done(work)
        there = hours_on_disk(work)
        if done or there >= hours or time.monotonic() >= deadline:
            return there
        time.sleep(poll_s)


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
