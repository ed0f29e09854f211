"""The speech encoder on an NVIDIA GPU against the CPU and the stored points of an independent
implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moss_engine.codec.moss.whisper import load_whisper_vq
from tests.fixtures.golden.make_speech import PATH, sound
from tests.fixtures.make_tiny_encoder import make_tiny_encoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
GOLDEN = np.load(PATH)
SOUNDS = [
    (sound(n, hz), hz)
    for n, hz in ((16_000 * 9, 16_000), (44_100 * 4, 44_100), (900, 8000), (16_000 * 33, 16_000))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("codec")
    make_tiny_encoder(path)
    return path


def test_points_in_float32_are_those_of_the_reference(folder):
    encoder = load_whisper_vq(folder, "cuda").network
    with torch.inference_mode():
        found = encoder.points(torch.from_numpy(GOLDEN["features"])[None].cuda())[0].cpu().numpy()
    assert np.abs(found - GOLDEN["points"]).max() < 1e-4 * np.abs(GOLDEN["points"]).max()


def test_codes_are_those_of_the_cpu(folder):
    wanted, found = load_whisper_vq(folder), load_whisper_vq(folder, "cuda")
    same = [
        a == b
        for sounds in SOUNDS
        for a, b in zip(wanted.encode(*sounds), found.encode(*sounds), strict=True)
    ]
    assert np.mean(same) > 0.99
    assert found.encode_together(SOUNDS) == [found.encode(*sounds) for sounds in SOUNDS]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_change_few_codes(folder, dtype):
    wanted, found = load_whisper_vq(folder, "cuda"), load_whisper_vq(folder, "cuda", dtype)
    same = [
        a == b
        for sounds in SOUNDS
        for a, b in zip(wanted.encode(*sounds), found.encode(*sounds), strict=True)
    ]
    assert np.mean(same) >= (0.97 if dtype is torch.float16 else 0.9)
