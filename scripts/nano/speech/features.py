"""The teacher's speech as one long stream on the training device: samples and log-mel frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.mel import log_mel_of_padded
from scripts.nano.speech.shards import Utterance, read_utterances

ALIGN_SAMPLES = 960
CHUNK_FRAMES = 500


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


def load_speech(
    work: Path, device: torch.device, max_hours: float, spec: MelSpec = MOSS_MEL
) -> tuple[SpeechStream, SpeechStream]:
    """-> (training stream of at most `max_hours`, held-out stream).

    Held out are the utterances of the split "held"; where the shards on disk hold none of it yet,
    every 200th one.
    """
    utterances = read_utterances(work)
    if len(utterances) < 2:
        raise SystemExit(
            f"{work}/speech holds fewer than two utterances; run scripts.nano.teacher first."
        )
    held = [u for u in utterances if u.split == "held"] or utterances[::200]
    held_ids = {u.id for u in held}
    train = _up_to([u for u in utterances if u.split != "held" and u.id not in held_ids], max_hours)
    return _stream(train, device, spec), _stream(_up_to(held, 0.1), device, spec)


def _up_to(utterances: list[Utterance], max_hours: float) -> list[Utterance]:
    total = np.cumsum([u.duration_s for u in utterances])
    return utterances[: max(1, int(np.searchsorted(total, max_hours * 3600)))]


def _stream(utterances: list[Utterance], device: torch.device, spec: MelSpec) -> SpeechStream:
    shards = {
        path: np.memmap(path, dtype="<i2", mode="r") for path in {u.pcm_path for u in utterances}
    }
    lengths = [-(-u.num_samples // ALIGN_SAMPLES) * ALIGN_SAMPLES for u in utterances]
    pcm = np.zeros(sum(lengths), dtype=np.int16)
    phonemes = np.zeros(sum(lengths) // ALIGN_SAMPLES, dtype=np.uint8)
    at = 0
    for utterance, length in zip(utterances, lengths, strict=True):
        pcm[at : at + utterance.num_samples] = shards[utterance.pcm_path][utterance.offset :][
            : utterance.num_samples
        ]
        said = np.frombuffer(utterance.phonemes, np.uint8)[: length // ALIGN_SAMPLES]
        phonemes[at // ALIGN_SAMPLES :][: len(said)] = said
        at += length
    samples = torch.from_numpy(pcm).to(device)
    return SpeechStream(samples, stream_mel(samples, spec), torch.from_numpy(phonemes).to(device))


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


def random_starts(
    num_frames: int, crop_frames: int, batch: int, device: torch.device, *, multiple: int = 1
) -> Tensor:
    """int64 [batch] first frames of random crops"""
    choices = (num_frames - crop_frames) // multiple + 1
    if choices < 1:
        raise SystemExit(
            f"A crop of {crop_frames} frames does not fit the {num_frames} frames of speech on "
            f"disk."
        )
    return torch.randint(choices, (batch,), device=device) * multiple


def mel_crops(mel: Tensor, starts: Tensor, crop_frames: int) -> Tensor:
    """[frames, num_mels] -> float32 [batch, num_mels, crop_frames]"""
    return (
        mel[starts[:, None] + torch.arange(crop_frames, device=mel.device)].transpose(1, 2).float()
    )
