"""A codec's work is counted from its layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import conv1d, scaled_dot_product_attention

from moss_engine.codec.moss.load import load_moss_codec
from moss_engine.codec.nano.codec import load_nano_codec
from moss_engine.codec.tally import Cost, Tallied, Tally, cost_of, operations_of
from moss_engine.config import NANO_CHECKPOINT
from tests.fixtures.make_tiny_codec import make_tiny_codec
from tests.fixtures.make_tiny_moss import make_tiny_moss

LAYERS = {
    # of 2 * weights * places: the output's places, or the input's of a transposed one
    "convolution": (nn.Conv1d(3, 5, 4, padding=2), (2, 3, 9), 2 * (5 * 3 * 4) * 2 * 10),
    "strided": (nn.Conv1d(3, 5, 4, stride=2), (1, 3, 10), 2 * (5 * 3 * 4) * 4),
    "depthwise": (nn.Conv1d(6, 6, 7, groups=6, padding=3), (1, 6, 8), 2 * (6 * 7) * 8),
    "transposed": (nn.ConvTranspose1d(4, 2, 6, 3), (1, 4, 5), 2 * (4 * 2 * 6) * 5),
    "linear": (nn.Linear(7, 3), (2, 4, 7), 2 * (7 * 3) * 8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_counted_as_by_hand(name):
    layer, shape, operations = LAYERS[name]
    assert operations_of(lambda: layer(torch.zeros(shape))) == operations


def test_attention_counts_queries_with_keys_and_weights_with_values():
    query, seen = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8)
    ran = operations_of(lambda: scaled_dot_product_attention(query, seen, seen))
    assert ran == 2 * (2 * 4) * (3 * 5 * 8 + 3 * 5 * 8)


def test_products_of_tensors_count_and_what_only_adds_does_not():
    a, b = torch.zeros(2, 3, 5), torch.zeros(2, 5, 7)
    assert (
        operations_of(lambda: a @ b) == operations_of(lambda: torch.bmm(a, b)) == 2 * 2 * 3 * 5 * 7
    )
    assert (
        operations_of(lambda: conv1d(a, torch.zeros(4, 3, 2)).cos() + 1) == 2 * (4 * 3 * 2) * 2 * 4
    )
    assert operations_of(lambda: torch.fft.rfft(a)) == 0


def test_a_network_costs_by_its_steps_once_for_its_weights_and_for_every_reply():
    network = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 1, 1))
    cost = cost_of(lambda n: network(torch.zeros(1, 2, n + 2)), 1, 4, *network.parameters())
    assert cost == Cost(2 * (8 * 2 * 3 + 8), 0, 4 * (48 + 8 + 8 + 1))
    padded = cost_of(lambda n: network(torch.zeros(1, 2, n + 7)), 1, 4)
    assert padded == Cost(2 * (48 + 8), 5 * 2 * (48 + 8), 0)
    tally = Tally()
    run = Tallied(network, Cost(10, 1, 4), tally)
    assert run(torch.zeros(3, 2, 6)).shape == (3, 1, 4)
    assert (tally.operations, tally.weight_bytes) == (3 * (1 + 6 * 10), 4)


@pytest.mark.parametrize("kind", ["source_filter", "bigvgan"])
def test_the_built_in_codec_counts_what_it_runs(kind):
    """Not from a recording, which it otherwise runs on a CPU."""
    folder = NANO_CHECKPOINT
    codec = load_nano_codec(folder / "codec", folder / "vocoder" / kind)
    codec._decoder._advance = codec._decoder._advance_blocks
    codec._vocoder._advance_one = codec._vocoder._advance
    stream, counted = codec.open_stream(), []
    for codes in ([1] * 7, [2] * 8, [3] * 10):
        before = codec.tally.operations
        ran = operations_of(lambda codes=codes: stream.push(codes))
        counted.append((codec.tally.operations - before, ran))
    assert [told for told, _ in counted] == pytest.approx([ran for _, ran in counted], rel=1e-4)
    assert counted[-1][1] > 1e8 and codec.tally.weight_bytes == 2 * codec.tally.size_bytes > 1e7


def test_replies_that_are_spoken_together_share_their_weights(tmp_path):
    make_tiny_codec(tmp_path, seed=1)
    codec = load_nano_codec(tmp_path / "codec", tmp_path / "vocoder")
    alone, *others = (codec.open_stream() for _ in range(4))
    codes = [1] * max(alone.missing_codes, 1)
    alone.push(codes)
    operations, read = codec.tally.operations, codec.tally.weight_bytes
    assert operations > 0 and read == codec.tally.size_bytes
    codec.push_together([(stream, codes) for stream in others])
    assert codec.tally.operations == pytest.approx(4 * operations)
    assert codec.tally.weight_bytes == 2 * read


def test_the_published_codec_counts_what_it_runs(tmp_path):
    """The voice's prompt is no part of a reply; each chunk looks back at more of it, to a point."""
    make_tiny_moss(tmp_path)
    codec = load_moss_codec(tmp_path / "codec")
    stream, counted = codec.open_stream(), []
    assert codec.tally.operations == 0 and codec.tally.size_bytes > 0
    for _ in range(4):
        before = codec.tally.operations
        ran = operations_of(lambda: stream.push([1] * 10))
        counted.append((codec.tally.operations - before, ran))
    assert [told for told, _ in counted[1:]] == pytest.approx(
        [ran for _, ran in counted[1:]], rel=0.02
    )
    before, read = codec.tally.operations, codec.tally.weight_bytes
    two = [codec.open_stream(), codec.open_stream()]
    codec.push_together([(one, [2] * 8) for one in two])
    assert codec.tally.operations > before and codec.tally.weight_bytes > read
