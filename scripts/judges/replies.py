"""Whole replies of a service, for the commands that judge them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Failed, Finished, TextDelta
from moss_engine.api.request import Text
from moss_engine.api.service import SpeechService, request_of, stream

SEED = 1


@dataclass(frozen=True)
class Spoken:
    """One reply: its caption and its sound."""

    caption: str
    wave: np.ndarray


async def speak(service: SpeechService, text: str, number: int, voice: str | None = None) -> Spoken:
    """One text in the default mode, with the checkpoint's sampling and a fixed seed; in its first
    voice unless another is named."""
    info = await service.describe()
    request = request_of(info, Text(text), f"evaluate-{number}", voice=voice, seed=SEED)
    caption, parts = "", [np.zeros(0, np.float32)]
    async for event in stream(service, request):
        if isinstance(event, TextDelta):
            caption += event.text
        elif isinstance(event, AudioChunk):
            parts.append(event.samples)
        elif isinstance(event, Failed):
            raise MossError(f"{text!r}: {event.message}")
        elif isinstance(event, Finished):
            return Spoken(caption, np.concatenate(parts))
    raise AssertionError("the stream ended without a last word")


async def speak_all(
    service: SpeechService, texts: Sequence[str], concurrency: int, voice: str | None = None
) -> list[Spoken]:
    """Every text once, `concurrency` at a time, in order."""
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, text: str) -> Spoken:
        async with slots:
            return await speak(service, text, number, voice)

    return list(await asyncio.gather(*(one(k, text) for k, text in enumerate(texts))))
