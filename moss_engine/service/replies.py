"""Replies between their being accepted and their last event, and one line of each for the
operator."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moss_engine.api.errors import CLOSED, IN_USE, MossError, ParameterError, ShuttingDownError
from moss_engine.api.events import Failed, Finished, FinishReason
from moss_engine.api.request import Request
from moss_engine.api.tokens import Row
from moss_engine.service.reply_stream import MAX_UNTAKEN_EVENTS, LocalReplyStream
from moss_engine.service.speech_worker import SpeechJob

log = logging.getLogger("moss_engine.service.reply_log")

STOP_S = 1.0
"""Time that a stopped reply gets to end."""


@dataclass(eq=False)
class OpenReply:
    """A reply until its last event. `job` is None where it is text alone; any thread may set
    `cancelled`, and `cause` says why."""

    request: Request
    stream: LocalReplyStream
    job: SpeechJob | None
    cancelled: bool = False
    cause: str | None = None

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id

    def ahead_s(self, samples_per_code: int, sample_rate_hz: int) -> float:
        """Seconds of audio, made or still codes, that the listener has not acknowledged."""
        job = self.job
        made = max(0, job.num_codes * samples_per_code - job.lead_samples) if job else 0
        return (made - self.stream.taken_samples) / sample_rate_hz

    def hold(self, ahead_s: float, run_ahead_s: float, now_s: float) -> bool:
        """Whether the reply is paused, its listener being too far behind; tells its stream."""
        held = ahead_s > run_ahead_s or self.stream.num_untaken > MAX_UNTAKEN_EVENTS
        self.stream.hold(held, now_s)
        return held

    def cancel(self, cause: str) -> None:
        self.cause = self.cause or cause
        self.cancelled = True
        if self.job is not None:
            self.job.cancelled = True

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows so far, where the part that makes the reply knows them."""
        return ()

    def stopped(self) -> Finished:
        """The terminal event of a reply that gets no other."""
        reason, elapsed_s = FinishReason.CANCELLED, self.stream.elapsed_s()
        return Finished(self.request_id, elapsed_s, self.stream.num_rows, reason, self.rows)

    def failed(self, error: MossError) -> Failed:
        """The terminal event of a reply that an error ended."""
        elapsed_s, num_rows = self.stream.elapsed_s(), self.stream.num_rows
        return Failed(self.request_id, elapsed_s, num_rows, error.code, str(error))

    def line(self, event: Finished | Failed) -> dict[str, Any]:
        """What the reply log says of its end."""
        finished = isinstance(event, Finished)
        # a reply that is over by itself may be cancelled by its leaving listener
        stopped = finished and event.reason is FinishReason.CANCELLED
        cause = self.cause if stopped else None if finished else event.code
        known = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "event": "reply",
            "mode": self.request.mode,
            "end": event.reason.value if finished else "failed",
            "cause": cause,
            "seconds": round(event.time_s, 3),
            "rows": self.stream.num_rows,
            "first_sound_s": self.job and self.job.first_sound_s,
            "sound_s": self.job and round(self.job.made_s, 3),
        }
        return {name: value for name, value in known.items() if value is not None}


Reply = TypeVar("Reply", bound=OpenReply)


class OpenReplies(Generic[Reply]):
    """All open replies. Used from any thread.

    `accepting` says whether more may be added.
    """

    def __init__(self) -> None:
        self.accepting = False
        self._replies: dict[str, Reply] = {}
        self._changed = threading.Condition()  # guards all of the above

    def add(self, reply: Reply) -> None:
        """Raises ShuttingDownError, or ParameterError for an id that is in use."""
        with self._changed:
            if not self.accepting:
                raise ShuttingDownError(CLOSED)
            if reply.request_id in self._replies:
                raise ParameterError(IN_USE)
            self._replies[reply.request_id] = reply

    def get(self, request_id: str) -> Reply | None:
        return self._replies.get(request_id)

    def all(self) -> list[Reply]:
        with self._changed:
            return list(self._replies.values())

    def refuse(self, reply: Reply) -> None:
        """Forget a reply that was not accepted, and its sound if that was begun."""
        reply.cancel("refused")
        self._remove(reply.request_id)

    def finish(self, event: Finished | Failed) -> None:
        """Deliver a terminal event, unless the stream already had one."""
        with self._changed:
            reply = self._replies.get(event.request_id)
            if reply is None:
                return
            time_s = max(event.time_s, reply.stream.elapsed_s())
            event = dataclasses.replace(event, time_s=time_s)
            if reply.stream.put(event):
                log.info(json.dumps(reply.line(event)))
                self._remove(event.request_id)

    def drain(self, timeout_s: float, cancel: Callable[[str], None]) -> None:
        """Accept no more, give open replies `timeout_s` to finish, then stop the rest; those that
        do not end even then, as a thread or a replica hangs, are ended here. Blocks."""
        with self._changed:
            self.accepting = False
            self._changed.wait_for(lambda: not self._replies, timeout_s)
        for reply in self.all():
            cancel(reply.request_id)
        with self._changed:
            self._changed.wait_for(lambda: not self._replies, STOP_S)
        for reply in self.all():
            self.finish(reply.stopped())

    def _remove(self, request_id: str) -> None:
        with self._changed:
            self._replies.pop(request_id, None)
            self._changed.notify_all()
