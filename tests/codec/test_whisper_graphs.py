"""The speech encoder by fixed lengths, as its graphs run it: the same codes as without."""

from __future__ import annotations

import pytest
import torch

from moss_engine.codec.moss.whisper import EncoderGraphs, load_whisper_vq
from tests.fixtures.golden.make_speech import sound
from tests.fixtures.make_tiny_encoder import make_tiny_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("codec")
    make_tiny_encoder(path)
    return path


def test_codes_are_those_of_the_network_itself(folder):
    """Shorter after longer, exactly a length, two pieces, several together."""
    plain, fixed = load_whisper_vq(folder), load_whisper_vq(folder)
    fixed.capture()
    for seconds in (3.5, 0.05, 2.0, 31.0):
        wave = sound(round(16_000 * seconds), 16_000)
        assert fixed.encode(wave, 16_000) == plain.encode(wave, 16_000)
    several = [(sound(16_000 * n, 16_000), 16_000) for n in (1, 2)]
    assert fixed.encode_together(several) == plain.encode_together(several)


def test_longer_segments_than_any_graph_are_left_to_the_network():
    graphs = EncoderGraphs(
        lambda features: features[:, 0, ::8], 2, 8, torch.device("cpu"), (12, 25)
    )
    assert graphs(torch.ones(1, 2, 201)) is None
    assert graphs(torch.ones(1, 2, 104)).tolist() == [[1.0] * 13]
    assert graphs(torch.full((1, 2, 96), 2.0)).tolist() == [[2.0] * 12]
