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
from moss_engine.codec.base import Push, samples_per_code
from moss_engine.codec.load import load_codec
from moss_engine.codec.moss.codec import MossCodec, MossStream
from moss_engine.codec.moss.load import FLOW_CHUNK, HIFT
from moss_engine.codec.moss.voice import Voice
from moss_engine.config import NANO_CHECKPOINT
from scripts.revoice import main as revoice
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


def random_codes(count: int, seed: int = 0) -> list[int]:
    return np.random.RandomState(seed).randint(0, 64, count).tolist()


def spoken(stream: MossStream, codes: list[int], sizes: list[int]) -> np.ndarray:
    waves, at = [], 0
    for size in sizes:
        waves.append(stream.push(codes[at : at + size]))
        at += size
    return np.concatenate([*waves, stream.push(codes[at:]), stream.flush()])


def test_sound_begins_after_eight_codes_and_goes_on_in_fives(codec):
    assert samples_per_code(codec) == 1920 and codec.sample_rate_hz == 24_000
    stream, codes, heard = codec.open_stream(), iter(random_codes(40)), []
    assert stream.lasting_codes == 13  # those of the first two chunks
    assert [stream.places(count) for count in (8, 12, 13)] == [2, 2, 3]  # beside the voice's last
    for _ in range(5):
        asked = stream.missing_codes
        heard.append((asked, len(stream.push([next(codes) for _ in range(asked)]))))
        assert (stream.lasting_codes, stream.places(5)) == (5, 1)
    # the voice's own last chunk looks 3 codes into the reply; 12 of 20 frames are held back
    assert heard == [(8, 8 * 480), (5, 9600), (5, 9600), (5, 9600), (5, 9600)]
    assert len(stream.push([next(codes) for _ in range(4)])) == 0
    assert stream.missing_codes == 1


@pytest.mark.parametrize("count", [1, 7, 8, 13])
def test_every_code_becomes_80_ms(codec, count):
    stream = codec.open_stream()
    wave = spoken(stream, random_codes(count), [])
    assert wave.dtype == np.float32 and len(wave) == 1920 * count
    assert np.isfinite(wave).all() and np.abs(wave).max() <= 0.99 and wave.std() > 0


def test_the_same_codes_sound_the_same_in_any_pieces(codec):
    codes = random_codes(31, seed=4)
    ones = spoken(codec.open_stream(), codes, [1] * 31)
    assert np.array_equal(ones, spoken(codec.open_stream(VOICE), codes, [1] * 31))
    for sizes in ([8, 5, 5], [3, 20], [31]):
        assert np.allclose(spoken(codec.open_stream(), codes, sizes), ones, atol=1e-5)
    going, ending = codec.open_stream(), codec.open_stream()
    pieces = [ending.push(codes[:28]), going.push(codes[:8])]
    work = [Push(ending, codes[28:], is_last=True), Push(going, codes[8:13])]
    pieces += codec.push_together(work)
    assert np.allclose(np.concatenate(pieces[::2]), ones, atol=1e-5)
    assert np.allclose(np.concatenate(pieces[1::2]), ones[: 28 * 480], atol=1e-5)


def test_replies_together_are_replies_alone(codec):
    replies = [random_codes(count, seed) for seed, count in enumerate((23, 18, 9))]
    alone = [spoken(codec.open_stream(), codes, [8, 5, 5]) for codes in replies]
    streams = [codec.open_stream() for _ in replies]
    parts: list[list[np.ndarray]] = [[] for _ in replies]
    for at, size in ((0, 8), (8, 5), (13, 5), (18, 99)):
        waves = codec.push_together(
            [Push(s, codes[at : at + size]) for s, codes in zip(streams, replies, strict=True)]
        )
        for part, wave in zip(parts, waves, strict=True):
            part.append(wave)
    ends = codec.push_together([Push(stream, (), is_last=True) for stream in streams])
    for part, wave, wanted in zip(parts, ends, alone, strict=True):
        assert np.allclose(np.concatenate([*part, wave]), wanted, atol=1e-5)


def test_a_failed_run_takes_no_codes(codec, monkeypatch):
    codes = random_codes(28, seed=7)
    wanted = spoken(codec.open_stream(), codes, [8, 10, 10])
    streams = [codec.open_stream(), codec.open_stream()]
    first = codec.push_together([Push(stream, codes[:8]) for stream in streams])
    run, speak = codec._run, codec.vocoder.speak
    for owner, name, calls in ((codec, "_run", 0), (codec, "_run", 1), (codec.vocoder, "speak", 0)):
        left = [calls]

        def failing(*args, left=left, real=run if name == "_run" else speak):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("out of memory")
            return real(*args)

        monkeypatch.setattr(owner, name, failing)
        with pytest.raises(RuntimeError):
            codec.push_together([Push(stream, codes[8:18]) for stream in streams])
        monkeypatch.undo()
    second = codec.push_together([Push(stream, codes[8:18]) for stream in streams])
    for stream, *waves in zip(streams, first, second, strict=True):
        wave = np.concatenate([*waves, stream.push(codes[18:]), stream.flush()])
        assert np.allclose(wave, wanted, atol=1e-5)


@pytest.mark.parametrize("code", [-1, 64])
def test_a_code_that_the_codec_lacks_is_refused_before_anything_runs(codec, code):
    stream, codes = codec.open_stream(), random_codes(8)
    with pytest.raises(ParameterError, match=f"code {code} is none of .*; give codes from 0 to 63"):
        stream.push([*codes[:5], code])
    assert len(spoken(stream, codes, [])) == 8 * 1920


def test_voices_come_and_go(codec):
    assert codec.voices == (VOICE,)
    with pytest.raises(ParameterError, match="voice 'nobody' is unknown; choose one of tiny"):
        codec.open_stream("nobody")
    mine = Voice("mine", tuple(random_codes(5)), torch.randn(80, 20), torch.randn(192))
    codec.add_voice(mine)
    with pytest.raises(ParameterError, match=r"choose one of tiny\.$"):  # others' are secrets
        codec.open_stream("nobody")
    codes = random_codes(8)
    stream = codec.open_stream("mine")
    assert not np.allclose(
        spoken(stream, codes, []), spoken(codec.open_stream(VOICE), codes, []), atol=1e-3
    )
    late = codec.open_stream("mine")
    codec.remove_voice("mine")
    assert len(spoken(late, codes, [])) == 8 * 1920
    with pytest.raises(ParameterError):
        codec.open_stream("mine")
    codec.remove_voice(VOICE)
    assert codec.voices == (VOICE,)


def test_speech_becomes_codes(codec):
    wave = np.random.RandomState(1).standard_normal(44_100).astype(np.float32) * 0.1
    codes = codec.encode(wave, 44_100)
    assert len(codes) == 13 and all(0 <= code < codec.num_codes for code in codes)


def test_bigvgan_speaks_the_same_mel(folder, tmp_path):
    make_tiny_codec(tmp_path)
    codec = load_codec(folder, vocoder="bigvgan", vocoder_folder=tmp_path / "vocoder")
    assert isinstance(codec, MossCodec)
    codes = random_codes(33)
    ones = spoken(codec.open_stream(), codes, [1] * 33)
    assert len(ones) == 33 * 1920
    assert np.allclose(spoken(codec.open_stream(), codes, [11, 11]), ones, atol=1e-5)
    assert not np.allclose(spoken(load_codec(folder).open_stream(), codes, []), ones, atol=1e-3)


def test_a_bigvgan_of_another_mel_is_refused_with_both(folder, tmp_path):
    make_tiny_codec(tmp_path)
    path = tmp_path / "vocoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fmax": 12_000, "n_fft": 1024}))
    with pytest.raises(MelSpecError) as caught:
        load_codec(folder, vocoder="bigvgan", vocoder_folder=tmp_path / "vocoder")
    for part in ("fmax_hz=12000.0", "fmax_hz=8000.0", "n_fft=1024", "n_fft=1920", "--vocoder hift"):
        assert part in str(caught.value)


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
    codes = random_codes(13)
    wave = spoken(load_codec(folder, dtype="bfloat16").open_stream(), codes, [])
    assert len(wave) == 13 * 1920 and np.isfinite(wave).all()
    assert not np.array_equal(wave, spoken(codec.open_stream(), codes, []))


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
