"""The vocoder's training on a few seconds of made-up speech in its parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.vocoder.make import make_vocoder
from moss_engine.config import NANO_CHECKPOINT
from scripts.nano import export_vocoder, train_vocoder
from scripts.nano.speech.pitch_track import track_f0
from scripts.nano.vocoder import speech as vocoder_speech
from scripts.nano.vocoder import trainer as vocoder_trainer
from scripts.nano.vocoder.critics import make_critics
from scripts.nano.vocoder.streams import HOP, VocoderSpeech
from scripts.nano.vocoder.trainer import PRESETS, Trainer, part_distance

CPU = torch.device("cpu")
UNITS = 40
TINY = {
    "source_filter_small": {"width": 16, "blocks": 3, "fine_blocks": 1, "pitch_width": 8},
    "bigvgan": {"width": 16, "pitch_width": 8},
}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Four seconds of 200 Hz pulses beside noise, the last quarter of them not known in parts."""
    work = tmp_path_factory.mktemp("work")
    (work / "vocoder_speech").mkdir()
    samples, random = UNITS * vocoder_speech.UNIT, np.random.default_rng(0)
    f0 = np.full(samples // vocoder_speech.F0_HOP, 200, np.float32)
    phase = vocoder_speech._phase_of(f0)
    np.savez(
        work / "vocoder_speech" / "00000.npz",
        voiced=(8000 * np.cos(2 * np.pi * phase)).astype(np.int16),
        rest=(300 * random.normal(size=samples)).astype(np.int16),
        phase=(phase % 1 * 65536).astype(np.uint16).view(np.int16),
        f0=f0,
        parted=np.arange(UNITS) < 30,
    )
    return work


@pytest.fixture
def tiny(monkeypatch) -> None:
    presets = {name: replace(PRESETS[name], sizes=sizes) for name, sizes in TINY.items()}
    for module in (vocoder_trainer, train_vocoder, export_vocoder):
        monkeypatch.setattr(module, "PRESETS", presets)
    monkeypatch.setattr(train_vocoder, "WARM_UP_STEPS", 0)
    monkeypatch.setattr(train_vocoder, "REPORT_EVERY_STEPS", 1)


@pytest.fixture(scope="module")
def speech(work) -> VocoderSpeech:
    return VocoderSpeech(work / "vocoder_speech", NANO_CHECKPOINT / "codec", CPU)


def test_crops_show_one_place_in_every_stream(speech):
    torch.manual_seed(0)
    crops = speech.crops(32, 20, (12, 8), 0.5)
    assert crops.mel.shape == (32, 80, 40) and crops.rest.shape == (32, 20 * HOP)
    assert {*crops.parted.flatten().tolist()} == {0.0, 1.0}
    assert (crops.f0_hz == 200).all()
    edge = (crops.source.shape[1] - 40 * HOP) // 2
    inside = crops.source[:, edge + 12 * HOP :][:, : 20 * HOP]
    spectrum = torch.fft.rfft(inside * torch.hann_window(20 * HOP)).abs()
    voiced = torch.fft.rfft(crops.voiced * torch.hann_window(20 * HOP))
    at = round(200 * 20 * HOP / MOSS_MEL.sample_rate_hz)
    turned = torch.fft.rfft(inside * torch.hann_window(20 * HOP))[:, at] / voiced[:, at]
    assert (turned.angle().abs() < 0.05).all(), "the pulses are in phase with the voice"
    assert spectrum[:, at].min() > 10 * spectrum[:, at + at // 2].max()


@pytest.mark.parametrize("preset", sorted(TINY))
def test_it_trains_goes_on_and_speaks(work, tiny, monkeypatch, capsys, preset):
    def run(*options: object) -> None:
        arguments = ("train_vocoder", preset, "--work", work, "--batch", 1, "--device", "cpu")
        monkeypatch.setattr("sys.argv", [*map(str, (*arguments, "--crop-frames", 10, *options))])
        train_vocoder.main()

    run("--max-steps", 1, "--stage-a", 1)
    first = torch.load(work / f"{preset}.pt")
    run("--max-steps", 2, "--stage-a", 0, "--init", work / f"{preset}.pt", "--rate", 0.01)
    second = torch.load(work / f"{preset}.pt")
    assert first.keys() == second.keys()
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert "critics" in capsys.readouterr().out
    folder = export_vocoder.export(preset, work, 1.0, None)
    vocoder = make_vocoder(folder, CPU, (4,), 1)
    stream = vocoder.open()
    stream.add(torch.full((80, 10), -3.0))
    (wave,) = vocoder.flush_together([stream])
    assert len(wave) == 10 * HOP and wave.isfinite().all()


def test_only_known_parts_teach_the_parts(work, speech, tiny):
    """Of a voice that is one wave, the generator may divide the sound as it likes."""
    torch.manual_seed(1)
    trainer = Trainer("source_filter_small", 2, 10, CPU)
    crops = speech.crops(2, 10, trainer.preset.context, 1.0)
    voiced = torch.randn_like(crops.voiced) * 0.1
    distances = []
    for parted in (0.0, 1.0):
        trainer.fill(crops._replace(parted=torch.full((2, 1), parted)))
        _, figures = trainer._distances(voiced, crops.rest)
        distances.append(figures[2].item())
    assert distances[0] == 0 < distances[1]


def test_critics_judge_waves_of_any_length():
    wave = torch.randn(2, 4801)
    for critic in make_critics():
        maps = critic(wave)
        assert len(maps) == 6 and all(m.shape[0] == 2 for m in maps)


def test_part_distance_hears_the_phase():
    wave = torch.randn(1, 9600) * 0.1
    assert part_distance(wave, wave) == 0 < part_distance(wave, -wave)


def test_f0_is_tracked_through_a_glide_and_silence():
    rate, hop = 24_000, 300
    f0 = np.concatenate([np.linspace(110, 180, 80), np.zeros(40), np.full(80, 95.0)])
    at = np.interp(np.arange(200 * hop) / hop - 0.5, np.arange(200), f0)
    phase = np.cumsum(at) / rate
    wave = sum(np.cos(2 * np.pi * h * phase) / h for h in range(1, 12)) * np.repeat(f0 > 0, hop)
    found = track_f0(0.1 * wave + 1e-4 * np.random.default_rng(0).normal(size=len(wave)), rate, hop)
    steady = np.r_[5:75, 125:195]
    assert np.abs(1200 * np.log2(found[steady] / f0[steady])).max() < 40
    assert (found[85:115] == 0).all()


def test_another_pitch_and_size_keep_pulses_and_phase_together():
    """Played slower, every pulse of the sum of cosines still lies where the phase says."""
    f0 = np.full(80, 200, np.float32)
    phase = vocoder_speech._phase_of(f0)
    voiced, rest, moved, lower = vocoder_speech._played_at(
        0.8,
        np.cos(2 * np.pi * phase).astype(np.float32),
        np.zeros(len(phase), np.float32),
        phase,
        f0,
    )
    inside = slice(3000, -3000)
    assert lower[20] == pytest.approx(160) and len(voiced) == len(rest) == len(moved)
    assert np.abs(voiced - np.cos(2 * np.pi * moved))[inside].max() < 0.02


def test_rates_fall_from_the_second_stage_on():
    rates = [train_vocoder.rate_at(k / 100, 0.12, 1.0) for k in range(101)]
    assert rates[5] == 2.0 and rates[12] == pytest.approx(1.0) and rates[-1] == pytest.approx(0.04)
    assert rates[12:] == sorted(rates[12:], reverse=True)
