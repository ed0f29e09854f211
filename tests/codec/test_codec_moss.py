"""The published codec as a whole, in its own file layout at tiny sizes: streaming, voices,
vocoders, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from moss_engine.api.errors import CheckpointError, ConfigError, MelSpecError, ParameterError
from moss_engine.audio.pcm import read_wav, write_wav
from moss_engine.codec.base import samples_per_code
from moss_engine.codec.load import load_codec
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.codec.moss.load import FLOW_CHUNK, HIFT
from moss_engine.codec.moss.voice import Voice
from moss_engine.config import NANO_CHECKPOINT
from scripts.revoice import main as revoice
from tests.codec.speaking import push, some_codes, spoken
from tests.fixtures.make_tiny_codec import make_tiny_codec
from tests.fixtures.make_tiny_moss import VOICE, make_tiny_codec_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("moss") / "codec"
    make_tiny_codec_folder(path)
    return path


@pytest.fixture(scope="module")
def codec(folder: Path) -> MossCodec:
    codec = load_codec(folder)
    assert isinstance(codec, MossCodec)
    return codec


def test_sound_begins_after_eight_codes_and_goes_on_in_fives(codec):
    assert samples_per_code(codec) == 1920 and codec.sample_rate_hz == 24_000
    stream, codes, heard = codec.open_stream(), iter(some_codes(40)), []
    assert stream.lasting_codes == 13  # those of the first two chunks
    assert [stream.places(count) for count in (8, 12, 13)] == [2, 2, 3]  # beside the voice's last
    for _ in range(5):
        asked = stream.missing_codes
        heard.append((asked, len(push(codec, stream, [next(codes) for _ in range(asked)]))))
        assert (stream.lasting_codes, stream.places(5)) == (5, 1)
    # the voice's own last chunk looks 3 codes into the reply; 12 of 20 frames are held back
    assert heard == [(8, 8 * 480), (5, 9600), (5, 9600), (5, 9600), (5, 9600)]
    assert len(push(codec, stream, [next(codes) for _ in range(4)])) == 0
    assert stream.missing_codes == 1


def test_voices_come_and_go(codec):
    assert codec.voices == (VOICE,)
    mine = Voice("mine", tuple(some_codes(5)), torch.randn(80, 20), torch.randn(192))
    codec.add_voice(mine)
    with pytest.raises(ParameterError, match=r"choose one of tiny\.$"):  # others' are secrets
        codec.open_stream("nobody")
    codes = some_codes(8)
    assert not np.allclose(spoken(codec, codes, voice="mine"), spoken(codec, codes, voice=VOICE))
    late = codec.open_stream("mine")
    codec.remove_voice("mine")
    assert len(push(codec, late, codes, is_last=True)) == 8 * 1920
    with pytest.raises(ParameterError):
        codec.open_stream("mine")
    codec.remove_voice(VOICE)
    assert codec.voices == (VOICE,)


def test_a_bigvgan_of_another_mel_is_refused_with_both(folder, tmp_path):
    make_tiny_codec(tmp_path)
    path = tmp_path / "vocoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fmax": 12_000, "n_fft": 1024}))
    says = r"n_fft 1920 against 1024; fmax_hz 8000.0 against 12000.0\); name .* --vocoder-folder"
    with pytest.raises(MelSpecError, match=says):
        load_codec(folder, vocoder="bigvgan", vocoder_folder=tmp_path / "vocoder")


def test_options_of_the_other_codec_are_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="--vocoder hift is for the MOSS-Speech codec"):
        load_codec(NANO_CHECKPOINT, vocoder="hift")
    with pytest.raises(ConfigError, match="--codec-dtype float16"):
        load_codec(NANO_CHECKPOINT, dtype="float16")
    with pytest.raises(ConfigError, match="ask for it with --vocoder bigvgan"):
        load_codec(folder, vocoder_folder=tmp_path)


def test_what_is_missing_is_said(folder, tmp_path):
    for name, says in (
        (FLOW_CHUNK, "flow-chunk-5.pt is missing"),
        (HIFT, "hift.pt is missing"),
        ("voices", "holds no voice.*scripts.voice make"),
        ("model.safetensors", "model.safetensors"),
    ):
        copy = tmp_path / name.replace("/", "_")
        shutil.copytree(folder, copy)
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        with pytest.raises(CheckpointError, match=says):
            load_codec(copy)


def test_sixteen_bits_are_an_option(folder, codec):
    codes = some_codes(13)
    wave = spoken(load_codec(folder, dtype="bfloat16"), codes)
    assert len(wave) == 13 * 1920 and np.isfinite(wave).all()
    assert not np.array_equal(wave, spoken(codec, codes))


def test_a_recording_is_said_again(folder, tmp_path, capsys):
    sample, out = tmp_path / "sample.wav", tmp_path / "again.wav"
    wave = np.random.RandomState(0).standard_normal(16_000) * 3000
    write_wav(sample, wave.astype(np.int16), 16_000)
    given = [str(sample), str(out), "--codec", str(folder), "--device", "cpu", "--voice"]
    revoice([*given, VOICE])
    said, rate_hz = read_wav(out)
    assert rate_hz == 24_000 and len(said) == 13 * 1920  # of a second, 13 codes
    assert "13 codes, 1.04 s" in capsys.readouterr().out
    with pytest.raises(ParameterError, match="'nobody' is unknown"):
        revoice([*given, "nobody"])


def test_what_cannot_be_read_or_written_is_refused_before_the_codec_is(tmp_path: Path) -> None:
    sample, out = tmp_path / "sample.wav", tmp_path / "missing" / "out.wav"
    with pytest.raises(ConfigError, match=r"There is no file .*sample\.wav; name a recording"):
        revoice([str(sample), str(out), "--codec", str(tmp_path)])
    write_wav(sample, np.full(16_000, 3277, np.int16), 16_000)
    with pytest.raises(ConfigError, match=r"out\.wav cannot be written \(No such .*name another"):
        revoice([str(sample), str(out), "--codec", str(tmp_path)])
    with pytest.raises(CheckpointError):
        revoice([str(sample), str(tmp_path / "out.wav"), "--codec", str(tmp_path)])
    assert not (tmp_path / "out.wav").exists()
