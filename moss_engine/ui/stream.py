"""From a reply's events to messages at the pace of a listener.

Events are taken as they come, and sound is acknowledged as a listener who plays from the first
chunk on hears it: the service makes a bounded stretch more than that, which is how far the browser
is led.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import gradio as gr
import numpy as np

from moss_engine.api.errors import MossError
from moss_engine.api.events import Accepted, Event
from moss_engine.api.service import ReplyStream
from moss_engine.audio.opus import RATES_HZ, OpusStream
from moss_engine.ui.conversation import Conversation
from moss_engine.ui.entrance.gradio_queue import Lease
from moss_engine.ui.view import View, fail, fold, take, to_wire, urgent

TICK_S = 0.1  # between messages that carry no sound and no news of a stage
SILENCE_S = 0.25  # longest time without a message: how late Gradio may notice a closed tab
Told = AsyncGenerator[dict[str, Any], None]
WAYS = ("pcm", "opus")
TICKS_S = {"pcm": TICK_S, "opus": SILENCE_S}  # between messages without sound
DIGITS = 5  # after the point, of seconds and figures: less than half a sample
FOLDED = ("figures", "stages", "pool")  # of which a slow link carries what changed
NEW = ("pcm", "text", "ids", "pieces", "opus")  # of one message; all others last until they change


class Pool(Protocol):
    """Counts of the whole service; those of `now` where older ones will not do."""

    def __call__(self, *, now: bool) -> Awaitable[Mapping[str, Any]]: ...


class ReplyClock:
    """The page's clock as seconds since a reply was accepted, which is what events count in.

    `received_s` is when the question reached the page, `listened_s` from when to when a recogniser
    listened to it. A service elsewhere accepts a little before
    the page hears of it; that little is not known here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.received_s = clock()
        self.listened_s: tuple[float, float] | None = None
        self._accepted_s: float | None = None

    def accepted(self) -> None:
        self._accepted_s = self._clock()

    def elapsed_s(self) -> float | None:
        """Seconds since the reply was accepted; None before that."""
        return None if self._accepted_s is None else self._clock() - self._accepted_s

    @property
    def received_before_s(self) -> float | None:
        """When the question reached the page, in the events' time: negative."""
        return None if self._accepted_s is None else self.received_s - self._accepted_s

    @property
    def listened_before_s(self) -> tuple[float, float] | None:
        """The same, in the events' time."""
        if self._accepted_s is None or self.listened_s is None:
            return None
        return self.listened_s[0] - self._accepted_s, self.listened_s[1] - self._accepted_s


async def messages(
    reply: ReplyStream,
    view: View,
    clock: ReplyClock,
    pool: Pool,
    lease: Lease,
    tick_s: float = TICK_S,
) -> AsyncGenerator[tuple[dict[str, Any], View], None]:
    """Every message of a reply with the view after it; the last one has `end`. They end early where
    the lease is lost. Between those that are urgent there are at least `tick_s`.

    Leaving early, by break or cancellation, stops the reply.
    """
    sent_s = time.monotonic()
    async with contextlib.aclosing(ticking(reply.events(acknowledge=False), TICK_S)) as ticks:
        while not view.over and not lease.is_lost():
            due = False
            reply.acknowledge(view.heard_samples(clock.elapsed_s()))
            event = await anext(ticks)
            if event is not None:
                due = urgent(event, view)
                if isinstance(event, Accepted):
                    clock.accepted()
                    listened_s = clock.listened_before_s
                    view = replace(view, received_s=clock.received_before_s, listened_s=listened_s)
                view = fold(view, event)
            waited_s = time.monotonic() - sent_s
            if (
                due
                or waited_s >= SILENCE_S
                or (waited_s >= tick_s and (view.new_ids or view.new_text))
            ):
                message, view = take(view, clock.elapsed_s(), await pool(now=view.over))
                sent_s = time.monotonic()
                lease.put()
                yield message, view


async def ticking(
    events: AsyncGenerator[Event, None], tick_s: float
) -> AsyncGenerator[Event | None, None]:
    """Every event as it comes, and None when none came for `tick_s`; closes `events` at its end."""
    taking: asyncio.Task[Event] | None = None
    try:
        while True:
            taking = taking or asyncio.ensure_future(_next(events))
            if not (await asyncio.wait({taking}, timeout=tick_s))[0]:
                yield None
                continue
            done, taking = taking, None
            try:
                event = done.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if taking is not None:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await taking
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await events.__anext__()


class SoundWay:
    """Of one reply. A rate that Opus does not know travels as samples.

    A compressed message is `{run, seq, brief}`, whose `brief` is JSON of everything that is new
    since the message before: Gradio itself would send each changed number beside its place, which
    takes more than the sound."""

    def __init__(self, way: str):
        self._opus = way == "opus"
        self._told: dict[str, Any] = {}
        self._stream: OpusStream | None = None

    def wire(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as JSON; its `sound` says which way it went."""
        if not self._opus or (message["rate"] and message["rate"] not in RATES_HZ):
            return {**to_wire(message), "sound": "pcm"}
        packets = self._packets(message)
        head = self._stream.head if self._stream else b""
        opus = {"head": _text(head), "packets": _text(framed(packets))} if packets else None
        name = {key: message[key] for key in ("run", "seq")}
        wired = {**to_wire({**message, "pcm": b""}), "sound": "opus", "opus": opus}
        return name | {"brief": self._brief({k: v for k, v in wired.items() if k not in name})}

    def _brief(self, message: Mapping[str, Any]) -> str:
        new = {}
        for key, value in rounded(message).items():
            if key in FOLDED:
                told = self._told.setdefault(key, {})
                value = {name: one for name, one in value.items() if told.get(name) != one}
                told.update(value)
            elif key not in NEW:
                if key in self._told and self._told[key] == value:
                    continue
                self._told[key] = value
            if value or key not in (*FOLDED, *NEW):
                new[key] = value
        return json.dumps(new, ensure_ascii=False, separators=(",", ":"))

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


def rounded(value: Any) -> Any:
    """JSON with all of its numbers short."""
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def framed(packets: list[bytes]) -> bytes:
    """Every packet behind its length, as two bytes with the lower first."""
    return b"".join(len(packet).to_bytes(2, "little") + packet for packet in packets)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


async def relay(
    view: View,
    clock: ReplyClock,
    way: SoundWay,
    conversation: Conversation,
    stream: Callable[[View], Told],
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Yields before anything is begun: Gradio cannot close a generator that never has. A MossError
    of the `stream` is its last message, and what Gradio is told."""
    message, view = take(view, None)
    yield way.wire(message), conversation
    try:
        async with aclosing(stream(view)) as told:
            async for message in told:
                yield way.wire(message), gr.skip()
    except MossError as error:
        message, _ = take(replace(fail(view, str(error)), seq=1), clock.elapsed_s())
        yield way.wire(message), gr.skip()
        raise gr.Error(str(error), print_exception=False) from None
    finally:
        way.close()


Itself = TypeVar("Itself", bound="Shared")


class Shared:
    """Gradio copies the page's description for every visitor, with the methods that answer; who
    answers is not copied."""

    def __deepcopy__(self: Itself, memo: dict) -> Itself:
        return self
