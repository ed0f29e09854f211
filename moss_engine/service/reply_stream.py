"""The way of a reply to its one listener, on whatever event loop that one runs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from moss_engine.api.events import Accepted, Event, Failed, Finished, Sampled

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
MAX_UNTAKEN_EVENTS = 4096
LINGER_S = 0.1
"""How long sampled rows wait for sound or text before their listener is woken for them alone: with
hundreds of listeners, waking each for every row costs more than making it."""


class LocalReplyStream:
    """The `ReplyStream` of a listener in this process. Exactly one terminal event is delivered.

    `num_rows` are the reply's so far, `taken_samples` those that the listener has acknowledged;
    `accepted_s`, on `clock`, is the zero of the events' times; `held_s` is how long the reply was
    paused because its listener was far behind.
    """

    def __init__(
        self,
        request_id: str,
        *,
        clock: Callable[[], float],
        cancel: Callable[[str], None],
        on_taken: Callable[[], None],
    ):
        self.request_id = request_id
        self.num_rows = self.taken_samples = 0
        self.held_s = 0.0
        self._held_since_s: float | None = None
        self.accepted_s = clock()
        self._pending_since_s = math.inf  # nobody can listen before there is something to hear
        self._clock = clock
        self._cancel = cancel
        self._on_taken = on_taken
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._waiter: Waiter | None = None
        self._over = False

    @property
    def num_untaken(self) -> int:
        return len(self._events)

    def elapsed_s(self) -> float:
        """Seconds since the request was accepted, as events carry them."""
        return self._clock() - self.accepted_s

    def lease_lost(self, now_s: float, lease_s: float) -> bool:
        """Whether the listener has neither taken an event nor waited for one for so long that
        nobody can be there. A reply that is paused has no event to wait for."""
        with self._lock:
            return self._waiter is None and now_s - self._pending_since_s > lease_s

    def hold(self, held: bool, now_s: float) -> None:
        """Note whether the engine pauses this reply. Called by one thread."""
        if held is (self._held_since_s is not None):
            return
        with self._lock:
            if self._held_since_s is not None:
                self.held_s += now_s - self._held_since_s
            self._held_since_s = now_s if held else None

    def note_work(self) -> None:
        """The codec worked until now, although the engine paused the reply: no pause."""
        with self._lock:
            if self._held_since_s is not None:
                self._held_since_s = self._clock()

    def cancel(self) -> None:
        """Stop the reply; it ends with `Finished(CANCELLED)`. Does nothing when it is over."""
        if not self._over:  # else its service may be closed
            self._cancel(self.request_id)

    def acknowledge(self, samples: int) -> None:
        """The listener has taken `samples` of the reply in all; less than before is ignored."""
        if samples > self.taken_samples:
            self.taken_samples = samples
            self._on_taken()

    def open(self, accepted: Accepted) -> None:
        """Deliver the first event of every stream, before anything that the engine was quick enough
        to put already."""
        with self._lock:
            self._pending_since_s = min(self._pending_since_s, self._clock())
            self._events.appendleft(accepted)

    def put(self, event: Event, waiters: list[Waiter] | None = None) -> bool:
        """Deliver an event; returns False, and delivers nothing, once the terminal one was.

        Wakes a listener who waits, but for rows alone only when the first of them has waited for
        LINGER_S. With `waiters` the listener is added to that list instead, so that `wake` can wake
        many at once.
        """
        with self._lock:
            if self._over:
                return False
            self._over = isinstance(event, (Finished, Failed))
            self.num_rows = max(self.num_rows, event.num_rows)
            if not self._events:
                self._pending_since_s = self._clock()
            self._events.append(event)
            if self._waiter is None or (
                isinstance(event, Sampled) and self._clock() - self._pending_since_s < LINGER_S
            ):
                return True
            waiter, self._waiter = self._waiter, None
        if waiters is None:
            wake([waiter])
        else:
            waiters.append(waiter)
        return True

    async def events(self) -> AsyncGenerator[Event, None]:
        """Every event to the terminal one; leaving early stops the reply."""
        try:
            while True:
                event = await self._take()
                yield event
                if isinstance(event, Finished | Failed):
                    return
        finally:
            self.cancel()

    async def _take(self) -> Event:
        while True:
            with self._lock:
                if self._events:
                    self._pending_since_s = self._clock()
                    return self._events.popleft()
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._waiter = (loop, future)
            await future


def wake(waiters: Sequence[Waiter]) -> None:
    """Wake listeners, with one call for all those of one event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        # A listener whose loop is closed loses its lease, which stops the reply.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, futures)


def _set(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
