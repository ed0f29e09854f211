"""What Gradio keeps of visitors, by the name of their session: messages that nobody has taken yet,
and the state of tabs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

import gradio as gr

ENDING_S = 1.0  # between two looks whether the calls of a closed tab are over


class Outboxes:
    """Used on the event loop that serves the page."""

    def __init__(self, page: gr.Blocks):
        self._queues = page._queue.pending_messages_per_session
        self._page = page
        # After every call Gradio makes a table of the last 10,000, for a page that is closed here.
        page._queue.ANALYTICS_MAX_EVENTS = 1
        page._queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize

    def knows(self, session: str) -> bool:
        """Whether something was asked under this name."""
        return session in self._queues

    def num_untaken(self, session: str) -> int:
        return self._queues[session].qsize() if session in self._queues else 0

    def drop(self, session: str) -> None:
        """Forget what nobody takes."""
        while self.num_untaken(session):
            self._queues[session].get_nowait()

    def close(self, session: str) -> None:
        """A tab was closed: forget its state, which Gradio keeps with the whole layout and the last
        message of every component until 200 other sessions have come, and what its last reply said
        to nobody. What was said is found again without them.

        A call that is still under way makes the state anew with its next message, so this is done
        once more when no call is.
        """
        holder, queue = self._page.state_holder, self._page._queue
        with holder.lock:
            holder.session_data.pop(session, None)
            holder.time_last_used.pop(session, None)
        if any(event.session_hash == session for event in queue.event_ids_to_events.values()):
            asyncio.get_running_loop().call_later(ENDING_S, self.close, session)
            return
        self._queues.pop(session, None)
        queue.pending_event_ids_session.pop(session, None)


class Lease:
    """Whether somebody takes the messages of a reply, of which `put` counts those that were made:
    `num_untaken` counts those that nobody took yet, `drop` forgets them. Gradio keeps any number of
    them, and tells nobody."""

    def __init__(
        self,
        num_untaken: Callable[[], int],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        drop: Callable[[], None] = lambda: None,
    ):
        self._num_untaken = num_untaken
        self._lease_s = lease_s
        self._clock, self._drop = clock, drop
        self._num_put = self._num_taken = 0
        self._taken_s = clock()

    def put(self) -> None:
        """One more message is made."""
        self._num_put += 1

    def is_lost(self) -> bool:
        """Whether nothing was taken for `lease_s`, although something waits; to be asked after
        every message."""
        num = self._num_untaken()
        if num == 0 or self._num_put - num > self._num_taken:
            self._taken_s = self._clock()
        self._num_taken = max(self._num_taken, self._num_put - num)
        lost = self._clock() - self._taken_s > self._lease_s
        if lost:
            self._drop()
        return lost


def lease_of(outboxes: Outboxes | None, session: str, lease_s: float) -> Lease:
    """The lease of a reply to a session; without outboxes everything is taken at once."""
    if outboxes is None:
        return Lease(lambda: 0, lease_s)
    return Lease(
        lambda: outboxes.num_untaken(session), lease_s, drop=lambda: outboxes.drop(session)
    )
