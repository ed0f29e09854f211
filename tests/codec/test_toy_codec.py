"""A codec of one's own is a class, a folder with its `type`, and a line in `codec.load.LOADERS`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from moss_engine.api.errors import ConfigError
from moss_engine.api.events import AudioChunk, Finished
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import stream
from moss_engine.api.tokens import spoken_codes
from moss_engine.build import build_service
from moss_engine.codec import load
from moss_engine.codec.base import CodecOptions, Push
from moss_engine.config import EngineConfig

SAMPLES = 960


class ToyStream:
    missing_codes = lasting_codes = 1

    def places(self, num_codes: int) -> int:
        return 1


class ToyCodec:
    """Every code is 40 ms of one value."""

    sample_rate_hz = 24_000
    code_rate_hz = Fraction(25)
    max_together = 1
    voices = ("plain",)

    def __init__(self, num_codes: int):
        self.num_codes = num_codes

    def encode(self, wave: np.ndarray, sample_rate_hz: int) -> list[int]:
        return [round(float(value) * 100) for value in wave[::SAMPLES]]

    def open_stream(self, voice: str | None = None) -> ToyStream:
        return ToyStream()

    def push_together(self, work: Sequence[Push]) -> list[np.ndarray]:
        return [np.repeat(np.float32(push.codes) / 100, SAMPLES) for push in work]


def load_toy(folder: Path, device: object, options: CodecOptions) -> ToyCodec:
    if options != CodecOptions():
        raise ConfigError("The toy codec has no options; leave them out.")
    return ToyCodec(json.loads((folder / "codec" / "config.json").read_text())["num_codes"])


@pytest.fixture
def toy_folder(tmp_path: Path) -> Path:
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "config.json").write_text('{"type": "toy", "num_codes": 64}')
    return tmp_path


def test_a_toy_codec_is_served(toy_folder, tiny_checkpoint, monkeypatch):
    monkeypatch.setitem(load.LOADERS, "toy", load_toy)
    service = build_service(
        EngineConfig(checkpoint=tiny_checkpoint, codec=toy_folder, device="cpu")
    )

    async def reply():
        info = await service.describe()
        message = Message("user", Text("Hello there."))
        request = Request("a", "session", (message,), info.default_mode.name, info.sampling)
        return [event async for event in stream(service, request)]

    service.start()
    try:
        events = asyncio.run(reply())
    finally:
        service.close()
    (end,) = [event for event in events if isinstance(event, Finished)]
    codes = spoken_codes(end.rows, asyncio.run(service.describe()).ids)
    wave = np.concatenate([event.samples for event in events if isinstance(event, AudioChunk)])
    assert len(codes) > 0 and np.array_equal(wave, np.repeat(np.float32(codes) / 100, SAMPLES))


def test_its_loader_is_given_the_options(toy_folder, monkeypatch):
    monkeypatch.setitem(load.LOADERS, "toy", load_toy)
    with pytest.raises(ConfigError, match="no options"):
        load.load_codec(toy_folder, vocoder="hift")
