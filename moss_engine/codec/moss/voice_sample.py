"""A recorded sample -> a voice: its codes, its mel and its speaker vector, cut to one length."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from moss_engine.api.errors import AudioEmptyError, AudioLongError
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.moss.voice import FRAMES_PER_CODE, GROUP_CODES, MAX_CODES, Voice, check_name
from moss_engine.codec.moss.whisper.features import to_16_khz
from moss_engine.codec.resample import resample

ADVISED_S = (3.0, 6.0)
"""Shorter says little about a voice; longer is computed once per voice but kept for every reply."""
SHORTEST_S = 1.0
CODE_S = FRAMES_PER_CODE * MOSS_MEL.hop_size / MOSS_MEL.sample_rate_hz
LONGEST_S = MAX_CODES * CODE_S


class Encoder(Protocol):
    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]: ...


class Speaker(Protocol):
    def vector(self, wave: torch.Tensor) -> torch.Tensor: ...


@torch.inference_mode()
def make_voice(
    name: str, wave: np.ndarray, sample_rate_hz: int, encoder: Encoder, speaker: Speaker
) -> Voice:
    """A voice of float32 [samples] mono, trimmed at its end to a multiple of 5 codes (0.4 s).

    Codes come from the recording as it is; mel and speaker vector from the recording at 24 kHz, the
    vector by way of 16 kHz: with other orders the published decoder hears another voice. Raises
    ParameterError for a name that no voice may have, AudioEmptyError below 1 s and AudioLongError
    above 30 s.
    """
    check_name(name)
    duration_s = len(wave) / sample_rate_hz
    if duration_s < SHORTEST_S:
        raise AudioEmptyError(
            f"The sample lasts {duration_s:.1f} s; record {ADVISED_S[0]:g} to {ADVISED_S[1]:g} s."
        )
    if duration_s > LONGEST_S:
        raise AudioLongError(
            f"The sample lasts {duration_s:.0f} s, the limit is {LONGEST_S:g} s; "
            f"{ADVISED_S[0]:g} to {ADVISED_S[1]:g} s are best."
        )
    samples = torch.from_numpy(np.ascontiguousarray(wave, dtype=np.float32))
    at_24_khz = resample(
        samples, sample_rate_hz, MOSS_MEL.sample_rate_hz, zero_crossings=6, roll_off=0.99
    )
    mel = log_mel(at_24_khz, MOSS_MEL)
    codes = encoder.encode(wave, sample_rate_hz)
    vector = speaker.vector(to_16_khz(at_24_khz, MOSS_MEL.sample_rate_hz))
    num_codes = min(mel.shape[1] // FRAMES_PER_CODE, len(codes))
    num_codes -= num_codes % GROUP_CODES
    return Voice(
        name, tuple(codes[:num_codes]), mel[:, : FRAMES_PER_CODE * num_codes].clone(), vector
    )


def advice(duration_s: float) -> str | None:
    """A sentence for a sample that is shorter or longer than advised."""
    if ADVISED_S[0] <= duration_s <= ADVISED_S[1]:
        return None
    return (
        f"The sample lasts {duration_s:.1f} s; voices are best made of {ADVISED_S[0]:g} to "
        f"{ADVISED_S[1]:g} s."
    )
