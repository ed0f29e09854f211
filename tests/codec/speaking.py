"""What tests of codecs share: codes, and a reply spoken piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moss_engine.codec.base import Push, SpeechCodec, SpeechStream


def some_codes(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 64, count).tolist()


def push(
    codec: SpeechCodec, stream: SpeechStream, codes: Sequence[int], *, is_last: bool = False
) -> np.ndarray:
    (samples,) = codec.push_together([Push(stream, codes, is_last)])
    return samples


def spoken(codec: SpeechCodec, *pieces: Sequence[int], voice: str | None = None) -> np.ndarray:
    """A reply whose codes come in these pieces."""
    stream = codec.open_stream(voice)
    made = [push(codec, stream, piece) for piece in pieces]
    return np.concatenate([*made, push(codec, stream, (), is_last=True)])
