"""What is being generated: a `Sequence` of rows, and the state of the request that it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

from moss_engine.api.errors import InputError
from moss_engine.api.events import FinishReason
from moss_engine.api.request import Progress, Request, Sampling
from moss_engine.api.tokens import (
    Modality,
    Row,
    Segment,
    SpecialIds,
    code_of,
    effective_id,
    initial_modality,
    is_stop,
    next_modality,
)
from moss_engine.runtime.base import SequenceSampling


class TextDecoder(Protocol):
    """Incremental detokenizer of one reply."""

    def push(self, text_id: int) -> str:
        """The text that this id completes; often none."""
        ...

    def end_segment(self, goes_on: bool) -> str:
        """A segment is over; what is still incomplete. The next one begins with a small
        letter if this one `goes_on`."""
        ...


class Preparer(Protocol):
    """What the engine asks of a processor."""

    @property
    def ids(self) -> SpecialIds: ...
    def prepare(self, request: Request) -> tuple[Segment, ...]:
        """The prompts of a request, one for each segment of its reply; raises InputError."""
        ...

    def speaks(self, request: Request) -> bool:
        """Whether the reply is to be heard."""
        ...

    def open_text_decoder(self) -> TextDecoder: ...


class Sequence:
    """The rows of one segment, prompt first; `num_computed` leading ones have their keys and values
    in the pool."""

    def __init__(self, segment: Segment, sampling: Sampling, ids: SpecialIds):
        assert segment.prompt and segment.max_rows > 0
        self.rows = list(segment.prompt)
        self.effective_ids = [effective_id(row, ids) for row in segment.prompt]
        self.num_prompt_rows = len(segment.prompt)
        self.max_rows = segment.max_rows
        self.bound_words = segment.bound_words
        self.sampling = sampling
        self.num_computed = 0
        self.modality = next_modality(initial_modality(self.rows[-1], ids), self.rows[-1], ids)
        self.finish_reason: FinishReason | None = None
        self._ids = ids

    @property
    def num_pending(self) -> int:
        """Rows that must run before the next one can be sampled: many in prefill, one in decode and
        those of a bound text behind it."""
        return len(self.rows) - self.num_computed

    @property
    def num_reply_rows(self) -> int:
        return len(self.rows) - self.num_prompt_rows

    def row_sampling(self, sequence_id: str) -> SequenceSampling:
        """How its next row is drawn."""
        return SequenceSampling(
            sequence_id,
            self.rows,
            self.num_reply_rows,
            self.sampling,
            self.modality,
            self._allowed_text(),
        )

    def bound_row(self) -> Row | None:
        """The next row, where the bound text leaves one choice, so that it needs neither logits nor
        a draw."""
        allowed_text = self._allowed_text()
        if allowed_text is None or len(allowed_text) != 1:
            return None
        return Row(allowed_text[0], self._ids.audio_pad)

    def _allowed_text(self) -> tuple[int, ...] | None:
        if self.bound_words is None or self.modality is not Modality.TEXT:
            return None
        reply = self.rows[self.num_prompt_rows :]
        return allowed_text_ids(reply, self.bound_words, self._ids)

    def append(self, row: Row) -> None:
        """Append a sampled row (settled, as the sampler gives it) or the bound one, move the token
        machine and apply the stop rules."""
        bound = self.bound_row() if self.num_pending else row
        assert bound is not None and bound.text == row.text, "a row was sampled out of turn"
        self.restore(row)

    def restore(self, row: Row) -> None:
        """Append a row that another replica sampled."""
        assert self.finish_reason is None, "a row behind the last one"
        self.rows.append(row)
        self.effective_ids.append(effective_id(row, self._ids))
        self.modality = next_modality(self.modality, row, self._ids)
        if is_stop(row, self._ids):
            self.finish_reason = FinishReason.STOP
        elif self.num_reply_rows == self.max_rows:
            self.finish_reason = FinishReason.LENGTH


def allowed_text_ids(
    reply_rows: list[Row], words: tuple[tuple[int, ...], ...], ids: SpecialIds
) -> tuple[int, ...]:
    """The text ids that may follow the rows of a reply in text mode, at most two.

    Inside a word its next id; after a word the first id of the next one, or `sosp` once a word was
    written since the last span of speech. Behind the last word `sosp` while it is unspoken, then
    `im_end`. The words hold plain text ids, and the rows no other text.
    """
    written, unspoken = _count_text(reply_rows, ids)
    start = 0
    for word in words:
        end = start + len(word)
        if written < end:
            following = word[written - start]
            may_speak = written == start and unspoken > 0
            return (following, ids.sosp) if may_speak else (following,)
        start = end
    return (ids.sosp,) if unspoken else (ids.im_end,)


def _count_text(reply_rows: list[Row], ids: SpecialIds) -> tuple[int, int]:
    """Text ids that were written: in all, and since the last span of speech."""
    written = unspoken = 0
    for row in reply_rows:
        if row.text == ids.sosp:
            unspoken = 0
        elif row.text != ids.modality_pad:
            written += 1
            unspoken += 1
    return written, unspoken


class RequestState:
    """One request on its way: its segments run one after another and make one reply.

    `cancelled` may be set at any time; the engine reads it between steps. `last_share` is the
    number of the last step in which it ran, counted while there are more turns than fit into one
    step: the lowest has waited longest. `is_complete`: it was restored as a finished reply.
    `to_replay` are its next rows, which replace whatever is sampled.
    """

    def __init__(
        self,
        request: Request,
        segments: tuple[Segment, ...],
        ids: SpecialIds,
        text_decoder: TextDecoder,
        accepted_s: float,
    ):
        assert segments
        self.request = request
        self.segments = segments
        self.text_decoder = text_decoder
        self.accepted_s = accepted_s
        self.started = False
        self.cancelled = False
        self.owner = request.request_id  # its name in the block manager
        self.last_share = 0
        self.reply_rows: list[Row] = []
        self.num_codes = 0
        self.reached_cap = self.is_complete = False
        self.to_replay: deque[Row] = deque()
        self._ids = ids
        self._index = 0
        self.sequence = self._make_sequence()

    @property
    def visitor(self) -> str:
        return visitor_of(self.request)

    @property
    def max_total_rows(self) -> int:
        """Rows of its longest possible sequence."""
        return max(segment.max_total_rows for segment in self.segments)

    def append(self, row: Row) -> str:
        """Append a sampled or bound row, or in its place the next one to be replayed; returns the
        text that it completes."""
        if self.to_replay:
            return self._restore(self.to_replay.popleft())
        modality = self.sequence.modality
        self.sequence.append(row)
        return self._note(row, modality)

    def row_without_draw(self, most_pending: int) -> Row | None:
        """The next row, where it is to be replayed or bound; None for the reply's first row, and
        while `most_pending` rows or more wait to be run."""
        sequence = self.sequence
        ends = sequence.finish_reason is not None or not sequence.num_reply_rows
        if ends or sequence.num_pending >= most_pending:
            return None
        return self.to_replay[0] if self.to_replay else sequence.bound_row()

    def restore(self, rows: Iterable[Row]) -> str:
        """Bring it to where the same reply was at another replica; returns its text.

        Raises InputError for rows behind the end of this request's reply.
        """
        text = ""
        for row in rows:
            if self.is_complete:
                raise InputError("The reply to be continued is not one to this request; ask anew.")
            text += self._restore(row)
            if self.sequence.finish_reason is not None:
                self.is_complete = not self.next_segment()
        return text

    def _restore(self, row: Row) -> str:
        modality = self.sequence.modality
        self.sequence.restore(row)
        return self._note(row, modality)

    def _note(self, row: Row, modality: Modality) -> str:
        self.reply_rows.append(row)
        self.num_codes += code_of(row, self._ids) is not None
        self.reached_cap |= self.sequence.finish_reason is FinishReason.LENGTH
        text = self.text_decoder.push(row.text) if modality is Modality.TEXT else ""
        if self.sequence.finish_reason is None:
            return text
        return text + self.text_decoder.end_segment(self.segments[self._index].goes_on)

    def next_segment(self) -> bool:
        """Go on to the next segment; False when the finished one was the last."""
        assert self.sequence.finish_reason is not None
        if self._index + 1 == len(self.segments):
            return False
        self._index += 1
        if self._rows_left() < 1:
            self.reached_cap = True
            return False
        self.sequence = self._make_sequence()
        self.num_codes += len(self.silence)
        return True

    @property
    def silence(self) -> tuple[int, ...]:
        """Codes that are heard before the segment that runs, after the one before it."""
        return self.segments[self._index].silence if self._index else ()

    def _rows_left(self) -> int:
        """The most rows that the next segment may have."""
        segment = self.segments[self._index]
        if segment.reply_rows is None:
            return segment.max_rows
        return min(segment.max_rows, segment.reply_rows - len(self.reply_rows))

    def _make_sequence(self) -> Sequence:
        # Every segment draws its own numbers, or all sentences of a reply would be sampled alike.
        sampling = replace(self.request.sampling, seed=self.request.sampling.seed + self._index)
        segment = replace(self.segments[self._index], max_rows=self._rows_left())
        return Sequence(segment, sampling, self._ids)

    @property
    def finish_reason(self) -> FinishReason:
        """Of the whole reply: LENGTH as soon as one segment had to be cut."""
        return FinishReason.LENGTH if self.reached_cap else FinishReason.STOP


def visitor_of(request: Request) -> str:
    """Requests with the same value share their places and queue."""
    return request.visitor or request.session_id


class Missed(NamedTuple):
    """Text of the restored rows that the listener has not received, and how many codes come before
    it."""

    text: str = ""
    num_codes: int = 0


def open_turn(
    make: Callable[[], RequestState], progress: Progress | None, *, replays: bool
) -> tuple[RequestState, Missed]:
    """A new turn, continued from `progress`.

    With `replays` its rows are computed a few at a time, as they first were, so that they round
    alike; else all at once, like a prompt, which is faster. Raises InputError for rows of another
    reply.
    """
    turn = make()
    if progress is None:
        return turn, Missed()
    missed = Missed(turn.restore(progress.rows)[progress.num_chars :], turn.num_codes)
    if replays and not turn.is_complete:
        turn = make()
        turn.to_replay.extend(progress.rows)
    return turn, missed
