"""Speech -> a vector that says whose it is: CAM++ of the published codec, an ONNX file run by
onnxruntime on the CPU, behind Kaldi's filter bank (80 bands, 25 ms windows every 10 ms, no dither).
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError, MissingPackageError
from moss_engine.api.telemetry import switch_off_telemetry
from moss_engine.codec.moss.voice import SPEAKER_DIM

SAMPLE_RATE_HZ = 16_000
WINDOW, HOP, N_FFT, NUM_BANDS = 400, 160, 512, 80
PRE_EMPHASIS = 0.97
LOWEST_HZ, HIGHEST_HZ = 20.0, 8000.0
FLOOR = torch.finfo(torch.float32).eps


def fbank(wave: Tensor) -> Tensor:
    """float32 [samples] at 16 kHz -> log energies float32 [frames, 80], where there are
    1 + (samples - 400) // 160 frames.

    Only whole windows count. Each is freed of its mean, pre-emphasised and weighted with Povey's
    window.
    """
    assert wave.dim() == 1 and len(wave) >= WINDOW, "a filter bank needs 25 ms of sound"
    frames = wave.unfold(0, WINDOW, HOP)
    frames = frames - frames.mean(1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)
    shaped = (frames - PRE_EMPHASIS * before) * torch.hann_window(WINDOW, periodic=False).pow(0.85)
    # [frames, 257]
    power = torch.view_as_real(torch.fft.rfft(pad(shaped, (0, N_FFT - WINDOW)))).square().sum(-1)
    return (power[:, :-1] @ _filters()).clamp_min(FLOOR).log()


@lru_cache(maxsize=1)
def _filters() -> Tensor:
    """float32 [256, 80]: triangles of height 1, evenly spread and straight on Kaldi's mel scale."""
    low, high = (1127 * math.log(1 + hz / 700) for hz in (LOWEST_HZ, HIGHEST_HZ))
    corners = torch.linspace(low, high, NUM_BANDS + 2, dtype=torch.float64)
    mel = (
        1127
        * (1 + torch.arange(N_FFT // 2, dtype=torch.float64) * SAMPLE_RATE_HZ / N_FFT / 700).log()[
            :, None
        ]
    )
    rising = (mel - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - mel) / (corners[2:] - corners[1:-1])
    return torch.minimum(rising, falling).clamp_min(0).float()


CAMPPLUS_NAME = "flow/campplus.onnx"
INSTALL = "pip install onnxruntime"


class SpeakerEncoder:
    """Speech -> a vector that says whose it is."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a bad file, MissingPackageError without onnxruntime."""
        switch_off_telemetry()
        try:
            import onnxruntime
        except ImportError:
            raise MissingPackageError(
                f"Making a voice needs the package onnxruntime; run: {INSTALL}"
            ) from None
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; download the codec again.")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), options, ["CPUExecutionProvider"]
            )
            (self._input,), (output,) = self._session.get_inputs(), self._session.get_outputs()
        except Exception as error:  # the package has no common base class for its errors
            raise CheckpointError(
                f"{path} is no speaker network ({type(error).__name__}); download the codec again."
            ) from None
        if output.shape[-1] != SPEAKER_DIM:
            raise CheckpointError(
                f"{path} gives vectors of {output.shape[-1]} values instead of {SPEAKER_DIM}; "
                "use the published MOSS-Speech codec."
            )

    def vector(self, wave: Tensor) -> Tensor:
        """float32 [samples] at 16 kHz, 25 ms or more -> float32 [192]"""
        features = fbank(wave)
        features = features - features.mean(0, keepdim=True)
        (found,) = self._session.run(None, {self._input.name: features[None].numpy()})
        return torch.from_numpy(found).reshape(SPEAKER_DIM).float()
