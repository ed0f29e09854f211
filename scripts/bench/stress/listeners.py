"""Listeners of a service, as a page is one: sound is acknowledged as it is heard."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from typing import Protocol

from moss_engine.api.events import AudioChunk, Event, Failed
from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Message, Request, Text
from moss_engine.api.service import ReplyStream

TICK_S = 0.1


class Speaks(Protocol):
    """What a listener needs of a service."""

    async def submit(self, request: Request) -> ReplyStream: ...


def spoken_request(info: ServiceInfo, text: str, session: str, visitor: str = "") -> Request:
    """A typed text in the mode that the page opens with, for a session of that name."""
    return Request(
        secrets.token_hex(16),
        session,
        (Message("user", Text(text)),),
        info.default_mode.name,
        dataclasses.replace(info.sampling, seed=secrets.randbelow(2**31)),
        visitor=visitor,
    )


@dataclasses.dataclass
class Hearing:
    """What a listener met: seconds to the first sound, sound made, and silence after the first
    sound, all in seconds; `end` is the last event."""

    first_s: float | None = None
    made_s: float = 0.0
    silent_s: float = 0.0
    end: Event | None = None


async def hear(service: Speaks, request: Request, hearing: Hearing) -> Hearing:
    """Listen to a reply to its end; leaving early stops it. Raises what `submit` raises."""
    asked_s = time.monotonic()
    reply = await service.submit(request)
    playing: asyncio.Task[None] | None = None
    dry_s = 0.0
    try:
        async for event in reply.events(acknowledge=False):
            hearing.end = event
            if not isinstance(event, AudioChunk):
                continue
            now_s = time.monotonic()
            if playing is None:
                hearing.first_s, dry_s = now_s - asked_s, now_s
                playing = asyncio.ensure_future(_play(reply, hearing, event.sample_rate_hz))
            hearing.silent_s += max(0.0, now_s - dry_s)
            length_s = len(event.samples) / event.sample_rate_hz
            dry_s = max(dry_s, now_s) + length_s
            hearing.made_s += length_s
    finally:
        if playing is not None:
            playing.cancel()
    return hearing


def failed(hearing: Hearing) -> bool:
    return isinstance(hearing.end, Failed)


async def _play(reply: ReplyStream, hearing: Hearing, rate_hz: int) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(TICK_S)
        heard_s = min(hearing.made_s, time.monotonic() - began_s - hearing.silent_s)
        reply.acknowledge(int(heard_s * rate_hz))
