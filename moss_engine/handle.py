"""A request's way back: events and codes of one reply, from the service's threads to its one listener.

The engine thread and the codec thread put, the listener takes from whatever event loop it lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

from moss_engine.codec.base import SpeechStream
from moss_engine.events import Accepted, AudioChunk, Event, Failed, Finished, Sampled
from moss_engine.request import Request

if TYPE_CHECKING:
    import numpy as np

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]
MAX_UNTAKEN_EVENTS = 4096
LINGER_S = 0.1
"""How long rows that were sampled wait for something to be heard or read before their listener is woken for them alone:
with hundreds of listeners, waking each for every row costs more than making it."""
GUARD_S = 0.2  # of a voice that is being heard: with less sound left than this it goes before a first sound


class Handle:
    """One request from `submit` to its terminal event.

    `codes` and `stream` are the codec thread's work, which is due when there are `missing_codes`; `ending` is the
    engine's last word while sound is still being made before it; `cancelled` says that no more sound is wanted. Exactly
    one terminal event is ever delivered.
    """

    def __init__(self, request: Request, *, speaks: bool, sample_rate_hz: int, samples_per_code: int,
                 clock: Callable[[], float], cancel: Callable[[str], None], on_taken: Callable[[], None]):
        self.request = request
        self.speaks = speaks
        self.codes: deque[int] = deque()
        self.stream: SpeechStream | None = None
        self.missing_codes = 1
        self.ending: Finished | None = None
        self.cancelled = False
        self.num_rows = 0
        self.first_pcm_s: float | None = None
        self._num_codes = 0
        self._made_samples = 0
        self._taken_samples = 0
        self._sample_rate_hz = sample_rate_hz
        self._samples_per_code = samples_per_code
        self._clock = clock
        self._cancel = cancel
        self._on_taken = on_taken
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._opened_s = self._pending_since_s = clock()
        self._waiter: Waiter | None = None
        self._over = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def ahead_s(self) -> float:
        """Seconds of audio, made or still codes, that the listener has not taken."""
        return (self._num_codes * self._samples_per_code - self._taken_samples) / self._sample_rate_hz

    @property
    def num_untaken(self) -> int:
        return len(self._events)

    @property
    def is_due(self) -> bool:
        """Whether the codec has something to do for this reply: sound that can be made now, or its end."""
        return self.ending is not None or (len(self.codes) >= self.missing_codes and not self.cancelled)

    def urgency(self, now_s: float) -> tuple[int, float]:
        """Whose turn it is: the least comes first.

        Whoever is about to run dry, then who has heard nothing yet, longest wait first, then who runs dry first. A
        listener plays from the first chunk on.
        """
        if self.first_pcm_s is None:
            return 1, self._opened_s
        dry_s = self.first_pcm_s + self._made_samples / self._sample_rate_hz
        return (0 if dry_s < now_s + GUARD_S else 2), dry_s

    def lease_lost(self, now_s: float, lease_s: float) -> bool:
        """Whether events have been waiting for so long, and nobody for them, that nobody can be listening."""
        with self._lock:
            return bool(self._events) and self._waiter is None and now_s - self._pending_since_s > lease_s

    def cancel(self) -> None:
        """Stop the reply; it ends with `Finished(CANCELLED)`. Does nothing when it is over."""
        self._cancel(self.request_id)

    @property
    def has_sound(self) -> bool:
        """Whether the reply has any codes, and so goes on after the engine's last word."""
        return self._num_codes > 0

    def add_code(self, code: int) -> None:
        self._num_codes += 1
        self.codes.append(code)

    def take_codes(self, most: int) -> list[int]:
        return [self.codes.popleft() for _ in range(min(most, len(self.codes)))]

    def open(self, accepted: Accepted) -> None:
        """Deliver what every stream begins with, before anything that the engine was quick enough to put already."""
        with self._lock:
            self._events.appendleft(accepted)

    def put(self, event: Event, waiters: list[Waiter] | None = None) -> bool:
        """Deliver an event; False, and nothing delivered, once the terminal one was.

        A listener who waits is woken, but for rows alone only when the first of them has waited for LINGER_S. With
        `waiters` it is added to them instead, and `wake` does it for many.
        """
        with self._lock:
            if self._over:
                return False
            self._over = isinstance(event, Finished | Failed)
            if not self._events:
                self._pending_since_s = self._clock()
            self._events.append(event)
            if isinstance(event, Sampled) and self._clock() - self._pending_since_s < LINGER_S:
                return True
            waiter, self._waiter = self._waiter, None
        if waiter and waiters is not None:
            waiters.append(waiter)
        elif waiter:
            wake([waiter])
        return True

    def put_samples(self, samples: np.ndarray) -> None:
        """Deliver an AudioChunk of float32 samples [n]."""
        now_s = self._clock()
        if self.first_pcm_s is None:
            self.first_pcm_s = now_s
        chunk = AudioChunk(self.request_id, now_s, self.num_rows, samples, self._made_samples, self._sample_rate_hz)
        self._made_samples += len(samples)
        self.put(chunk)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Every event to the terminal one. Leaving early cancels the reply."""
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
                    event = self._events.popleft()
                    self._pending_since_s = self._clock()
                    break
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._waiter = (loop, future)
            await future
        if isinstance(event, AudioChunk):
            self._taken_samples += len(event.samples)
            self._on_taken()
        return event


def wake(waiters: Sequence[Waiter]) -> None:
    """Wake listeners, those of one event loop with one call to it."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the listener's loop is closed: the lease ends the reply
            loop.call_soon_threadsafe(_set, futures)


def _set(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
