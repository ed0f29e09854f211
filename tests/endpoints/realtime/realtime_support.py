"""What a realtime client does again and again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openai

from moss_engine.audio.pcm import to_pcm16
from tests.endpoints.endpoint_support import MODEL
from tests.ui.page_support import PATIENCE_S, signal

MANUAL = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
QUESTION = to_pcm16(signal(1.0))


def pcm_of(events: list) -> np.ndarray:
    deltas = [e.delta for e in events if e.type == "response.output_audio.delta"]
    return np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")


def base64_of(pcm: np.ndarray) -> str:
    return base64.b64encode(pcm.astype("<i2").tobytes()).decode()


@asynccontextmanager
async def connected(
    url: str, session: dict | None = None, *, waits: bool = True
) -> AsyncIterator[Any]:
    """A connection of OpenAI's own client: open, unless it does not wait for that (`waits`), and
    with this session set, if one is given."""
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        if waits:
            await until(connection, "session.created")
        if session is not None:
            await connection.session.update(session=session)
            await until(connection, "session.updated")
        yield connection


async def until(connection, *kinds: str) -> list:
    """All events up to the first of these kinds."""
    events = []

    async def follow() -> None:
        async for event in connection:
            events.append(event)
            if event.type in kinds:
                return

    await asyncio.wait_for(follow(), PATIENCE_S)
    return events


async def send(connection, pcm: np.ndarray, block: int = 4800) -> None:
    for start in range(0, len(pcm), block):
        await connection.input_audio_buffer.append(audio=base64_of(pcm[start : start + block]))


async def write(connection, text: str = "How are you?") -> str:
    content = [{"type": "input_text", "text": text}]
    await connection.conversation.item.create(
        item={"type": "message", "role": "user", "content": content}
    )
    return (await until(connection, "conversation.item.done"))[-1].item.id


async def ask(connection, *text: str, **how) -> list:
    """Write a message, then ask for an answer as `respond` does."""
    await write(connection, *text)
    return await respond(connection, **how)


async def respond(connection, **how) -> list:
    """Ask for an answer; all of its events."""
    await connection.response.create(**how)
    return await until(connection, "response.done")
