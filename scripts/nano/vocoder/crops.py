"""The vocoder's training speech on the training device, and random crops of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.nano import load_fsq
from moss_engine.codec.vocoder.source_filter import SOURCE_EDGE, STEP, STEPS_PER_FRAME, pulses
from scripts.nano.speech.second_voice import FRAME_SAMPLES, VOICED_HZ
from scripts.nano.speech.shards import stream_mel

HOP = MOSS_MEL.hop_size
DECODE_FRAMES, DECODE_CONTEXT = 6000, 200


class Crops(NamedTuple):
    """Random crops. The mel has frames of context around; all else is of the frames inside, the
    source with SOURCE_EDGE around it."""

    mel: Tensor  # [batch, num_mels, left + frames + right]
    source: Tensor  # [batch, (left + frames + right) * HOP + 2 * SOURCE_EDGE]
    voiced: Tensor  # [batch, frames * HOP]
    rest: Tensor  # [batch, frames * HOP]
    f0_hz: Tensor  # [batch, 2 * (left + frames + right)], 0 where unvoiced


class VocoderSpeech:
    """The speech in parts, with its mel as it is and as it comes out of the codec."""

    def __init__(self, folder: Path, codec: Path, device: torch.device) -> None:
        shards = [dict(np.load(path)) for path in sorted(folder.glob("[0-9]*.npz"))]
        if not shards:
            raise CheckpointError(
                f"{folder} has no parts; run scripts.nano.teacher with --part-hours."
            )
        self.voiced, self.rest, self.phase, self.f0 = (
            torch.from_numpy(np.concatenate([shard[name] for shard in shards])).to(device)
            for name in ("voiced", "rest", "phase", "f0")
        )
        whole = (self.voiced.int() + self.rest).clamp(-32768, 32767).short()
        self.mel = stream_mel(whole, MOSS_MEL)
        self.decoded = decoded_mel(codec, self.mel, device)
        self.device = device

    @property
    def hours(self) -> float:
        return len(self.rest) / MOSS_MEL.sample_rate_hz / 3600

    def crops(self, batch: int, frames: int, context: tuple[int, int], true_share: float) -> Crops:
        """Random crops, about `true_share` of them with the true mel."""
        total = context[0] + frames + context[1]
        margin = -(-SOURCE_EDGE // HOP)
        first = torch.randint(margin, len(self.mel) - total - margin, (batch,), device=self.device)
        index = first[:, None] + torch.arange(total, device=self.device)
        is_true = torch.rand(batch, 1, 1, device=self.device) < true_share
        mel = torch.where(is_true, self.mel[index], self.decoded[index]).transpose(1, 2).float()
        inside = (first + context[0])[:, None] * HOP + torch.arange(
            frames * HOP, device=self.device
        )
        steps = (
            first[:, None] * HOP
            + torch.arange(total * STEPS_PER_FRAME, device=self.device) * STEP
            + STEP // 2
        )
        around = first[:, None] * HOP + torch.arange(
            -SOURCE_EDGE, total * HOP + SOURCE_EDGE, device=self.device
        )
        f0 = self._f0_at(around)
        phase = self.phase[around].float() / 65536 % 1
        source = pulses(phase, f0.clamp_min(VOICED_HZ), f0 > VOICED_HZ)
        voiced, rest = (part[inside].float() / 32768 for part in (self.voiced, self.rest))
        return Crops(mel, source, voiced, rest, self._f0_at(steps))

    def _f0_at(self, samples: Tensor) -> Tensor:
        at = ((samples + 0.5) / FRAME_SAMPLES - 0.5).clamp(0, len(self.f0) - 1.001)
        index = at.long()
        return torch.lerp(self.f0[index], self.f0[index + 1], (at - index).float())


@torch.inference_mode()
def decoded_mel(codec: Path, mel: Tensor, device: torch.device) -> Tensor:
    """Mel float16 [frames, num_mels] -> the mel that comes out of the codec, of the same shape."""
    fsq, decoded = load_fsq(codec, device), torch.empty_like(mel)
    for start in range(0, len(mel), DECODE_FRAMES):
        first = max(0, start - DECODE_CONTEXT)
        part = mel[first : start + DECODE_FRAMES + DECODE_CONTEXT].float()
        part = pad(part, (0, 0, 0, len(part) % 2), value=LOG_FLOOR).t()[None]
        made = fsq.mel_of_codes(fsq.codes_of_mel(part))[0].t()[start - first :]
        count = min(DECODE_FRAMES, len(mel) - start)
        decoded[start : start + count] = made[:count]
    return decoded
