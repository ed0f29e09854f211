"""The teacher's speech on disk, and as one long stream on the training device.

speech/ holds shards: 00012.s16 (int16, 24 kHz, mono, utterances one after another) and beside it
00012.json, a list of utterances. done.json is written when the teacher has said everything.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.mel import log_mel_of_padded

SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_CODE = 960
CHUNK_FRAMES = 500
DONE = "done.json"
HELD_HOURS = 0.1


@dataclass(frozen=True)
class Utterance:
    """int16 [samples], the start of each word in it in seconds, and the teacher's id of the phoneme
    in the middle of every code, 0 in silence."""

    id: int
    split: str
    pcm: np.ndarray
    word_starts_s: tuple[float, ...]
    phonemes: np.ndarray


def write_shard(folder: Path, number: int, utterances: list[Utterance]) -> None:
    entries = [
        {
            "id": u.id,
            "split": u.split,
            "samples": len(u.pcm),
            "word_starts_s": [round(start_s, 4) for start_s in u.word_starts_s],
            "phonemes": base64.b64encode(u.phonemes.astype(np.uint8).tobytes()).decode("ascii"),
        }
        for u in utterances
    ]
    path = folder / f"{number:05d}.json"
    pcm = [u.pcm.astype("<i2") for u in utterances]
    np.concatenate([np.empty(0, "<i2"), *pcm]).tofile(path.with_suffix(".s16"))
    path.write_text(json.dumps(entries), encoding="utf-8")


def read_speech(work: Path) -> Iterator[list[Utterance]]:
    """The utterances of shard after shard; samples are read from the disk when they are used."""
    folder = work / "speech"
    if not (folder / DONE).exists():
        raise CheckpointError(f"{folder} is not complete: run python -m scripts.nano.teacher.")
    for index in sorted(folder.glob("[0-9]*.json")):
        entries, at = json.loads(index.read_text(encoding="utf-8")), 0
        pcm = np.memmap(index.with_suffix(".s16"), "<i2", "r") if entries else np.empty(0, "<i2")
        utterances = []
        for entry in entries:
            part = pcm[at : at + entry["samples"]]
            phonemes = np.frombuffer(base64.b64decode(entry["phonemes"]), np.uint8)
            starts_s = tuple(entry["word_starts_s"])
            utterances.append(Utterance(entry["id"], entry["split"], part, starts_s, phonemes))
            at += entry["samples"]
        yield utterances


@dataclass(frozen=True)
class SpeechStream:
    """Utterances one after another, each filled up with zeros to whole codes, so that frame 2 k
    begins a code."""

    pcm: Tensor  # int16 [frames * hop_size]
    mel: Tensor  # float16 [frames, num_mels]
    phonemes: Tensor  # uint8 [frames / 2], of every code

    @property
    def num_frames(self) -> int:
        return self.mel.shape[0]


def load_speech(work: Path, device: torch.device, hours: float) -> tuple[SpeechStream, ...]:
    """-> (training stream of at most `hours`, held-out stream)"""
    by_split: dict[str, list[Utterance]] = {"train": [], "held": []}
    for shard in read_speech(work):
        for utterance in shard:
            by_split[utterance.split].append(utterance)
    for split, found in by_split.items():
        if not found:
            raise CheckpointError(f"{work}/speech has no {split} utterance; write more prompts.")
        found.sort(key=lambda utterance: utterance.id)
    limits = {"train": hours, "held": HELD_HOURS}
    return tuple(_stream(_up_to(found, limits[split]), device) for split, found in by_split.items())


def _up_to(utterances: list[Utterance], hours: float) -> list[Utterance]:
    total = np.cumsum([len(u.pcm) for u in utterances])
    return utterances[: max(1, int(np.searchsorted(total, hours * 3600 * SAMPLE_RATE_HZ)))]


def _stream(utterances: list[Utterance], device: torch.device) -> SpeechStream:
    lengths = [-(-len(u.pcm) // SAMPLES_PER_CODE) * SAMPLES_PER_CODE for u in utterances]
    pcm = np.zeros(sum(lengths), dtype=np.int16)
    phonemes = np.zeros(sum(lengths) // SAMPLES_PER_CODE, dtype=np.uint8)
    at = 0
    for utterance, length in zip(utterances, lengths, strict=True):
        pcm[at : at + len(utterance.pcm)] = utterance.pcm
        said = utterance.phonemes[: length // SAMPLES_PER_CODE]
        phonemes[at // SAMPLES_PER_CODE :][: len(said)] = said
        at += length
    samples = torch.from_numpy(pcm).to(device)
    mel = stream_mel(samples, MOSS_MEL)
    return SpeechStream(samples, mel, torch.from_numpy(phonemes).to(device))


def stream_mel(pcm: Tensor, spec: MelSpec) -> Tensor:
    """int16 [samples], a multiple of hop_size -> float16 [samples / hop_size, num_mels]; silence
    lies around it."""
    hop, edge = spec.hop_size, (spec.n_fft - spec.hop_size) // 2
    frames = len(pcm) // hop
    missing = -frames % CHUNK_FRAMES * hop
    padded = torch.nn.functional.pad(pcm, (edge, edge + missing))
    chunks = padded.unfold(0, CHUNK_FRAMES * hop + 2 * edge, CHUNK_FRAMES * hop)
    mels = [
        log_mel_of_padded(part.float() / 32768, spec).transpose(1, 2).half()
        for part in chunks.split(64)
    ]
    return torch.cat(mels).reshape(-1, spec.num_mels)[:frames].contiguous()
