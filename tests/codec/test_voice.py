"""Voices: made of a sample, kept in a folder, found again, refused where they do not belong."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
import torch

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioLongError,
    CheckpointError,
    ConfigError,
    ParameterError,
)
from moss_engine.codec.base import MOSS_MEL
from moss_engine.codec.load import load_codec
from moss_engine.codec.mel import log_mel
from moss_engine.codec.moss.speaker import CAMPPLUS_NAME, SpeakerEncoder, fbank
from moss_engine.codec.moss.voice import (
    JSON_NAME,
    TENSORS_NAME,
    Voice,
    check_name,
    list_voices,
    load_voice,
    make_voice,
    remove_voice,
    save_voice,
)
from moss_engine.codec.moss.whisper import load_whisper_vq
from moss_engine.codec.resample import resample
from scripts import voice as command
from tests.codec.speaking import spoken
from tests.fixtures.golden.make_speech import sound
from tests.fixtures.make_tiny_moss import make_tiny_codec_folder, make_tiny_encoder, speaker_matrix

RATE_HZ = 44_100


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    path = tmp_path_factory.mktemp("codec")
    make_tiny_encoder(path)
    return path


@pytest.fixture(scope="module")
def encoder(codec):
    return load_whisper_vq(codec)


class FixedSpeaker:
    def vector(self, wave: torch.Tensor) -> torch.Tensor:
        return torch.full((192,), float(len(wave)))


def some_voice(name: str = "Anna") -> Voice:
    return Voice(name, tuple(range(10)), torch.arange(3200.0).view(80, 40), torch.ones(192))


@pytest.mark.parametrize(
    ("duration_s", "num_codes"), [(1.0, 10), (3.99, 45), (4.0, 50), (4.05, 50)]
)
def test_a_sample_is_trimmed_to_groups_of_five_codes(encoder, duration_s, num_codes):
    wave = sound(round(duration_s * RATE_HZ), RATE_HZ)
    voice = make_voice("Anna", wave, RATE_HZ, encoder.encode(wave, RATE_HZ), FixedSpeaker())
    assert len(voice.codes) == num_codes and voice.mel.shape == (80, 4 * num_codes)
    assert list(voice.codes) == encoder.encode(wave, RATE_HZ)[:num_codes]


def test_mel_and_speaker_vector_go_by_way_of_24_khz(encoder, codec):
    pytest.importorskip("onnxruntime")
    wave = sound(RATE_HZ * 2, RATE_HZ)
    codes = encoder.encode(wave, RATE_HZ)
    voice = make_voice("Anna", wave, RATE_HZ, codes, SpeakerEncoder(codec / CAMPPLUS_NAME))
    reference = {"zero_crossings": 6, "roll_off": 0.99}
    at_24 = resample(torch.from_numpy(wave), RATE_HZ, 24_000, **reference)
    assert torch.equal(voice.mel, log_mel(at_24, MOSS_MEL)[:, : 4 * len(voice.codes)])
    features = fbank(resample(at_24, 24_000, 16_000, **reference)).numpy()
    wanted = ((features - features.mean(0)) ** 2).mean(0) @ speaker_matrix()
    np.testing.assert_allclose(
        voice.speaker.numpy(), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()
    )


@pytest.mark.parametrize(("duration_s", "error"), [(0.5, AudioEmptyError), (31, AudioLongError)])
def test_samples_of_a_useless_length_are_refused(duration_s, error):
    with pytest.raises(error, match="3 to 6 s"):
        make_voice("Anna", sound(round(duration_s * 16_000), 16_000), 16_000, [], FixedSpeaker())


def test_a_voice_is_found_again(tmp_path):
    voice = some_voice()
    assert save_voice(tmp_path, voice, "digest") == tmp_path / "Anna"
    save_voice(tmp_path, some_voice("zoe 2"), "digest")
    (tmp_path / "no voice").mkdir()
    (tmp_path / "file").write_text("")
    assert list_voices(tmp_path) == ("Anna", "zoe 2") and list_voices(tmp_path / "none") == ()
    found = load_voice(tmp_path / "Anna", "digest")
    assert found.name == "Anna" and found.codes == voice.codes
    assert torch.equal(found.mel, voice.mel) and torch.equal(found.speaker, voice.speaker)
    remove_voice(tmp_path, "Anna")
    assert list_voices(tmp_path) == ("zoe 2",)


def test_names_that_are_no_folder_names_are_refused(tmp_path):
    for name in ("", "../Anna", "a/b", ".hidden", "Anna\n", "a" * 41, "-x", "x ", "ä"):
        with pytest.raises(ParameterError):
            check_name(name)
        with pytest.raises(ParameterError):
            remove_voice(tmp_path, name)


def test_a_voice_of_another_codec_is_refused(tmp_path):
    save_voice(tmp_path, some_voice(), "digest")
    with pytest.raises(CheckpointError, match="another codec"):
        load_voice(tmp_path / "Anna", "other")


DAMAGE = {
    "no json": (JSON_NAME, None), "a list": (JSON_NAME, lambda _: b"[]"),
    "codes that are no group": (JSON_NAME, lambda text: text.replace(b"[0, ", b"[")),
    "a code that is none": (JSON_NAME, lambda text: text.replace(b"[0, ", b"[-1, ")),
    "another format": (JSON_NAME, lambda text: text.replace(b"moss-voice", b"other")),
    "no tensors": (TENSORS_NAME, None), "half the tensors": (TENSORS_NAME, lambda data: data[:-9]),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_voice_is_refused_by_name(name, tmp_path):
    file, change = DAMAGE[name]
    path = save_voice(tmp_path, some_voice(), "digest") / file
    data = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(data))
    with pytest.raises(CheckpointError, match=file):
        load_voice(tmp_path / "Anna", "digest")


def test_the_command_makes_lists_and_removes(codec, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    sample, voices = tmp_path / "sample.wav", tmp_path / "voices"
    soundfile.write(sample, sound(RATE_HZ * 2, RATE_HZ), RATE_HZ)
    where = ["--codec", str(codec), "--voices", str(voices)]
    command.main(["make", str(sample), "Anna", "--device", "cpu", *where])
    said = capsys.readouterr().out
    assert "2.0 s; voices are best made of 3 to 6 s" in said and "25 codes, 2 s" in said
    save_voice(voices, some_voice("Strange"), "another codec")
    command.main(["list", *where])
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["Anna", "2.0", "s"]
    assert said[1].startswith("Strange") and "another codec" in said[1]
    command.main(["remove", "Anna", *where])
    assert list_voices(voices) == ("Strange",)
    with pytest.raises(ParameterError, match="Strange"):
        command.main(["remove", "Bob", *where])


def test_a_voice_that_was_made_speaks(tmp_path):
    pytest.importorskip("onnxruntime")
    make_tiny_codec_folder(tmp_path / "codec")
    soundfile.write(tmp_path / "sample.flac", sound(48_000 * 2, 48_000), 48_000)
    where = ["--device", "cpu", "--codec", str(tmp_path / "codec")]
    command.main(["make", str(tmp_path / "sample.flac"), "Anna", *where])
    codec = load_codec(tmp_path / "codec")
    assert set(codec.voices) == {"Anna", "tiny"}
    waves = [spoken(codec, range(10), voice=name) for name in ("Anna", "tiny")]
    assert all(len(samples) == 10 * 1920 for samples in waves) and not np.allclose(*waves)


def test_what_cannot_be_read_or_written_is_refused_before_the_codec_is(tmp_path):
    where = ["--codec", str(tmp_path / "no codec"), "--voices", str(tmp_path / "file" / "voices")]
    sample = tmp_path / "sample.wav"
    with pytest.raises(ParameterError):
        command.main(["make", str(sample), "../x", *where])
    with pytest.raises(ConfigError, match=r"There is no file .*sample\.wav; name a recording"):
        command.main(["make", str(sample), "Anna", *where])
    soundfile.write(sample, sound(RATE_HZ * 2, RATE_HZ), RATE_HZ)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"Anna cannot be written \(Not a dir.*with --voices"):
        command.main(["make", str(sample), "Anna", *where])
