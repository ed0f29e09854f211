"""What the listener of a reply received so far, over all the replicas that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Finished,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.request import Progress
from moss_engine.api.tokens import Row, SpecialIds, code_of


class Course:
    """Folds the events of one replica after another into those of one reply. Times are counted
    from the first acceptance."""

    def __init__(self, request_id: str, ids: SpecialIds) -> None:
        self._request_id = request_id
        self._ids = ids
        self._codes: list[int] = []
        self._rows: list[Row] = []
        self._num_samples = self._num_chars = 0
        self._began_s = self._latest_s = 0.0
        self._held_s = self._held_before_s = 0.0
        self._resumes = False

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows)

    def begin(self, elapsed_s: float, *, resumes: bool) -> None:
        """The events that follow count their time from now on; with `resumes` a reply that began
        elsewhere goes on."""
        self._began_s, self._held_before_s, self._resumes = elapsed_s, self._held_s, resumes

    def not_before(self, elapsed_s: float) -> float:
        """A time for what is told next: the way from replicas varies, and no time goes back."""
        return max(elapsed_s, self._latest_s)

    def progress(self, num_taken: int) -> Progress:
        codes = tuple(self._codes)
        return Progress(self.rows, codes, self._num_samples, self._num_chars, num_taken)

    def take(self, event: Event) -> Event | None:
        """The event as the listener is told it; None for what it knows."""
        if isinstance(event, Accepted):
            return None if self._resumes else replace(event, request_id=self._request_id)
        if isinstance(event, Started) and self._resumes:
            return None
        time_s = self._began_s + event.time_s
        self._latest_s = self.not_before(time_s)
        known: dict[str, Any] = {"request_id": self._request_id, "time_s": time_s}
        if isinstance(event, Sampled | AudioChunk):
            self._held_s = self._held_before_s + event.held_s
            known["held_s"] = self._held_s
        if isinstance(event, Sampled):
            self._rows.append(event.row)
            code = code_of(event.row, self._ids)
            self._codes += event.silence if code is None else (code, *event.silence)
            assert event.num_rows == self.num_rows, "a row is lost or came twice"
        elif isinstance(event, AudioChunk):
            assert event.start_sample == self._num_samples, "sound is lost or came twice"
            self._num_samples += len(event.samples)
        elif isinstance(event, TextDelta):
            self._num_chars += len(event.text)
        elif isinstance(event, Finished):
            known["rows"] = self.rows
        return replace(event, num_rows=self.num_rows, **known)
