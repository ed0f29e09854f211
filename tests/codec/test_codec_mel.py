"""Mel, resampling and PCM against independent numpy formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from moss_engine.audio.pcm import to_pcm16, waveform_peaks
from moss_engine.codec.base import MOSS_MEL, MelSpec
from moss_engine.codec.mel import log_mel

SMALL = MelSpec(8000, 256, 256, 64, 20, 60.0, 3500.0)


def slaney_hz(mel: float) -> float:
    return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)


def slaney_mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)


def numpy_filters(spec: MelSpec) -> np.ndarray:
    """One triangle at a time, bin by bin."""
    low, high = slaney_mel(spec.fmin_hz), slaney_mel(spec.fmax_hz)
    corners = [
        slaney_hz(low + (high - low) * i / (spec.num_mels + 1)) for i in range(spec.num_mels + 2)
    ]
    filters = np.zeros((spec.num_mels, spec.n_fft // 2 + 1))
    for band in range(spec.num_mels):
        left, centre, right = corners[band : band + 3]
        for bin in range(filters.shape[1]):
            hz = bin * spec.sample_rate_hz / spec.n_fft
            if left < hz < right:
                height = min((hz - left) / (centre - left), (right - hz) / (right - centre))
                filters[band, bin] = height * 2 / (right - left)
    return filters


def numpy_log_mel(wave: np.ndarray, spec: MelSpec) -> np.ndarray:
    edge = (spec.n_fft - spec.hop_size) // 2
    padded = np.pad(wave.astype(np.float64), edge, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(spec.win_size) / spec.win_size)
    frames = (len(padded) - spec.n_fft) // spec.hop_size + 1
    columns = []
    for i in range(frames):
        spectrum = np.fft.rfft(padded[i * spec.hop_size :][: spec.n_fft] * window)
        columns.append(np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9))
    return np.log(np.maximum(numpy_filters(spec) @ np.stack(columns, 1), 1e-5))


@pytest.mark.parametrize(("spec", "samples"), [(MOSS_MEL, 4800), (MOSS_MEL, 5003), (SMALL, 1000)])
def test_log_mel_equals_numpys(spec, samples):
    wave = np.random.default_rng(0).normal(size=samples) * 0.1
    mel = log_mel(torch.from_numpy(wave).float(), spec)
    assert mel.shape == (spec.num_mels, samples // spec.hop_size)
    np.testing.assert_allclose(mel.numpy(), numpy_log_mel(wave, spec), atol=2e-3)


def test_pcm_rounds_and_clips():
    samples = np.array([0.0, 1.0, -1.0, 1.5, -1.5, 0.5 / 32767, 0.6 / 32767], dtype=np.float32)
    assert to_pcm16(samples).tolist() == [0, 32767, -32767, 32767, -32768, 0, 1]

    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="NaN"):
            to_pcm16(np.array([0.0, bad], dtype=np.float32))


@pytest.mark.parametrize("num_samples", [0, 3, 100, 1001])
def test_peaks_cover_every_sample(num_samples):
    pcm = np.random.default_rng(0).integers(-32768, 32768, num_samples).astype(np.int16)
    peaks = waveform_peaks(pcm, 10)
    assert peaks.shape == (10, 2)
    assert peaks[:, 0].min() == (pcm.min() / 32768 if num_samples else 0)
    assert peaks[:, 1].max() == (pcm.max() / 32768 if num_samples else 0)
