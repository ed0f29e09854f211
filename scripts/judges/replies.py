"""Whole replies of a service, for the commands that judge them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.events import AudioChunk, Failed, Finished, FinishReason, TextDelta
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import Text
from moss_engine.api.service import SpeechService, request_of, stream

SEED = 1


@dataclass(frozen=True)
class Spoken:
    """One reply: what was asked, its caption, its sound, its figures, and the samples at which its
    pieces were joined."""

    asked: str
    caption: str
    wave: np.ndarray
    reason: FinishReason
    metrics: RequestMetrics
    joins: tuple[int, ...] = ()


async def speak(
    service: SpeechService, text: str, number: int, voice: str | None = None, seed: int = SEED
) -> Spoken:
    """One text in the default mode, with the checkpoint's sampling and a fixed seed."""
    info = await service.describe()
    request = request_of(info, Text(text), f"evaluate-{number}", voice=voice, seed=seed)
    timeline, caption, parts = Timeline(), "", []
    async for event in stream(service, request):
        timeline = fold(timeline, event)
        if isinstance(event, TextDelta):
            caption += event.text
        elif isinstance(event, AudioChunk):
            parts.append(event.samples)
        elif isinstance(event, Failed):
            raise MossError(f"{text!r}: {event.message}")
        elif isinstance(event, Finished):
            wave = np.concatenate(parts) if parts else np.zeros(1, np.float32)
            joins = tuple(int(at) for at in np.cumsum([len(part) for part in parts])[:-1])
            return Spoken(text, caption, wave, event.reason, measure(timeline), joins)
    raise AssertionError("the stream ended without a last word")


async def speak_all(
    service: SpeechService,
    texts: Sequence[str],
    concurrency: int,
    voice: str | None = None,
    seed: int = SEED,
) -> list[Spoken]:
    """Every text once, `concurrency` at a time, in order."""
    slots = asyncio.Semaphore(concurrency)

    async def one(number: int, text: str) -> Spoken:
        async with slots:
            return await speak(service, text, number, voice, seed)

    return list(await asyncio.gather(*(one(k, text) for k, text in enumerate(texts))))
