"""What every codec holds, whatever it speaks with: the samples of a reply, of replies together, and
refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moss_engine.api.errors import ParameterError
from moss_engine.codec.base import Push, SpeechCodec, samples_per_code
from moss_engine.codec.load import load_codec
from moss_engine.codec.moss.codec import MossCodec
from moss_engine.codec.vocoder.bigvgan import WindowVocoder
from moss_engine.codec.vocoder.source_filter import CachedVocoder
from moss_engine.config import NANO_CHECKPOINT
from tests.codec.speaking import push, some_codes, spoken
from tests.fixtures.make_tiny_codec import make_tiny_codec
from tests.fixtures.make_tiny_moss import make_tiny_codec_folder

OPTIONS = {
    "the built-in voice": {},
    "the built-in voice with its BigVGAN": {"vocoder": "bigvgan"},
    "a plain BigVGAN": {},
    "a plain BigVGAN in windows of two lengths": {},
    "the published one": {},
    "the published one with a plain BigVGAN": {"vocoder": "bigvgan"},
}


@pytest.fixture(scope="module", params=OPTIONS)
def codec(request, tmp_path_factory) -> SpeechCodec:
    folder, options = tmp_path_factory.mktemp("codec"), OPTIONS[request.param]
    if request.param.startswith("the built-in"):
        return load_codec(NANO_CHECKPOINT, **options)
    make_tiny_codec(folder, seed=1)
    if request.param.startswith("the published"):
        make_tiny_codec_folder(folder / "moss")
        place = folder / "vocoder" if options else None
        return load_codec(folder / "moss", vocoder_folder=place, **options)
    codec = load_codec(folder)
    if "windows" in request.param:
        one = codec.vocoder
        lengths = tuple(one.chunk_frames[i] + 2 * one.context for i in (0, -1))
        codec.vocoder = WindowVocoder(
            one.generator, one.mel, one.chunk_frames, one.context, lengths, torch.device("cpu")
        )
    return codec


def assert_same(codec: SpeechCodec, wave: np.ndarray, wanted: np.ndarray) -> None:
    """But for rounding: products of other shapes round differently, and the phase of the built-in
    voice's pulses is a sum over the whole reply."""
    assert wave.shape == wanted.shape
    if isinstance(codec.vocoder, CachedVocoder):
        assert np.linalg.norm(wave - wanted) <= 1e-3 * np.linalg.norm(wanted)
    else:
        np.testing.assert_allclose(wave, wanted, atol=1e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("sizes", [[1], [7], [13], [3, 20, 8], [31]])
def test_the_same_codes_sound_the_same_in_any_pieces(codec, sizes):
    codes = some_codes(sum(sizes))
    ones = spoken(codec, *([code] for code in codes))
    assert ones.dtype == np.float32 and len(ones) == samples_per_code(codec) * len(codes)
    assert 0 < np.abs(ones).max() <= 1
    assert_same(codec, spoken(codec, *np.split(codes, np.cumsum(sizes)[:-1])), ones)


def test_replies_together_are_replies_alone(codec):
    """Whatever each was given before, and wherever it ends."""
    replies = [some_codes(count, seed) for seed, count in enumerate((30, 23, 9))]
    streams = [codec.open_stream() for _ in replies]
    parts = [[push(codec, streams[0], replies[0][:4])], [], []]
    ends = np.array([4, 0, 0])
    for size in (8, 5, 5, 99):
        work = [
            Push(stream, codes[end : end + size], is_last=size == 99 and stream is not streams[1])
            for stream, codes, end in zip(streams, replies, ends, strict=True)
        ]
        for part, wave in zip(parts, codec.push_together(work), strict=True):
            part.append(wave)
        ends += size
    parts[1].append(push(codec, streams[1], (), is_last=True))  # behind its codes
    for codes, part in zip(replies, parts, strict=True):
        assert_same(codec, np.concatenate(part), spoken(codec, codes))


def test_a_failed_run_takes_no_codes(codec, monkeypatch):
    codes = some_codes(40, seed=7)
    streams = [codec.open_stream(), codec.open_stream()]
    first = codec.push_together([Push(stream, codes[:8]) for stream in streams])
    with pytest.raises(ParameterError, match=f"code {codec.num_codes} "):
        codec.push_together([Push(streams[0], codes[8:28]), Push(streams[1], [codec.num_codes])])
    flow = [(codec, "_run", 0), (codec, "_run", 1)] if isinstance(codec, MossCodec) else []
    for owner, name, calls in (*flow, (codec.vocoder, "speak", 0)):
        real, left = getattr(owner, name), iter(range(calls))

        def failing(*args, real=real, left=left):
            if next(left, None) is None:
                raise RuntimeError("out of memory")
            return real(*args)

        monkeypatch.setattr(owner, name, failing)
        with pytest.raises(RuntimeError):
            codec.push_together([Push(stream, codes[8:28]) for stream in streams])
        monkeypatch.undo()
    second = codec.push_together([Push(stream, codes[8:28]) for stream in streams])
    wanted = spoken(codec, codes[:8], codes[8:28], codes[28:])
    for stream, *waves in zip(streams, first, second, strict=True):
        wave = np.concatenate([*waves, push(codec, stream, codes[28:], is_last=True)])
        assert_same(codec, wave, wanted)


def test_what_it_does_not_have_is_refused_before_anything_runs(codec):
    stream, codes = codec.open_stream(), some_codes(8)
    for code in (-1, codec.num_codes):
        with pytest.raises(ParameterError, match=f"code {code} is none of .*; give codes from 0 "):
            push(codec, stream, [*codes[:5], code])
    assert len(push(codec, stream, codes, is_last=True)) == 8 * samples_per_code(codec)
    with pytest.raises(ParameterError, match="voice 'nobody' is unknown; choose one of"):
        codec.open_stream("nobody")
