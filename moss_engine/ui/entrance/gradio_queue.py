"""Gradio's queue: when it begins a call, how many calls it holds, and what it keeps of visitors.
Everything here is used on the event loop that serves the page."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gradio as gr

from moss_engine.api.errors import ALL_TAKEN
from moss_engine.ui.entrance.asgi import Refused

POLL_S = 0.05  # between Gradio's looks for a call; 1,000 a second, its own, take a tenth of a core
PROGRESS_S = 1.0  # for progress bars, which this page has none of


def slow_down(page: gr.Blocks) -> None:
    """Let Gradio look for calls and for progress less often, and make no table of the last 10,000
    calls after each, which is for a page that is closed here."""
    page._queue.sleep_when_free = POLL_S
    page._queue.progress_update_sleep_when_free = PROGRESS_S
    page._queue.ANALYTICS_MAX_EVENTS = 1
    page._queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize


class Places:
    """How many questions may be asked and not over at a time, of a page whose queue has a
    `max_size`: so many are answered or wait at the most.

    Gradio counts its queue before it looks at a question, so that many at once pass its limit, and
    says in words of its own that it is full.
    """

    def __init__(self, page: gr.Blocks):
        assert page._queue.max_size is not None
        self._queue = page._queue
        self._limit: int = page._queue.max_size
        self._joining = 0

    @property
    def taken(self) -> int:
        """Questions that are answered, that wait, and that are being looked at."""
        queues = self._queue.event_queue_per_concurrency_id.values()
        return self._joining + sum(one.current_concurrency + len(one.queue) for one in queues)

    @contextmanager
    def join(self) -> Iterator[None]:
        """A question is on its way into the queue; raises Refused where there is no place."""
        if self.taken >= self._limit:
            raise Refused(429, ALL_TAKEN)
        self._joining += 1
        try:
            yield
        finally:
            self._joining -= 1


class Outboxes:
    """Messages that nobody has taken yet, by the name of a program's session."""

    def __init__(self, page: gr.Blocks):
        self._page = page

    def knows(self, session: str) -> bool:
        """Whether something was asked under this name."""
        return session in self._page._queue.pending_messages_per_session

    def num_untaken(self, session: str) -> int:
        waiting = self._page._queue.pending_messages_per_session
        return waiting[session].qsize() if session in waiting else 0

    def drop(self, session: str) -> None:
        """Forget what nobody takes."""
        while self.num_untaken(session):
            self._page._queue.pending_messages_per_session[session].get_nowait()


class ListenerTimeout:
    """Whether somebody takes the messages of a reply to a program's session, of which `put` counts
    those that were made."""

    def __init__(
        self,
        outboxes: Outboxes,
        session: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._outboxes, self._session = outboxes, session
        self._timeout_s = timeout_s
        self._clock = clock
        self._num_put = self._num_taken = 0
        self._taken_s = clock()

    def put(self) -> None:
        """One more message is made."""
        self._num_put += 1

    def is_over(self) -> bool:
        """Whether nothing was taken for `timeout_s`, although something waits, which is forgotten
        then; to be asked after every message."""
        num = self._outboxes.num_untaken(self._session)
        if num == 0 or self._num_put - num > self._num_taken:
            self._taken_s = self._clock()
        self._num_taken = max(self._num_taken, self._num_put - num)
        over = self._clock() - self._taken_s > self._timeout_s
        if over:
            self._outboxes.drop(self._session)
        return over
