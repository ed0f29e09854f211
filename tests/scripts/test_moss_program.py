"""The four modes of a MOSS-Speech checkpoint end to end, with tiny random weights in the published
layout."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from moss_engine.api.events import AudioChunk, Finished, FinishReason, Sampled
from moss_engine.api.request import Message, Request, Speech, Text
from moss_engine.api.service import stream
from moss_engine.api.tokens import code_of
from moss_engine.build import build_service
from moss_engine.config import EngineConfig
from moss_engine.service.local import LocalService
from tests.fixtures.make_tiny_moss import make_tiny_moss

ROWS = 40


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("moss")
    make_tiny_moss(folder)
    config = EngineConfig(checkpoint=folder / "model", codec=folder / "codec", device="cpu")
    service = build_service(config)
    service.start()
    yield service
    service.close()


@pytest.mark.parametrize(
    "mode", ["text-to-speech", "speech-to-speech", "text-to-text", "speech-to-text"]
)
def test_a_question_is_answered(service, mode):
    info = asyncio.run(service.describe())
    given: Text | Speech = Text("hello world")
    if mode.startswith("speech"):
        wave = np.random.RandomState(0).standard_normal(16_000).astype(np.float32) * 0.1
        given = Speech(asyncio.run(service.encode(wave, 16_000)))
    sampling = dataclasses.replace(info.sampling, max_rows=ROWS, seed=1)
    request = Request(f"{mode}-1", "session", (Message("user", given),), mode, sampling)

    async def heard() -> tuple[list[Sampled], int, object]:
        rows, samples, last = [], 0, None
        async for event in stream(service, request):
            rows += [event] if isinstance(event, Sampled) else []
            samples += len(event.samples) if isinstance(event, AudioChunk) else 0
            last = event
        return rows, samples, last

    rows, samples, last = asyncio.run(heard())
    assert isinstance(last, Finished) and last.reason in (FinishReason.LENGTH, FinishReason.STOP)
    codes = [code for row in rows if (code := code_of(row.row, info.ids)) is not None]
    assert codes and samples == (1920 * len(codes) if mode.endswith("to-speech") else 0)
