"""HiFT against its authors' own code, its windows against one run, and its files."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from moss_engine.api.errors import CheckpointError
from moss_engine.codec.base import Window
from moss_engine.codec.files import check_state
from moss_engine.codec.vocoder.hift.generator import HELD_FRAMES, Hift
from moss_engine.codec.vocoder.hift.weights import (
    HiftConfig,
    HiftWeights,
    fold_weight_norm,
    hift_shapes,
    pack_hift,
    read_hift_config,
)
from scripts.bench.random_weights import random_hift
from tests.fixtures.golden.make_moss import HIFT, HIFT_FRAMES, PATH, SEED, hift_mel
from tests.fixtures.make_tiny_moss import TINY_FLOW, TINY_HIFT, config_yaml, with_weight_norm

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights() -> HiftWeights:
    return pack_hift(random_hift(HIFT, SEED), HIFT, CPU)


def mel_of(frames: int, seed: int = 0) -> torch.Tensor:
    values = np.random.RandomState(seed).standard_normal((1, 80, 2 + frames // 5))
    corners = torch.from_numpy(values).float() * 2 - 5
    return torch.nn.functional.interpolate(corners, size=frames, mode="linear")[0]


def spoken(hift: Hift, mel: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    state, waves, at = hift.open(), [], 0
    for i, size in enumerate(sizes):
        wave, state = hift.speak([Window(state, mel[:, at : at + size], i == len(sizes) - 1)])[0]
        waves.append(wave)
        at += size
    assert at == mel.shape[1]
    return waves


def test_the_wave_is_that_of_the_authors_code(weights):
    (wave,) = spoken(Hift(weights), hift_mel().float(), [HIFT_FRAMES])
    with np.load(PATH) as golden:
        wanted = torch.from_numpy(golden["wave"])
    assert wave.shape == wanted.shape and wanted.std() > 1e-3
    assert float((wave - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_every_join_is_60_db_below_one_run():
    tensors = random_hift(HIFT, SEED)
    for name, tensor in tensors.items():  # residual blocks that reach as far as they can
        if name.endswith("weight") and name.startswith(("resblocks", "source_resblocks")):
            tensor *= 0.85 / 0.3
    reaching = pack_hift(tensors, HIFT, CPU)
    mel = mel_of(100, seed=3)
    wave = torch.cat(spoken(Hift(reaching), mel, [20] * 5))
    (whole,) = spoken(Hift(reaching), mel, [100])
    for at in (480 * (20 * i - HELD_FRAMES) for i in range(1, 5)):
        join = slice(at - 4 * 480, at + 6 * 480)
        assert float((wave[join] - whole[join]).norm() / whole[join].norm()) < 1e-3


@pytest.mark.parametrize("old_spelling", [False, True])
def test_both_spellings_of_weight_norm_fold_to_the_same(old_spelling):
    tensors = random_hift(TINY_HIFT)
    split = with_weight_norm(tensors, old_spelling=old_spelling)
    assert ("conv_pre.weight_g" in split) == old_spelling
    folded = fold_weight_norm(split)
    check_state(folded, hift_shapes(TINY_HIFT), PATH)
    for name, tensor in tensors.items():
        assert torch.allclose(folded[name], tensor, rtol=1e-5, atol=1e-7), name
    del split["conv_pre.weight_v" if old_spelling else "conv_pre.parametrizations.weight.original1"]
    with pytest.raises(CheckpointError, match="lacks 'conv_pre"):
        fold_weight_norm(split)


def test_config_is_read_from_the_tagged_file(tmp_path):
    path = tmp_path / "config.yaml"
    text = config_yaml(TINY_FLOW, TINY_HIFT)
    path.write_text(text)
    assert read_hift_config(path) == TINY_HIFT
    path.write_text("flow: {}\n")
    assert read_hift_config(path) == HiftConfig()
    for old, new, says in (
        ("upsample_rates: [8, 5, 3]", "upsample_rates: [8, 5]", "lists of different lengths"),
        ("base_channels: 16", "base_channels: many", "channels 'many'"),
        ("base_channels: 16", "base_channels: 12", "halved at every level; fetch the codec again"),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(CheckpointError, match=re.escape(says)):
            read_hift_config(path)


def test_published_sizes():
    config = HiftConfig()
    assert config.samples_per_frame == 480 and config.source_strides == (15, 3, 1)
    assert sum(int(np.prod(shape)) for shape in hift_shapes(config).values()) == 20_806_557
