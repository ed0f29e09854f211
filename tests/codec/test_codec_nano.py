"""The whole codec: exact counts, any chunking, strict folders."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.functional import pad

from moss_engine.api.errors import CheckpointError, MelSpecError, UnsupportedModeError
from moss_engine.codec.load import load_codec
from moss_engine.codec.mel import LOG_FLOOR
from moss_engine.codec.nano import CPU_CHUNK_CODES as CHUNK_CODES
from moss_engine.codec.nano import (
    NanoCodec,
    codes_of_points,
    load_fsq,
    load_nano_codec,
    points_of_codes,
)
from moss_engine.codec.vocoder.bigvgan import support_frames
from moss_engine.codec.vocoder.make import load_vocoder
from tests.codec.speaking import push, some_codes, spoken
from tests.fixtures.make_tiny_codec import TINY_VOCODER, make_tiny_codec, save_vocoder

LEVELS = (8, 5, 3)


def test_codes_and_points_are_one_to_one():
    codes = torch.arange(8 * 5 * 3)
    points = points_of_codes(codes, LEVELS)
    assert points.abs().max() < 1
    assert len(points.unique(dim=0)) == len(codes)
    torch.testing.assert_close(codes_of_points(points, LEVELS), codes)


SUPPORT, HOP = support_frames(TINY_VOCODER), 480


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("codec")
    make_tiny_codec(folder, seed=1, exact=True)
    return folder


@pytest.fixture(scope="module")
def codec(folder) -> NanoCodec:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moss_engine.codec.vocoder.make.CONTEXT_SHARE", 1.0)
        return load_nano_codec(folder / "codec", folder / "vocoder")


@torch.inference_mode()
def whole(folder: Path, codes: list[int]) -> np.ndarray:
    """The codes through both networks at once, with silence around the mel."""
    fsq, (generator, _) = load_fsq(folder / "codec"), load_vocoder(folder / "vocoder")
    mel = pad(fsq.mel_of_codes(torch.tensor([codes])), (SUPPORT, SUPPORT), value=LOG_FLOOR)
    return generator(mel)[0, 0, SUPPORT * HOP : -SUPPORT * HOP].numpy()


@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_any_pieces_give_the_samples_of_the_whole(folder, codec, lengths, seed):
    codes = some_codes(sum(lengths), seed)
    starts = np.cumsum([0, *lengths])
    wave = spoken(codec, *(codes[a:b] for a, b in pairwise(starts)))
    assert wave.dtype == np.float32 and len(wave) == 960 * len(codes)
    if codes:
        expected = whole(folder, codes)
        assert np.abs(wave - expected).max() <= 1e-5 * np.abs(expected).max()


def test_samples_come_chunk_by_chunk(codec):
    stream, sizes = codec.open_stream(), []
    for code in some_codes(2 * sum(CHUNK_CODES)):
        sizes.append(len(push(codec, stream, [code])) // 960)
    given_out = [size for size in sizes if size]
    assert given_out[: len(CHUNK_CODES)] == list(CHUNK_CODES)
    assert set(given_out[len(CHUNK_CODES) :]) == {CHUNK_CODES[-1]}
    # the first one needs its own codes, the vocoder's right context and the decoder's one code
    assert sizes.index(CHUNK_CODES[0]) + 1 == CHUNK_CODES[0] + -(-SUPPORT // 2) + 1


def test_the_default_context_is_close_to_the_whole(folder):
    codes = some_codes(40)
    wave = spoken(load_nano_codec(folder / "codec", folder / "vocoder"), codes)
    expected = whole(folder, codes)
    assert np.abs(wave - expected).max() < 2e-3 * np.abs(expected).max()


def test_a_recording_is_refused(codec):
    with pytest.raises(UnsupportedModeError, match="does not understand recordings"):
        codec.encode(np.zeros(960, np.float32), 24_000)


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
        ("codec", {"type": "flow"}, "'flow'; this version knows .*, so name .* --codec"),
        ("codec", {"type": "gone"}, "config with a type"),
        ("codec", {"surprise": 1}, "surprise"),
        ("codec", {"levels": [8, "8"], "mlp_ratio": 0}, "levels, mlp_ratio"),
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


@pytest.mark.parametrize("name", ["codec/config.json", "vocoder/model.safetensors"])
def test_a_missing_or_broken_file_is_named(copy, name):
    file = copy / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=file.name):
        load_codec(copy)
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.parent.name}"):
        load_codec(copy)
