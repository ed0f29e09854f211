"""The engine's events on their way: to their listeners, and codes to the codec thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from moss_engine.api.events import Event, Failed, Finished, FinishReason, Sampled, TextDelta
from moss_engine.api.tokens import SpecialIds, code_of
from moss_engine.service.open_replies import OpenReplies, OpenReply
from moss_engine.service.reply_stream import Waiter, wake
from moss_engine.service.speech_job import SpeechJob
from moss_engine.service.speech_worker import SpeechWorker


class EventRouter:
    """Called by the engine thread."""

    def __init__(self, replies: OpenReplies, worker: SpeechWorker, ids: SpecialIds):
        self._replies = replies
        self._worker = worker
        self._ids = ids

    def route(self, events: Iterable[Event]) -> None:
        """Deliver the events of one step; listeners who wait are woken for all of them at once."""
        waiters: list[Waiter] = []
        try:
            for event in events:
                reply = self._replies.get(event.request_id)
                if reply is None:
                    continue
                if isinstance(event, Sampled):
                    self._route_row(event, reply, waiters)
                else:
                    self._route(event, reply, waiters)
        finally:
            wake(waiters)

    def _route_row(self, event: Sampled, reply: OpenReply, waiters: list[Waiter]) -> None:
        reply.num_rows = event.num_rows
        if reply.stream.held_s:
            event = dataclasses.replace(event, held_s=reply.stream.held_s)
        reply.stream.put(event, waiters)
        if reply.job is not None:
            self._add_codes(event, reply.job)

    def _route(self, event: Event, reply: OpenReply, waiters: list[Waiter]) -> None:
        reply.num_rows, job = event.num_rows, reply.job
        if isinstance(event, Finished) and reply.cancelled:
            # It ended by itself, but its sound was dropped.
            event = dataclasses.replace(event, reason=FinishReason.CANCELLED)
        if isinstance(event, Finished) and not reply.cancelled and job and job.num_codes:
            job.ending = event
            self._worker.notify(job)
        elif isinstance(event, (Finished, Failed)):
            self._replies.finish(event)
        else:
            if isinstance(event, TextDelta) and job is not None:
                start_sample = max(0, event.start_sample - job.lead_samples)
                event = dataclasses.replace(event, start_sample=start_sample)
            reply.stream.put(event, waiters)

    def _add_codes(self, event: Sampled, job: SpeechJob) -> None:
        job.num_rows = event.num_rows
        code = code_of(event.row, self._ids)
        codes = event.silence if code is None else (code, *event.silence)
        for heard in codes:
            job.add_code(heard)
        if codes:
            self._worker.notify(job)
