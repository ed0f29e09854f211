"""The nano codec's networks: the quantiser, and the decoder as a stream."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_engine.codec.nano.codec import StreamedDecoder
from moss_engine.codec.nano.fsq import NanoFsq, codes_of_points, points_of_codes, quantise
from tests.fixtures.make_tiny_codec import tiny_fsq_config

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


def test_the_first_level_varies_fastest():
    points = points_of_codes(torch.arange(9), LEVELS)
    assert (
        points[0, 1] == points[7, 1]
        and points[8, 0] == points[0, 0]
        and points[8, 1] > points[0, 1]
    )


def test_quantising_gives_grid_points_and_passes_gradients():
    raw = (torch.randn(50, 3) * 3).requires_grad_()
    points = quantise(raw, LEVELS)
    torch.testing.assert_close(points, points_of_codes(codes_of_points(points, LEVELS), LEVELS))
    points.sum().backward()
    torch.testing.assert_close(raw.grad, 0.85 * (1 - torch.tanh(0.85 * raw.detach()) ** 2))


def test_normal_values_use_every_level_about_equally():
    torch.manual_seed(0)
    points = quantise(torch.randn(40_000, 1), (8,))
    share = codes_of_points(points, (8,)).bincount(minlength=8) / 40_000
    assert share.min() > 0.08 and share.max() < 0.17


def test_extreme_values_stay_in_range():
    points = quantise(torch.tensor([[-1e9], [1e9], [0.0]]), (8,))
    assert codes_of_points(points, (8,)).tolist() == [0, 7, 4]


def test_encoder_gives_one_code_for_two_frames(fsq):
    codes = fsq.codes_of_mel(torch.randn(2, 80, 12) - 5)
    assert codes.shape == (2, 6) and codes.dtype == torch.int64
    assert codes.min() >= 0 and codes.max() < fsq.config.num_codes


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=8), seed=st.integers(0, 100))
def test_decoder_in_any_pieces_equals_the_whole(fsq, lengths, seed):
    total = sum(lengths)
    codes = torch.randint(
        0, fsq.config.num_codes, (total,), generator=torch.Generator().manual_seed(seed)
    )
    points = points_of_codes(codes, fsq.config.levels)
    stream = StreamedDecoder(fsq.decoder, torch.device("cpu")).open()
    pieces = [stream.push(part) for part in points.split(lengths)]
    taken = list(itertools.accumulate(lengths))
    made = list(itertools.accumulate(piece.shape[1] for piece in pieces))
    assert made == [2 * max(0, n - 1) for n in taken], "the decoder must be exactly one code late"
    if total == 0:
        return
    mel = torch.cat([*pieces, stream.flush()], dim=1)
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
