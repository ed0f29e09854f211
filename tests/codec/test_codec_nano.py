"""The whole codec: exact counts, any chunking, strict folders."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from moss_engine.api.errors import CheckpointError, MelSpecError, ParameterError
from moss_engine.codec.base import samples_per_code
from moss_engine.codec.load import load_codec
from moss_engine.codec.nano.codec import CPU_CHUNK_CODES as CHUNK_CODES
from moss_engine.codec.nano.codec import NanoCodec, StreamedDecoder, load_nano_codec
from moss_engine.codec.nano.fsq import NanoFsq, codes_of_points, load_fsq, points_of_codes, quantise
from moss_engine.codec.vocoder.make import load_vocoder
from moss_engine.codec.vocoder.stream import WindowVocoder, support_frames, whole_wave
from tests.fixtures.make_tiny_codec import (
    TINY_VOCODER,
    make_tiny_codec,
    save_vocoder,
    tiny_fsq_config,
)

LEVELS = (8, 5, 3)


@pytest.fixture(scope="module")
def fsq() -> NanoFsq:
    torch.manual_seed(0)
    return NanoFsq(tiny_fsq_config()).eval().requires_grad_(False)


def test_codes_and_points_are_one_to_one():
    codes = torch.arange(8 * 5 * 3)
    points = points_of_codes(codes, LEVELS)
    assert points.abs().max() < 1
    assert len(points.unique(dim=0)) == len(codes)
    torch.testing.assert_close(codes_of_points(points, LEVELS), codes)


def test_quantising_gives_grid_points_and_passes_gradients():
    raw = (torch.randn(50, 3) * 3).requires_grad_()
    points = quantise(raw, LEVELS)
    torch.testing.assert_close(points, points_of_codes(codes_of_points(points, LEVELS), LEVELS))
    points.sum().backward()
    torch.testing.assert_close(raw.grad, 0.85 * (1 - torch.tanh(0.85 * raw.detach()) ** 2))


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=8), seed=st.integers(0, 100))
def test_decoder_in_any_pieces_equals_the_whole(fsq, lengths, seed):
    total = sum(lengths)
    codes = torch.randint(
        0, fsq.config.num_codes, (total,), generator=torch.Generator().manual_seed(seed)
    )
    points = points_of_codes(codes, fsq.config.levels)
    decoder = StreamedDecoder(fsq.decoder, torch.device("cpu"))
    stream = decoder.open()
    pieces = [decoder.decode([stream], part[None])[0] for part in points.split(lengths)]
    taken = list(itertools.accumulate(lengths))
    made = list(itertools.accumulate(piece.shape[1] for piece in pieces))
    assert made == [2 * max(0, n - 1) for n in taken], "the decoder must be exactly one code late"
    if total == 0:
        return
    mel = torch.cat([*pieces, decoder.flush([stream])[0]], dim=1)
    torch.testing.assert_close(mel, fsq.mel_of_codes(codes[None])[0], atol=2e-5, rtol=1e-5)


def test_decoder_looks_ahead_by_one_code_only(fsq):
    codes = torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(3))
    changed = codes.clone()
    changed[0, 7] = (changed[0, 7] + 9) % 64
    difference = (fsq.mel_of_codes(codes) - fsq.mel_of_codes(changed)).abs().amax(dim=(0, 1))
    assert difference[:12].max() == 0, (
        "frames before the neighbour of the changed code must not move"
    )
    assert difference[12:14].max() > 0 and difference[14:16].max() > 0


SUPPORT = support_frames(TINY_VOCODER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("codec")
    make_tiny_codec(folder, seed=1, exact=True)
    return folder


@pytest.fixture(scope="module")
def codec(folder) -> NanoCodec:
    return load_nano_codec(folder / "codec", folder / "vocoder", context_share=1.0)


def some_codes(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 64, count).tolist()


def whole(folder: Path, codes: list[int]) -> np.ndarray:
    """The codes through both networks at once."""
    fsq, (generator, _) = load_fsq(folder / "codec"), load_vocoder(folder / "vocoder")
    return whole_wave(generator, fsq.mel_of_codes(torch.tensor([codes]))[0], SUPPORT).numpy()


def speak(codec: NanoCodec, pieces: list[list[int]]) -> np.ndarray:
    stream = codec.open_stream()
    return np.concatenate([*(stream.push(piece) for piece in pieces), stream.flush()])


def with_windows(codec: NanoCodec, lengths: tuple[int, ...], generator=None) -> NanoCodec:
    """The codec with windows of these lengths alone, and with another generator."""
    vocoder = codec._vocoder
    plan = replace(vocoder.plan, lengths=lengths)
    device = torch.device("cpu")
    window = WindowVocoder(generator or vocoder.generator, vocoder.mel, plan, device)
    return NanoCodec(codec._fsq, window, device)


def test_the_codec_describes_itself(codec):
    assert (codec.sample_rate_hz, codec.num_codes, samples_per_code(codec)) == (24_000, 64, 960)
    assert codec.code_rate_hz == 25 and codec.voices


@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_any_pieces_give_the_samples_of_the_whole(folder, codec, lengths, seed):
    codes = some_codes(sum(lengths), seed)
    starts = np.cumsum([0, *lengths])
    wave = speak(codec, [codes[a:b] for a, b in pairwise(starts)])
    assert wave.dtype == np.float32 and len(wave) == 960 * len(codes)
    if codes:
        expected = whole(folder, codes)
        assert np.abs(wave - expected).max() <= 1e-5 * np.abs(expected).max()


def test_samples_come_chunk_by_chunk(codec):
    stream, sizes = codec.open_stream(), []
    for code in some_codes(2 * sum(CHUNK_CODES)):
        sizes.append(len(stream.push([code])) // 960)
    given_out = [size for size in sizes if size]
    assert given_out[: len(CHUNK_CODES)] == list(CHUNK_CODES)
    assert set(given_out[len(CHUNK_CODES) :]) == {CHUNK_CODES[-1]}
    # the first one needs its own codes, the vocoder's right context and the decoder's one code
    assert sizes.index(CHUNK_CODES[0]) + 1 == CHUNK_CODES[0] + -(-SUPPORT // 2) + 1


def test_the_default_context_is_close_to_the_whole(folder):
    codes = some_codes(40)
    wave, expected = (
        speak(load_nano_codec(folder / "codec", folder / "vocoder"), [codes]),
        whole(folder, codes),
    )
    assert np.abs(wave - expected).max() < 2e-3 * np.abs(expected).max()


def test_streams_are_independent_even_across_threads(codec):
    alone = {seed: speak(codec, [some_codes(25, seed)]) for seed in range(3)}
    spoken: dict[int, np.ndarray] = {}

    def work(seed: int) -> None:
        spoken[seed] = speak(codec, [[code] for code in some_codes(25, seed)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, wave in alone.items():
        np.testing.assert_allclose(spoken[seed], wave, atol=1e-5 * np.abs(wave).max())


@pytest.mark.parametrize("lengths", [(), (2 * SUPPORT + 14, 2 * SUPPORT + 33)])
@settings(max_examples=3, deadline=None)
@given(starts=st.lists(st.integers(0, 30), min_size=2, max_size=3), seed=st.integers(0, 9))
def test_streams_spoken_together_sound_as_alone(codec, lengths, starts, seed):
    """Whatever each has been given before. Products of other shapes round differently, hence not
    bit by bit."""
    crowd = with_windows(codec, lengths)
    codes = [some_codes(start + 20, seed + i) for i, start in enumerate(starts)]
    streams = [crowd.open_stream() for _ in starts]
    pieces = [
        [stream.push(c[:start])] for stream, c, start in zip(streams, codes, starts, strict=True)
    ]
    for step in range(0, 20, 5):
        work = [
            (stream, c[start + step :][:5])
            for stream, c, start in zip(streams, codes, starts, strict=True)
        ]
        for piece, samples in zip(pieces, crowd.push_together(work), strict=True):
            piece.append(samples)
    for piece, samples in zip(pieces, crowd.flush_together(streams), strict=True):
        piece.append(samples)
    for piece, c in zip(pieces, codes, strict=True):
        alone = speak(codec, [c])
        np.testing.assert_allclose(np.concatenate(piece), alone, atol=1e-5 * np.abs(alone).max())


def test_windows_of_equal_length_run_at_once(codec):
    """Streams at different chunks of theirs, too, where every window has the same length."""
    sizes: list[int] = []

    def generator(mel: torch.Tensor) -> torch.Tensor:
        sizes.append(mel.shape[0])
        return codec._vocoder.generator(mel)

    crowd = with_windows(codec, (2 * SUPPORT + 32,), generator)
    streams = [crowd.open_stream() for _ in range(4)]
    for stream in streams[:2]:
        stream.push(some_codes(stream.missing_codes))
    sizes.clear()
    waves = crowd.push_together([(stream, some_codes(stream.missing_codes)) for stream in streams])
    assert sizes == [4]
    assert [len(wave) // 960 for wave in waves] == [CHUNK_CODES[1]] * 2 + [CHUNK_CODES[0]] * 2


def test_nothing_is_taken_when_one_of_them_cannot_be_spoken(codec):
    streams = [codec.open_stream() for _ in range(3)]
    codes = [some_codes(30, seed) for seed in range(3)]
    with pytest.raises(ParameterError, match="code 64 "):
        codec.push_together([(stream, [*c, 64]) for stream, c in zip(streams, codes, strict=True)])
    broken = with_windows(codec, (), no_generator)
    with pytest.raises(RuntimeError, match="device lost"):
        broken.push_together(list(zip(streams, codes, strict=True)))
    for stream, c in zip(streams, codes, strict=True):
        np.testing.assert_array_equal(
            np.concatenate([stream.push(c), stream.flush()]), speak(codec, [c])
        )


def no_generator(mel: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("device lost")


@pytest.mark.parametrize("code", [-1, 64])
def test_a_code_out_of_range_is_refused_before_any_work(codec, code):
    stream = codec.open_stream()
    with pytest.raises(ParameterError, match=f"code {code} "):
        stream.push([1, code])
    assert len(stream.flush()) == 0


def test_an_unknown_voice_is_refused(codec):
    with pytest.raises(ParameterError, match="choose one of nano"):
        codec.open_stream("baritone")
    assert codec.open_stream("nano") is not codec.open_stream()


@pytest.mark.parametrize(
    ("samples", "rate", "codes"),
    [
        (0, 24_000, 0),
        (1, 24_000, 1),
        (960, 24_000, 1),
        (961, 24_000, 2),
        (8000, 16_000, 13),
        (44_100, 44_100, 25),
    ],
)
def test_encoding_gives_a_code_for_each_started_40_ms(codec, samples, rate, codes):
    wave = np.random.default_rng(0).normal(size=samples).astype(np.float32) * 0.1
    encoded = codec.encode(wave, rate)
    assert len(encoded) == codes and all(type(code) is int and 0 <= code < 64 for code in encoded)


def test_int8_and_half_storage_stay_close(folder, tmp_path):
    make_tiny_codec(tmp_path, seed=1)
    codes = some_codes(20)
    exact, stored = whole(folder, codes), whole(tmp_path, codes)
    assert 0 < np.abs(exact - stored).max() < 0.2 * np.abs(exact).max()


def change_config(folder: Path, part: str, **changes: object) -> None:
    path = folder / part / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_another_mel_is_refused_by_its_fields(copy):
    config = {**TINY_VOCODER, "fmax": 12_000, "n_fft": 1024, "win_size": 1024}
    save_vocoder(copy / "vocoder", config, load_file(copy / "vocoder" / "model.safetensors"))
    with pytest.raises(
        MelSpecError, match=r"n_fft 1920 against 1024; win_size .* fmax_hz 8000.0 against 12000.0"
    ):
        load_codec(copy)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (
            "codec",
            {"type": "flow-matching"},
            "'flow-matching'; this version knows .*, so name .* --codec",
        ),
        ("codec", {"type": "gone"}, "config with a type"),
        ("codec", {"levels": "gone"}, "levels"),
        ("codec", {"surprise": 1}, "surprise"),
        ("codec", {"levels": [8, "8"], "mlp_ratio": 0}, "levels, mlp_ratio"),
        ("codec", {"mel": {"n_fft": 1920}}, "mel"),
        ("codec", {"decoder_dim": 24}, "shape"),
        ("codec", {"decoder_blocks": [1, 2]}, "unknown tensors"),
        ("vocoder", {"type": "hift"}, "'hift'"),
        ("vocoder", {"fmax": "gone"}, "fmax"),
        ("vocoder", {"upsample_initial_channel": 32}, "shape"),
    ],
)
def test_a_wrong_folder_is_refused(copy, part, changes, message):
    change_config(copy, part, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_codec(copy)


@pytest.mark.parametrize(
    "name",
    [
        "codec/config.json",
        "codec/model.safetensors",
        "vocoder/config.json",
        "vocoder/model.safetensors",
    ],
)
def test_a_missing_or_broken_file_is_named(copy, name):
    file = copy / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=file.name):
        load_codec(copy)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.parent.name}"):
        load_codec(copy)
