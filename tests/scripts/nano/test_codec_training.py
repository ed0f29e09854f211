"""The codec's training commands on a few seconds of made-up speech."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.mel import log_mel
from moss_engine.codec.nano.codec import load_nano_codec
from moss_engine.codec.nano.fsq import codes_of_points, load_fsq
from moss_engine.config import NANO_CHECKPOINT
from scripts.nano import train_codec
from scripts.nano.speech.features import load_speech, mel_crops, random_starts, stream_mel
from scripts.nano.training import codec_trainee
from scripts.nano.training.schedule import Clock, one_cycle
from scripts.nano.vocoder.losses import mel_distance, stft_distance


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    """Six utterances of about a second: a gliding tone with noise, two of them held out."""
    folder = tmp_path_factory.mktemp("work") / "speech"
    folder.mkdir()
    random = np.random.default_rng(0)
    pcm, utterances, offset = [], [], 0
    for number in range(6):
        samples = 20_000 + 1111 * number
        wave = 0.2 * np.sin(np.cumsum(np.linspace(0.02, 0.1, samples))) + 0.02 * random.normal(
            size=samples
        )
        pcm.append((wave * 32767).astype("<i2"))
        split = "held" if number >= 4 else "train"
        utterances.append(
            {
                "id": number,
                "split": split,
                "offset": offset,
                "samples": samples,
                "words": [["la", 0.1]],
                "phonemes": base64.b64encode(bytes([7] * -(-samples // 960))).decode(),
            }
        )
        offset += samples
    np.concatenate(pcm).tofile(folder / "shard-00000.s16")
    (folder / "shard-00000.json").write_text(json.dumps({"utterances": utterances, "dropped": []}))
    (folder / "done.json").write_text("{}")
    return folder.parent


def run(module, monkeypatch, *args: object) -> None:
    monkeypatch.setattr("sys.argv", [module.__name__, *map(str, args), "--device", "cpu"])
    module.main()


def test_speech_is_one_stream_of_whole_codes(speech):
    train, held = load_speech(speech, torch.device("cpu"), max_hours=1.0)
    lengths = [-(-(20_000 + 1111 * n) // 960) * 960 for n in range(6)]
    assert (
        train.num_frames == sum(lengths[:4]) // 480 and held.num_frames == sum(lengths[4:]) // 480
    )
    assert len(train.phonemes) == train.num_frames // 2 and (train.phonemes == 7).all()
    assert train.pcm[20_000:20_160].abs().max() == 0 and train.pcm[20_160:21_000].abs().max() > 0


def test_the_streams_mel_is_that_of_the_wave_in_silence():
    pcm = (torch.randn(480 * 1203) * 3000).to(torch.int16)
    mel = stream_mel(pcm, MOSS_MEL)
    padded = torch.nn.functional.pad(pcm.float() / 32768, (4800, 4800))
    expected = log_mel(padded, MOSS_MEL).t()[10:-10]
    assert mel.shape == (1203, 80) and mel.dtype == torch.float16
    torch.testing.assert_close(mel.float(), expected, atol=1e-2, rtol=0)


def test_crops_lie_inside_and_on_codes():
    starts = random_starts(101, 20, 500, torch.device("cpu"), multiple=2)
    assert starts.min() == 0 and starts.max() == 80 and (starts % 2 == 0).all()
    mel = torch.arange(101.0)[:, None].expand(101, 80)
    torch.testing.assert_close(mel_crops(mel, starts, 20)[:, 0, 0], starts.float())
    with pytest.raises(SystemExit, match="does not fit"):
        random_starts(10, 20, 1, torch.device("cpu"))


def test_folding_the_normalisation_keeps_every_code():
    torch.manual_seed(0)
    trainee = codec_trainee.Trainee(codec_trainee.NANO_FSQ)
    mel = torch.randn(2, 80, 60) * 2 - 5
    for _ in range(3):
        trainee.points(mel)
    trainee.eval()
    with torch.no_grad():
        expected = codes_of_points(trainee.points(mel), codec_trainee.NANO_FSQ.levels)
        assert (trainee.folded().codes_of_mel(mel) == expected).float().mean() > 0.99
    assert len(expected.unique()) > 20


def test_the_codec_trains_resumes_and_speaks(speech, monkeypatch, capsys):
    codec = ("--work", speech, "--hours", 0, "--batch", 2, "--crop-frames", 60, "--seconds", 600)
    run(train_codec, monkeypatch, *codec, "--max-steps", 2)
    run(train_codec, monkeypatch, *codec, "--max-steps", 3)
    assert torch.load(speech / "codec.pt")["step"] == 3
    assert "codes in use" in capsys.readouterr().out
    assert load_fsq(speech / "codec").config == codec_trainee.NANO_FSQ
    stream = load_nano_codec(
        speech / "codec", NANO_CHECKPOINT / "vocoder" / "source_filter"
    ).open_stream()
    wave = np.concatenate([stream.push([1, 2, 3] * 5), stream.flush()])
    assert len(wave) == 15 * 960 and np.isfinite(wave).all()


def test_spectral_losses_are_zero_for_the_same_wave_only():
    wave = torch.randn(1, 6000) * 0.1
    assert mel_distance(wave, wave, MOSS_MEL) == 0 and stft_distance(wave, wave) == 0
    assert mel_distance(wave, wave * 0.5, MOSS_MEL) > 0.3 and stft_distance(wave, wave * 0.5) > 0.3


def test_rates_rise_and_fall():
    cycle = [one_cycle(i / 100, 1.0) for i in range(101)]
    assert max(cycle) == cycle[5] == 1.0 and cycle[-1] == pytest.approx(0.01)
    assert all(a >= b for a, b in pairwise(cycle[5:]))


def test_the_clock_goes_on_where_it_was(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("scripts.nano.training.schedule.time.monotonic", lambda: now[0])
    clock = Clock(total_s=10.0, call_s=30.0, spent_s=6.0)
    now[0] = 120.0  # compiling does not count
    clock.tick()
    assert clock.spent_s == 6.0 and clock.running
    now[0] = 123.0
    clock.tick()
    assert clock.progress == pytest.approx(0.9) and clock.running
    now[0] = 130.0
    assert not clock.running, "the call is over"
    clock.tick()
    assert clock.progress == 1.0


def test_a_training_of_one_call_is_what_is_left_after_the_first_step(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("scripts.nano.training.schedule.time.monotonic", lambda: now[0])
    clock = Clock(total_s=None, call_s=60.0, spent_s=0.0)
    assert clock.progress == 0.0 and clock.running
    for now[0], progress in ((120.0, 0.0), (140.0, 0.5), (160.0, 1.0)):
        clock.tick()
        assert clock.progress == pytest.approx(progress)
    assert not clock.running
