"""Gradio's queue: when it begins a call, how many calls it holds, and what it keeps of visitors.
Everything here is used on the event loop that serves the page."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gradio as gr
from gradio.queueing import Queue
from gradio.utils import run_coro_in_background, set_task_name

from moss_engine.api.errors import ALL_TAKEN
from moss_engine.ui.entrance.asgi import Refused

LOOK_S = 1.0  # between two looks at a queue in which nothing changes
ENDING_S = 1.0  # between two looks whether the calls of a closed tab are over


class WakingQueue(Queue):
    """Begins a call when one comes or another ends. Gradio's own looks 1,000 times a second whether
    there is one, which takes a tenth of a core with nobody there, and 100 times for progress
    bars."""

    def __init__(self, page: gr.Blocks, max_size: int):
        super().__init__(
            live_updates=True,
            concurrency_count=page.max_threads,
            update_intervals=1,
            max_size=max_size,
            blocks=page,
            default_concurrency_limit=1,
        )
        self.changed = asyncio.Event()

    async def push(self, *arguments: Any, **named: Any) -> Any:
        answer = await super().push(*arguments, **named)
        self.changed.set()
        return answer

    async def process_events(self, *arguments: Any) -> None:
        try:
            await super().process_events(*arguments)
        finally:
            self.changed.set()

    async def start_processing(self) -> None:
        try:
            while not self.stopped:
                self.changed.clear()
                while None in self.active_jobs and (ready := self.get_events()):
                    self._begin(*ready)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), LOOK_S)
        finally:
            self.stopped = True
            self._cancel_asyncio_tasks()

    def _begin(self, events: list[Any], batch: bool, concurrency_id: str) -> None:
        """As Gradio does it; `/cancel` finds the task by its name."""
        self.active_jobs[self.active_jobs.index(None)] = events
        queue, fn, now_s = (
            self.event_queue_per_concurrency_id[concurrency_id],
            events[0].fn,
            time.time(),
        )
        queue.current_concurrency += 1
        queue.start_times_per_fn[fn].add(now_s)
        task = run_coro_in_background(self.process_events, events, batch, now_s, fn)
        set_task_name(task, events[0].session_hash, fn._id, events[0]._id, batch)
        self._asyncio_tasks.add(task)
        task.add_done_callback(self._asyncio_tasks.discard)
        self.broadcast_estimations(concurrency_id)

    async def start_progress_updates(self) -> None:
        """The page has no progress bars."""


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
    """Messages that nobody has taken yet, and the state of tabs, by the name of their session."""

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
