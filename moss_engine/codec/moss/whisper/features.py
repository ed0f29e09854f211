"""Whisper's log-mel features: 16 kHz, 128 bands, 100 frames a second.

The formula is that of transformers' WhisperFeatureExtractor with the settings of the published
codec, float32.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError
from moss_engine.api.small_files import read_json
from moss_engine.codec.base import MelSpec
from moss_engine.codec.mel import slaney_filters
from moss_engine.codec.resample import resample

WHISPER_MEL = MelSpec(
    sample_rate_hz=16_000,
    n_fft=400,
    win_size=400,
    hop_size=160,
    num_mels=128,
    fmin_hz=0.0,
    fmax_hz=8000.0,
)
"""Its geometry; the formula is another than that of MelSpec's own docstring."""
MAX_PIECE_SAMPLES = 480_000
"""30 s, the longest stretch that the encoder sees at once."""
POWER_FLOOR = 1e-10
RANGE_DECADES = 8.0
"""What is more than 80 dB below the loudest point of a piece is raised to that."""
PREPROCESSOR_NAME = "preprocessor_config.json"
SETTINGS = {
    "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 16_000, "n_fft": 400,
    "hop_length": 160, "feature_size": 128, "chunk_length": 30, "n_samples": 480_000,
    "nb_max_frames": 3000, "padding_value": 0.0, "padding_side": "right",
}  # fmt: skip
"""The settings that are implemented, under the names of `preprocessor_config.json`."""
OPTIONAL_SETTINGS = {"dither": 0.0, "do_normalize": False}
"""Settings of newer files; a file without them means these."""


def to_16_khz(wave: Tensor, sample_rate_hz: int) -> Tensor:
    """float32 [samples] at any rate -> at 16 kHz, with the filter of torchaudio's Resample."""
    return resample(
        wave, sample_rate_hz, WHISPER_MEL.sample_rate_hz, zero_crossings=6, roll_off=0.99
    )


def whisper_features(wave: Tensor) -> Tensor:
    """float32 [pieces, samples] at 16 kHz -> float32 [pieces, 128, samples // 160].

    Every piece is measured against its own loudest point. Needs a multiple of 160 samples, and more
    than 200.
    """
    assert wave.shape[-1] % WHISPER_MEL.hop_size == 0 and wave.shape[-1] > WHISPER_MEL.n_fft // 2
    window, filters = _window_and_filters(wave.device)
    edge = WHISPER_MEL.n_fft // 2
    mirrored = pad(wave, (edge, edge), mode="reflect")
    spectrum = torch.stft(
        mirrored,
        WHISPER_MEL.n_fft,
        WHISPER_MEL.hop_size,
        window=window,
        center=False,
        return_complex=True,
    )[..., :-1]  # the frame centred on the last sample is left out
    power = torch.view_as_real(spectrum).square().sum(-1)  # [pieces, 201, frames]
    decades = (filters @ power).clamp_min(POWER_FLOOR).log10()
    floor = decades.amax(dim=(1, 2), keepdim=True) - RANGE_DECADES
    return (torch.maximum(decades, floor) + 4) / 4


def check_settings(path: Path) -> None:
    """Raise CheckpointError unless `preprocessor_config.json` asks for these features."""
    values = read_json(path, again="download the codec again.")
    found = {name: values.get(name) for name in SETTINGS}
    found |= {name: values.get(name, usual) for name, usual in OPTIONAL_SETTINGS.items()}
    differing = [
        f"{name} {found[name]!r} instead of {value!r}"
        for name, value in (SETTINGS | OPTIONAL_SETTINGS).items()
        if found[name] != value
    ]
    if differing:
        raise CheckpointError(
            f"{path} describes another front end ({'; '.join(differing)}); "
            "use the published MOSS-Speech codec."
        )


@lru_cache(maxsize=4)
def _window_and_filters(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(WHISPER_MEL.win_size, device=device), slaney_filters(WHISPER_MEL).to(
        device
    )
