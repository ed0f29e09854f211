"""From a reply's events to messages at the pace of a listener, and how they travel to a tab.

Events are taken as they come, and sound is acknowledged as a listener who plays from the first
chunk on hears it: the service makes a bounded stretch more than that, which is how far the browser
is led.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from moss_engine.api.events import Event
from moss_engine.api.service import ReplyStream, SpeechService
from moss_engine.audio.opus import RATES_HZ, OpusStream
from moss_engine.ui.turn import Turn

TICK_S = 0.1  # between messages that carry no sound and no news of a stage
SILENCE_S = 0.25  # longest time without a message: how late a lost connection may be noticed
Messages = AsyncGenerator[dict[str, Any], None]
Counts = Callable[[], Awaitable[Mapping[str, Any]]]


async def pool_counts(service: SpeechService) -> dict[str, Any]:
    """Blocks by state, replies by state, and in a cluster its `ClusterStats`."""
    stats = await service.stats()
    engine = stats.engine
    return {
        **({} if stats.cluster is None else asdict(stats.cluster)),
        "used": engine.blocks_used,
        "cached": engine.blocks_cached,
        "free": engine.blocks_free,
        "running": engine.running,
        "waiting": engine.waiting,
    }


async def messages(
    reply: ReplyStream, turn: Turn, counts: Counts, *, paced: bool = True
) -> Messages:
    """Every message of the reply to a turn; the last one has `end`. Between those that are urgent
    there are at least TICK_S. `counts` are asked for until there is sound, and at the end. If it
    is not `paced`, sound counts as heard as it comes.

    Leaving early, by break or cancellation, stops the reply.
    """
    sent_s, counted = time.monotonic(), False
    events = reply.events()
    taking: asyncio.Future[Event] | None = None
    try:
        while not turn.over:
            reply.acknowledge(turn.heard_samples() if paced else turn.num_made)
            taking = taking or asyncio.ensure_future(anext(events))
            due, silent = False, not turn.num_made
            await asyncio.wait({taking}, timeout=TICK_S)
            while taking is not None and taking.done():  # all that is there goes together
                due = turn.fold(taking.result()) or due
                taking = None if turn.over else asyncio.ensure_future(anext(events))
                if silent and turn.num_made:  # but the first sound alone: seconds take their time
                    break
                await asyncio.sleep(0)
            waited_s = time.monotonic() - sent_s
            regular = waited_s >= TICK_S and turn.has_written
            if due or turn.over or regular or waited_s >= SILENCE_S:
                counts_now = turn.over or not (turn.num_made and counted)
                pool = await counts() if counts_now else None
                counted = True
                sent_s = time.monotonic()
                yield turn.message(pool)
    finally:
        if taking is not None:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await taking
        await events.aclose()


def to_wire(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as JSON: its int16 PCM in base64."""
    return {**message, "pcm": _text(message["pcm"])}


class Wire:
    """How the messages of one reply travel to a tab: as JSON, and their sound as bytes: int16 PCM,
    or packets of Opus for a slow link. A rate that Opus does not know travels as PCM."""

    def __init__(self, sound: str):
        self._opus = sound == "opus"
        self._stream: OpusStream | None = None

    def pack(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A message without its sound, and its sound; the key `sound` says how it is packed, of
        Opus every packet behind its length: two bytes, the lower first."""
        words = {key: value for key, value in message.items() if key != "pcm"}
        if not self._opus or (message["rate"] and message["rate"] not in RATES_HZ):
            return {**words, "sound": "pcm"}, message["pcm"]
        packets = [len(one).to_bytes(2, "little") + one for one in self._packets(message)]
        head = _text(self._stream.head) if self._stream else None
        return {**words, "sound": "opus", "head": head}, b"".join(packets)

    def _packets(self, message: Mapping[str, Any]) -> list[bytes]:
        packets = []
        if message["pcm"]:
            self._stream = self._stream or OpusStream(message["rate"])
            packets = self._stream.push(np.frombuffer(message["pcm"], "<i2").astype(np.int16))
        if message["end"] and self._stream:
            packets += self._stream.end()
        return packets

    def close(self) -> None:
        """The reply is over, perhaps before its end."""
        if self._stream:
            self._stream.close()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
