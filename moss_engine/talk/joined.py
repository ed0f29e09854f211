"""The events of several requests as those of one reply: one clock, one count of rows, one line of
samples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Finished,
    Sampled,
    Started,
    TextDelta,
)

if TYPE_CHECKING:
    from moss_engine.api.tokens import Row


class Joined:
    """`speaks`: the reply is heard; otherwise only the words of its parts count. `samples` and
    `rows` are those of all parts so far, `num_rows` counts what was sampled."""

    def __init__(self, request_id: str, *, speaks: bool):
        self.request_id = request_id
        self.speaks = speaks
        self.samples = 0
        self.sample_rate_hz = 0
        self.rows: tuple[Row, ...] = ()
        self.num_rows = 0
        self.begin_sample = 0  # of the part that is said now
        self._begin_s = 0.0
        self._begin_row = 0
        self._begin_held_s = self._held_s = 0.0
        self._part = -1
        self._started = False
        self._worded = False  # words were said
        self._fresh = False  # the part that is said now has said none yet

    @property
    def audio_s(self) -> float:
        return self.samples / self.sample_rate_hz if self.sample_rate_hz else 0.0

    def begin(self, now_s: float) -> None:
        """The next part begins, so many seconds after the reply was accepted."""
        self._begin_s, self._begin_row = now_s, self.num_rows
        self.begin_sample, self._begin_held_s = self.samples, self._held_s
        self._fresh = True
        self._part += 1

    def take(self, event: Event) -> Event | None:
        """An event of the part that is said now, as one of the reply; None where that says nothing
        new. `Finished` and `Failed` are the part's own."""
        self.num_rows = self._begin_row + event.num_rows
        changes = {
            "request_id": self.request_id,
            "time_s": self._begin_s + event.time_s,
            "num_rows": self.num_rows,
        }
        if isinstance(event, Accepted) or (isinstance(event, Started) and self._started):
            return None
        self._started = self._started or isinstance(event, Started)
        if isinstance(event, Finished):
            self.rows += event.rows if self.speaks else ()
            return dataclasses.replace(event, **changes)
        if isinstance(event, Sampled | AudioChunk):
            if not self.speaks:
                return None
            self._held_s = self._begin_held_s + event.held_s
            changes["held_s"] = self._held_s
        if isinstance(event, Sampled):
            changes["part"] = self._part
        if isinstance(event, AudioChunk):
            changes["start_sample"] = self.begin_sample + event.start_sample
            self.samples = changes["start_sample"] + len(event.samples)
            self.sample_rate_hz = event.sample_rate_hz
        if isinstance(event, TextDelta):
            changes["start_sample"] = self.begin_sample + event.start_sample if self.speaks else 0
            changes["text"] = self._apart(event.text)
        return dataclasses.replace(event, **changes)

    def written(self, text: str, now_s: float) -> list[Event]:
        """A part that is only to be read."""
        start = [] if self._started else [Started(self.request_id, now_s, self.num_rows, 0)]
        self._started, self._fresh = True, True
        return [*start, TextDelta(self.request_id, now_s, self.num_rows, self._apart(text), 0)]

    def _apart(self, text: str) -> str:
        """The first words of a part, behind those of the part before it."""
        space = self._worded and self._fresh and not text.startswith(" ")
        self._worded, self._fresh = True, False
        return f" {text}" if space else text
