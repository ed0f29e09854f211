"""Gradio's queue: how often it looks for calls, and what it keeps of programs that do not listen.
Used on the event loop that serves the page."""

from __future__ import annotations

import sys

import gradio as gr

POLL_S = 0.05  # between Gradio's looks for a call; 1,000 a second, its own, take a tenth of a core
PROGRESS_S = 1.0  # for progress bars, which this page has none of
UNTAKEN_PER_S = 30  # messages: ten a second are made at least, many at the beginning of a reply


def slow_down(page: gr.Blocks) -> None:
    """Let Gradio look for calls and for progress less often, and make no table of the last 10,000
    calls after each, which is for a page that is closed here."""
    page._queue.sleep_when_free = POLL_S
    page._queue.progress_update_sleep_when_free = PROGRESS_S
    page._queue.ANALYTICS_MAX_EVENTS = 1
    page._queue.ANAYLTICS_CACHE_FREQUENCY = sys.maxsize


class Outboxes:
    """Messages that nobody has taken yet, by the name of a program's session."""

    def __init__(self, page: gr.Blocks):
        self._page = page

    def knows(self, session: str) -> bool:
        """Whether something was asked under this name."""
        return session in self._page._queue.pending_messages_per_session

    def are_abandoned(self, session: str, lease_s: float) -> bool:
        """Whether more messages of a reply wait there than are made within `lease_s`, and they are
        forgotten; to be asked after every message."""
        if not self.knows(session):
            return False
        waiting = self._page._queue.pending_messages_per_session[session]
        abandoned = waiting.qsize() > UNTAKEN_PER_S * lease_s
        while abandoned and waiting.qsize():
            waiting.get_nowait()
        return abandoned
