"""From a service's events to messages at the pace of a listener.

Gradio takes messages without limit and without backpressure, so the pace is kept here: sound is taken from the service
only while it is at most `run_ahead_s` ahead of a listener who plays from the first chunk on, and what has not been
taken makes the service pause the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol

from moss_engine.events import Event
from moss_engine.ui.view import View, fold, take, urgent

TICK_S = 0.1  # between messages that carry no sound and no news of a stage
SILENCE_S = 0.25  # longest time without a message: how late Gradio may notice a closed tab


class Events(Protocol):
    """What is asked of `moss_engine.handle.Handle`. Closing its events stops the reply; `cancelled`: it was stopped."""

    cancelled: bool

    def events(self) -> AsyncGenerator[Event, None]: ...


async def messages(handle: Events, view: View, pool: Callable[[], Mapping[str, int]], *, run_ahead_s: float,
                   clock: Callable[[], float] = time.monotonic) -> AsyncGenerator[tuple[dict[str, Any], View], None]:
    """Every message of a reply with the view after it; the last one has `end`.

    Leaving early, by break or cancellation, stops the reply. What is left of a stopped reply is not held back.
    """
    events = handle.events()
    taking: asyncio.Task[Event] | None = None
    sent_s = clock()
    try:
        while not view.over:
            due = False
            if taking is None and (handle.cancelled or view.lead_s(clock()) < run_ahead_s):
                taking = asyncio.ensure_future(_next(events))
            if taking is None:
                await asyncio.sleep(TICK_S)
            elif (await asyncio.wait({taking}, timeout=TICK_S))[0]:
                event, taking = taking.result(), None
                due = urgent(event, view)
                view = fold(view, event)
            waited_s = clock() - sent_s
            if due or waited_s >= SILENCE_S or (waited_s >= TICK_S and (view.new_ids or view.new_text)):
                message, view = take(view, clock(), pool())
                sent_s = clock()
                yield message, view
    finally:
        if taking is not None:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await taking
        await events.aclose()


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await events.__anext__()
