"""How many questions may be asked and not over at a time.

Gradio counts its queue before it looks at a question, so that many at once pass its limit, and says
in words of its own that it is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from moss_engine.api.errors import ALL_TAKEN
from moss_engine.ui.entrance.asgi import Refused


class Places:
    """Of a page whose queue has a `max_size`: so many questions are answered or wait at the most.
    Used on the event loop that serves the page."""

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
