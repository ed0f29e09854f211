"""Replies that were made before, spoken again: their rows come from the request, not from the
engine, and their sound comes from the codec as ever."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from moss_engine.api.errors import BusyError, ContextError, ParameterError
from moss_engine.api.events import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.api.request import Recorded, Request
from moss_engine.api.tokens import Modality, Row, SpecialIds, code_of, is_audio_row
from moss_engine.service.open_replies import OpenReply

MAX_ROWS = 40_960  # of one recorded reply: what `max_rows` may ask for
MAX_OPEN = 16  # recorded replies that are spoken at a time
ROWS_A_STEP = 64  # of each reply between two steps of the engine


@dataclass
class _Place:
    """How far a reply has been told."""

    rows: int = 0
    texts: int = 0
    codes: int = 0


class Replays:
    """Called by the engine thread, but for `accept`. `lead_samples` are left out of every sound."""

    def __init__(self, ids: SpecialIds, samples_per_code: int, lead_samples: int):
        self._ids = ids
        self._samples_per_code = samples_per_code
        self._lead_samples = lead_samples
        self._places: dict[str, _Place] = {}

    def accept(self, request: Request, num_open: int) -> Accepted:
        """The first event of a recorded reply, `num_open` of which are open with it; raises an
        InputError for rows that this codec cannot speak, and BusyError."""
        if num_open > MAX_OPEN:
            raise BusyError("Many recorded replies are spoken now; try again in a moment.")
        if len(request.recorded) != 1:
            raise ParameterError("A recorded reply in parts cannot be spoken here; send one part.")
        rows = request.recorded[0].rows
        if len(rows) > MAX_ROWS:
            raise ContextError(
                f"The recorded reply has {len(rows)} rows, the limit is {MAX_ROWS}; send less."
            )
        if not any(code_of(row, self._ids) is not None for row in rows):
            raise ParameterError("The recorded reply holds no sound; choose another one.")
        return Accepted(request.request_id, 0.0, 0, 0)

    def step(self, replies: Collection[OpenReply], paused: Collection[str]) -> list[Event]:
        """More of every recorded reply whose listener is not too far behind, to its end."""
        events: list[Event] = []
        open_ = [reply for reply in replies if reply.request.recorded]
        for reply in open_:
            if reply.cancelled:
                events.append(self._end(reply, FinishReason.CANCELLED))
            elif reply.request_id not in paused and not self._is_told(reply):
                events += self._tell(reply, reply.request.recorded[0])
        known = {reply.request_id for reply in open_}
        for request_id in [name for name in self._places if name not in known]:
            del self._places[request_id]
        return events

    def _is_told(self, reply: OpenReply) -> bool:
        place = self._places.get(reply.request_id)
        return place is not None and place.rows == len(reply.request.recorded[0].rows)

    def _tell(self, reply: OpenReply, recorded: Recorded) -> Iterator[Event]:
        key, place = reply.request_id, self._places.get(reply.request_id)
        now_s, pauses = reply.stream.elapsed_s(), dict(recorded.pauses)
        if place is None:
            place = self._places[key] = _begin(reply.request)
            yield Started(key, now_s, place.rows, 0)
        for row in recorded.rows[place.rows : place.rows + ROWS_A_STEP]:
            made = place.codes * self._samples_per_code - self._lead_samples
            yield from self._texts(key, now_s, place, recorded, max(0, made))
            silence = pauses.get(place.rows, ())
            place.rows += 1
            place.codes += (code_of(row, self._ids) is not None) + len(silence)
            yield Sampled(key, now_s, place.rows, row, self._modality(row), silence=silence)
        if place.rows == len(recorded.rows):
            yield from self._texts(key, now_s, place, recorded, math.inf)
            yield self._end(reply, FinishReason.STOP)

    def _texts(
        self, key: str, now_s: float, place: _Place, recorded: Recorded, until: float
    ) -> Iterator[TextDelta]:
        """The words that are spoken from some sample on, up to the one called `until`."""
        while place.texts < len(recorded.text) and recorded.text[place.texts][0] <= until:
            start, text = recorded.text[place.texts]
            place.texts += 1
            yield TextDelta(key, now_s, place.rows, text, start + self._lead_samples)

    def _modality(self, row: Row) -> Modality:
        return Modality.AUDIO if is_audio_row(row, self._ids) else Modality.TEXT

    def _end(self, reply: OpenReply, reason: FinishReason) -> Finished:
        rows = reply.request.recorded[0].rows
        return Finished(reply.request_id, reply.stream.elapsed_s(), len(rows), reason, rows)


def _begin(request: Request) -> _Place:
    """The beginning, or where the listener is already."""
    progress, texts, chars = request.progress, 0, 0
    if progress is None:
        return _Place()
    for _, words in request.recorded[0].text:
        chars += len(words)
        texts += chars <= progress.num_chars
    return _Place(len(progress.rows), texts, len(progress.codes))
