"""From a reply's events to messages at the pace of a listener.

Events are taken as they come, and sound is acknowledged as a listener who plays from the first
chunk on hears it: the service makes a bounded stretch more than that, which is how far the browser
is led.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from moss_engine.api.events import Accepted, Event
from moss_engine.api.service import ReplyStream
from moss_engine.ui.entrance.gradio_queue import Lease
from moss_engine.ui.view import View, fold, take, urgent

TICK_S = 0.1  # between messages that carry no sound and no news of a stage
SILENCE_S = 0.25  # longest time without a message: how late Gradio may notice a closed tab


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
