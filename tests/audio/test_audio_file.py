"""Files of visitors: what is read, and everything else refused at once, in one sentence and without
much memory."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from moss_engine.api.errors import (
    AudioEmptyError,
    AudioFormatError,
    AudioLongError,
    AudioNonfiniteError,
    InputError,
)
from moss_engine.audio.file import MAX_DECODED_BYTES, read_audio

RATE_HZ = 16_000
REFUSAL_S = 0.05
SLOW_MACHINE = 4
"""By how much a machine may be slower than the one that the times are of. What is measured is this
thread's work: what else the machine does takes none of it."""


@pytest.fixture(autouse=True, scope="module")
def warm() -> None:
    """The first use loads libsndfile."""
    read_audio(wav_bytes(tone()))


def tone(
    seconds: float = 0.5, rate_hz: int = RATE_HZ, channels: int = 1, level: float = 0.3
) -> np.ndarray:
    """float32 [frames, channels]"""
    wave = level * np.sin(np.arange(int(seconds * rate_hz)) * 2 * np.pi * 330 / rate_hz)
    return np.repeat(wave[:, None], channels, axis=1).astype(np.float32)


def wav_bytes(
    wave: np.ndarray, rate_hz: int = RATE_HZ, subtype: str = "PCM_16", form: str = "WAV"
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, wave, rate_hz, subtype=subtype, format=form)
    return file.getvalue()


def with_field(data: bytes, offset: int, value: int, size: int) -> bytes:
    return data[:offset] + value.to_bytes(size, "little") + data[offset + size :]


GOOD = wav_bytes(tone())
RATE_AT, CHANNELS_AT, DATA_SIZE_AT = 24, 22, 40

REFUSED = {
    "nothing": (b"", AudioFormatError),
    "header only": (GOOD[:44], AudioEmptyError),
    "text": (b"hello, this is no sound\n" * 50, AudioFormatError),
    "playlist": (b"#EXTM3U\n#EXTINF:1\n/etc/passwd\n", AudioFormatError),
    "playlist behind a tag": (
        b"ID3\x03\x00\x00\x00\x00\x00\x00#EXTM3U\nfile:///etc/passwd\n",
        AudioFormatError,
    ),
    "random bytes behind RIFF": (b"RIFF" + random.Random(0).randbytes(2000), AudioFormatError),
    "0 Hz": (with_field(GOOD, RATE_AT, 0, 4), AudioFormatError),
    "2 GHz": (with_field(GOOD, RATE_AT, 2_000_000_000, 4), AudioFormatError),
    "0 channels": (with_field(GOOD, CHANNELS_AT, 0, 2), AudioFormatError),
    "9 channels": (wav_bytes(tone(channels=9)), AudioFormatError),
    "0.1 s": (wav_bytes(tone(0.1)), AudioEmptyError),
    "silence": (wav_bytes(tone(level=0)), AudioEmptyError),
    "a muted microphone": (wav_bytes(tone(level=3e-5)), AudioEmptyError),
    "61 s": (wav_bytes(tone(61, 8000), 8000), AudioLongError),
    "8 channels of 192 kHz for 11 s": (
        wav_bytes(tone(11, 192_000, 8), 192_000, form="FLAC"),
        AudioLongError,
    ),
    "NaN": (
        wav_bytes(
            np.where(np.arange(8000) == 5000, np.nan, 0.1).astype(np.float32), subtype="FLOAT"
        ),
        AudioNonfiniteError,
    ),
    "infinity": (
        wav_bytes(np.full((8000, 1), np.inf, np.float32), subtype="FLOAT"),
        AudioNonfiniteError,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_once_in_one_sentence(name, tmp_path):
    data, error = REFUSED[name]
    file = tmp_path / ("upload.mp3" if "playlist" in name else "upload.wav")
    file.write_bytes(data)
    for source in (data, file):
        start = time.thread_time()
        with pytest.raises(error) as caught:
            read_audio(source)
        assert time.thread_time() - start < SLOW_MACHINE * REFUSAL_S
        sentence = str(caught.value)
        assert "\n" not in sentence and sentence.endswith(".") and ";" in sentence
        assert str(tmp_path) not in sentence


def test_a_decode_bomb_is_refused_from_its_header(tmp_path):
    """Four hours of silence are 2 MB of FLAC and 0.9 GB of samples: none of them are decoded. The
    memory is that of a whole process, libsndfile's own included."""
    pytest.importorskip("resource")
    bomb, silence = tmp_path / "bomb.flac", np.zeros((160_000, 1), np.int16)
    with soundfile.SoundFile(bomb, "w", RATE_HZ, 1, "PCM_16", format="FLAC") as file:
        for _ in range(4 * 3600 * RATE_HZ // len(silence)):
            file.write(silence)
    grown_kb, refusal = refused_apart(bomb, "SELF")
    assert "14,400 s, the limit is 60 s" in refusal and grown_kb < 20_000


def refused_apart(path: Path, whose: str) -> tuple[float, str]:
    """A file in a process of its own: by how many kB that (SELF), or one that it starts (CHILDREN),
    grows, and the sentence."""
    code = (
        "import resource, sys; from moss_engine.audio.file import read_audio\n"
        "peak = lambda: resource.getrusage(getattr(resource, sys.argv[2])).ru_maxrss\n"
        "before = peak()\n"
        "try: read_audio(sys.argv[1])\n"
        "except Exception as error: print(peak() - before, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), f"RUSAGE_{whose}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).resolve().parents[2],
    )
    grown, _, refusal = done.stdout.partition(" ")
    return int(grown) / (1024 if sys.platform == "darwin" else 1), refusal


def without_length(flac: bytes) -> bytes:
    """A FLAC header may leave the number of samples out, as that of /v1/audio/speech does, and of
    ffmpeg into a pipe."""
    return flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]


def test_a_stream_that_hides_its_length_is_read_to_its_end_and_no_further_than_allowed():
    wave = tone(5.0)
    samples, _ = read_audio(without_length(wav_bytes(wave, form="FLAC")))
    np.testing.assert_allclose(samples, wave[:, 0], atol=1e-4)
    data = without_length(wav_bytes(tone(100, 8000), 8000, form="FLAC"))
    tracemalloc.start()
    with pytest.raises(AudioLongError):
        read_audio(data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 * 60 * 8000 * 4 + 4_000_000


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.write(GOOD)
        file.truncate(100 << 20)
    with pytest.raises(AudioLongError, match="more than 64 MB"):
        read_audio(path)


@pytest.mark.parametrize(
    "source", ["https://example.org/a.wav", "file:///etc/passwd", "nowhere/a.wav", "/dev/zero"]
)
def test_what_is_no_local_file_is_refused(source):
    with pytest.raises(AudioFormatError):
        read_audio(source)


KINDS = (
    "WAV/PCM_U8 WAV/PCM_16 WAV/PCM_24 WAV/PCM_32 WAV/FLOAT WAV/DOUBLE WAVEX/PCM_16 RF64/PCM_16 "
    "W64/PCM_16 FLAC/PCM_16 FLAC/PCM_24 OGG/VORBIS OGG/OPUS MP3/MPEG_LAYER_III AIFF/PCM_16 "
    "AU/PCM_16 CAF/PCM_16"
).split()


@pytest.mark.parametrize("kind", KINDS)
def test_every_usual_kind_gives_the_same_samples(kind):
    form, subtype = kind.split("/")
    wave = tone(1.0)
    samples, rate_hz = read_audio(wav_bytes(wave, subtype=subtype, form=form))
    assert rate_hz == RATE_HZ and samples.dtype == np.float32 and samples.ndim == 1
    exact = subtype not in ("VORBIS", "OPUS", "MPEG_LAYER_III")
    num_samples = min(len(samples), len(wave))
    assert abs(len(samples) - len(wave)) <= (0 if exact else 2500)
    loudness = np.sqrt((samples[:num_samples] ** 2).mean() / (wave[:num_samples, 0] ** 2).mean())
    assert abs(loudness - 1) < 0.05
    if exact:
        assert np.abs(samples - wave[:, 0]).max() < (1e-2 if subtype == "PCM_U8" else 1e-4)


@pytest.mark.parametrize(("heard", "taken"), [([0, 1, 7], 0), ([2, 5], 2)])
def test_the_first_channel_that_is_not_silent_is_taken(heard, taken):
    wave = np.zeros_like(tone(channels=8))
    for place in heard:
        wave[:, [place]] = tone() * (1 + place) / 8
    samples, _ = read_audio(wav_bytes(wave, subtype="FLOAT"))
    np.testing.assert_array_equal(samples, wave[:, taken])


def packed(container: str, codec: str, wave: np.ndarray, **options: str) -> bytes:
    """What a phone or a browser records, with a picture beside it in a WebM file; 48 kHz."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=options) as out:
        video = out.add_stream("libvpx", rate=25) if container == "webm" else None
        stream: Any = out.add_stream(codec, rate=48_000, layout="mono")
        if video is not None:
            black = np.zeros((48, 32), np.uint8)  # of 32 rows, and of their colours
            out.mux(video.encode(av.VideoFrame.from_ndarray(black, "yuv420p")))
        frame = av.AudioFrame.from_ndarray(wave.T.copy(), format="flt", layout="mono")
        frame.sample_rate = 48_000
        for converted in av.AudioResampler(stream.format.name).resample(frame):
            out.mux(stream.encode(converted))
        out.mux([*stream.encode(None), *(video.encode(None) if video else ())])
    return file.getvalue()


RECORDERS = {
    "Chrome": ("webm", "libopus", {}),
    "a voice memo": ("ipod", "aac", {}),
    "a lossless memo": ("ipod", "alac", {}),
    "Safari": ("mp4", "aac", {"movflags": "frag_keyframe+empty_moov"}),
}


@pytest.mark.parametrize("name", RECORDERS)
def test_what_phones_and_browsers_record_is_read(name):
    container, codec, options = RECORDERS[name]
    wave = tone(2.0, 48_000)
    data = packed(container, codec, wave, **options)
    samples, rate_hz = read_audio(data)
    assert rate_hz == 48_000 and 0 <= len(samples) - len(wave) <= 2048
    middle = samples[24_000:72_000]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)
    with pytest.raises(AudioLongError, match="the limit is"):
        read_audio(data, max_s=1.5)
    if codec != "alac":  # what broke off: of memos, whose places are told last, nothing is left
        with contextlib.suppress(AudioFormatError):
            assert len(read_audio(data[: len(data) // 2])[0]) < len(wave)
            assert "memo" not in name


def test_a_container_that_claims_millions_of_places_takes_little_memory(tmp_path):
    """A fragment of 80 million samples without a byte of any."""
    pytest.importorskip("resource")
    head = packed("mp4", "aac", tone(1.0, 48_000), movflags="empty_moov+frag_keyframe")
    head = head[: head.index(b"moof") - 4]

    def box(kind: bytes, *of: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(b"".join(of)), kind) + b"".join(of)

    run = box(b"trun", struct.pack(">II", 0, 80_000_000))
    track = box(b"traf", box(b"tfhd", struct.pack(">II", 0, 1)), run)
    bomb = head + box(b"moof", box(b"mfhd", struct.pack(">II", 0, 1)), track)
    path = tmp_path / "bomb.m4a"
    path.write_bytes(bomb)
    grown_kb, refusal = refused_apart(path, "CHILDREN")
    assert "damaged" in refusal and grown_kb < 600_000


def test_damaged_recordings_end_in_samples_or_a_refusal():
    chance, clean = random.Random(0), packed("webm", "libopus", tone(1.0, 48_000))
    for _ in range(8):
        data = bytearray(clean)
        for _ in range(chance.randrange(1, 12)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        with contextlib.suppress(InputError):
            assert np.isfinite(read_audio(bytes(data))[0]).all()


@pytest.mark.parametrize(
    ("head", "kind"), [(b"\0\0\0\x1cftypM4A ", "MP4 and M4A"), (b"\x1aE\xdf\xa3", "WebM")]
)
def test_where_their_package_is_missing_its_name_and_another_way_are_told(head, kind, monkeypatch):
    with pytest.raises(AudioFormatError, match="damaged"):
        read_audio(head + bytes(500))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(AudioFormatError, match=f"^{kind} .* pip install av; .* ffmpeg -i FILE"):
        read_audio(head + bytes(500))


@pytest.mark.parametrize("rate_hz", [8000, 44_100, 192_000])
def test_every_bearable_rate_is_read(rate_hz):
    samples, found_hz = read_audio(wav_bytes(tone(0.5, rate_hz), rate_hz))
    assert found_hz == rate_hz and len(samples) == rate_hz // 2


def test_what_is_far_too_loud_is_scaled_down():
    samples, _ = read_audio(wav_bytes(tone(level=1e30), subtype="FLOAT"))
    assert np.abs(samples).max() == pytest.approx(1, abs=1e-3)


def test_a_broken_off_file_gives_what_is_there():
    samples, _ = read_audio(GOOD[: len(GOOD) - 4000])
    assert len(samples) == len(tone()) - 2000
    mp3 = wav_bytes(tone(5.0), form="MP3", subtype="MPEG_LAYER_III")
    samples, _ = read_audio(mp3[: len(mp3) // 2])
    assert 20_000 < len(samples) < 60_000
    assert len(read_audio(with_field(GOOD, DATA_SIZE_AT, 0xFFFF_FFFF, 4))[0]) == len(tone())


def test_the_limit_is_the_callers():
    with pytest.raises(AudioLongError):
        read_audio(GOOD, max_s=0.4)
    assert len(read_audio(GOOD, max_s=0.5)[0]) == len(tone())


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_damaged_files_end_in_samples_or_a_refusal(form):
    clean = wav_bytes(tone(1.0), form=form, subtype=soundfile.default_subtype(form))
    chance = random.Random(form)
    for _ in range(40):
        data = bytearray(clean)
        for _ in range(chance.randrange(1, 12)):
            place = chance.randrange(64) if chance.random() < 0.6 else chance.randrange(len(data))
            data[place] = chance.randrange(256)
        data = data[: chance.randrange(len(data))] if chance.random() < 0.3 else data
        start = time.thread_time()
        with contextlib.suppress(InputError):
            samples, rate_hz = read_audio(bytes(data))
            assert np.isfinite(samples).all() and len(samples) * 4 <= MAX_DECODED_BYTES
            assert 8000 <= rate_hz <= 192_000
        assert time.thread_time() - start < SLOW_MACHINE * 0.3
