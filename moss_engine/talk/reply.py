"""A reply whose parts are thought of while earlier ones are said: a `ReplyStream` over the requests
that say them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import Enum
from typing import TYPE_CHECKING

from moss_engine.api.errors import EngineFaultError, MossError
from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Called,
    Event,
    Failed,
    Finished,
    FinishReason,
    Sampled,
    Started,
    TextDelta,
    Thought,
    Transcribed,
)
from moss_engine.api.metrics import RequestMetrics, Timeline, fold, measure
from moss_engine.api.request import ToolCall
from moss_engine.api.service import ReplyStream
from moss_engine.api.transcript import Transcript
from moss_engine.talk.answer import Part, Reached, Say
from moss_engine.text.beside import beside
from moss_engine.text.spoken.text import spoken_text

if TYPE_CHECKING:
    from moss_engine.api.tokens import Row

log = logging.getLogger(__name__)

POLL_S = 0.05
MAX_AHEAD = 16  # parts that were thought of and are not said yet


class _End(Enum):
    END = "end"


Queue = asyncio.Queue[Part | MossError | _End]


class TalkReply:
    """`parts` are those of the answer; `submit` accepts the request that says one. With `speaks`
    False the answer is only to be read. The next part is not begun while more than `run_ahead_s`
    of sound wait for the listener. `on_over` is called once, when nothing more comes."""

    def __init__(
        self,
        request_id: str,
        parts: AsyncGenerator[Part, None],
        submit: Callable[[Say], Awaitable[ReplyStream]],
        *,
        speaks: bool,
        run_ahead_s: float,
        on_over: Callable[[TalkReply], None],
        transcript: Transcript | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.request_id = request_id
        self._parts = parts
        self._submit = submit
        self._run_ahead_s = run_ahead_s
        self._on_over = on_over
        self._transcript = transcript
        self._clock = clock
        self._accepted_s = clock()
        self._joined = _Joined(request_id, speaks=speaks)
        self._saying: ReplyStream | None = None
        self._taken = 0
        self._cancelled = False
        self._listened = False
        self._timeline = Timeline()

    @property
    def metrics(self) -> RequestMetrics:
        """The figures of the reply so far."""
        return measure(self._timeline)

    @property
    def unheard_s(self) -> float:
        """How long nobody has begun to listen."""
        return 0.0 if self._listened else self._now_s()

    def cancel(self) -> None:
        """Stop thinking and saying, from any thread; the reply ends with `Finished(CANCELLED)`."""
        self._cancelled = True
        if self._saying is not None:
            self._saying.cancel()

    def acknowledge(self, samples: int) -> None:
        """The listener has taken so many samples of this reply in all."""
        self._taken = max(self._taken, samples)
        if self._saying is not None and samples > self._joined.begin_sample:
            self._saying.acknowledge(samples - self._joined.begin_sample)

    async def events(self, *, acknowledge: bool = True) -> AsyncGenerator[Event, None]:
        """Every event to the terminal one; leaving early stops the reply."""
        self._listened = True
        queue: Queue = asyncio.Queue(MAX_AHEAD)
        thinking = asyncio.ensure_future(self._think(queue))
        try:
            accepted = Accepted(self.request_id, 0.0, 0, 0)
            self._timeline = fold(self._timeline, accepted)
            yield accepted
            if self._transcript is not None:
                yield Transcribed(self.request_id, self._now_s(), 0, self._transcript)
            async with aclosing(self._answer(queue)) as events:
                async for event in events:
                    self._timeline = fold(self._timeline, event)
                    if acknowledge and isinstance(event, AudioChunk):
                        self.acknowledge(event.start_sample + len(event.samples))
                    yield event
        finally:
            self.cancel()
            thinking.cancel()
            try:
                await asyncio.wait({thinking})
            finally:
                self._on_over(self)

    async def _think(self, queue: Queue) -> None:
        """Put the parts of the answer in the queue, and behind them the error that ended it or
        the end."""
        end: MossError | _End = _End.END
        try:
            async with aclosing(self._parts) as parts:
                async for part in parts:
                    await queue.put(part)
        except MossError as error:
            end = error
        except Exception:
            log.exception("an answer is given up")
            end = EngineFaultError("The answer could not be thought of; ask again.")
        await queue.put(end)

    async def _answer(self, queue: Queue) -> AsyncGenerator[Event, None]:
        """Everything behind `Accepted`."""
        reason = FinishReason.STOP
        while reason is FinishReason.STOP and (found := await self._next(queue)) is not _End.END:
            if isinstance(found, MossError):
                yield self._failed(found)
                return
            async with aclosing(self._part(found)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        reason = event.reason
                        continue
                    yield event
                    if isinstance(event, Failed):
                        return
        reason = FinishReason.CANCELLED if self._cancelled else reason
        rows, num_rows = self._joined.rows, self._joined.num_rows
        yield Finished(self.request_id, self._now_s(), num_rows, reason, rows)

    async def _next(self, queue: Queue) -> Part | MossError | _End:
        """What comes next, when the sound before it is not too far ahead of its listener."""
        while not self._cancelled:
            rate_hz = self._joined.sample_rate_hz
            if self._joined.samples - self._taken > self._run_ahead_s * rate_hz:
                await asyncio.sleep(POLL_S)
                continue
            getting = asyncio.ensure_future(queue.get())
            try:
                # `wait_for` would lose a cancellation that comes together with a part
                await asyncio.wait({getting}, timeout=POLL_S)
            finally:
                getting.cancel()
            if getting.done():
                return getting.result()
        return _End.END

    async def _part(self, part: Part) -> AsyncGenerator[Event, None]:
        """The events of one part; `Finished` is the part's own."""
        now_s, joined = self._now_s(), self._joined
        if isinstance(part, Reached):
            yield Thought(self.request_id, now_s, joined.num_rows, part.stage)
            return
        if isinstance(part, ToolCall):
            yield Called(self.request_id, now_s, joined.num_rows, part)
            return
        if not joined.speaks:
            for event in joined.written(part.text, now_s):
                yield event
            return
        try:
            saying = await self._submit(part)
        except MossError as error:
            yield self._failed(error)
            return
        joined.begin(now_s)
        writing = asyncio.ensure_future(beside(Writing, part.text))
        self._saying = saying
        self.acknowledge(self._taken)
        if self._cancelled:
            saying.cancel()
        async with aclosing(saying.events(acknowledge=not joined.speaks)) as events:
            async for event in events:
                joined.writing = await writing
                if (taken := joined.take(event)) is not None:
                    yield taken
        self._saying = None

    def _now_s(self) -> float:
        return self._clock() - self._accepted_s

    def _failed(self, error: MossError) -> Failed:
        num_rows = self._joined.num_rows
        return Failed(self.request_id, self._now_s(), num_rows, error.code, str(error))


class _Joined:
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
        self._prompt_rows = 0  # of the part that is said now
        self._started = False
        self._worded = False  # words were said
        self._fresh = False  # the part that is said now has said none yet
        self.writing = Writing("")  # of the part that is said now

    @property
    def audio_s(self) -> float:
        return self.samples / self.sample_rate_hz if self.sample_rate_hz else 0.0

    def begin(self, now_s: float) -> None:
        """The next part begins so many seconds after the reply was accepted."""
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
        if isinstance(event, Accepted):
            self._prompt_rows = event.num_prompt_rows
        if isinstance(event, Accepted) or (isinstance(event, Started) and self._started):
            return None
        if isinstance(event, Started):
            self._started = True
            changes["num_prompt_rows"] = self._prompt_rows
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
            if not (text := self.writing.take(event.text)):
                return None
            changes["text"] = self._apart(text)
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


MOST_APART = 40
"""Words, written and said, of an amount, an address and the like: so far apart they are looked for
at most, as this is done where everybody's events are handed on."""


class Writing:
    """The words of a voice, as they come, in the writing of the `text` that it was given to say:
    "three thirty-eight P M" are shown as "3:38 PM". Other words are shown as it says them."""

    def __init__(self, text: str):
        given, self._said = text.split(), spoken_text(text).split()
        words, heard = _plain(given), _plain(self._said)
        # For each word that is said; empty where the writing before it stands for it, too.
        self._shown: list[str] = []
        at = 0
        while len(self._shown) < len(heard):
            skipped, last = _meeting(words, at, heard, len(self._shown))
            if last:
                self._shown += [" ".join(given[at : at + skipped]), *[""] * (last - 1)]
            at += skipped
            if len(self._shown) < len(heard):
                self._shown.append(given[at])
                at += 1
        self._at, self._word, self._space = -1, "", ""

    def take(self, text: str) -> str:
        """What is shown of the next words, or pieces of words."""
        shown = ""
        for piece in re.findall(r"\s+|\S+", text):
            if piece.isspace():
                self._word, self._space = "", piece
                continue
            begins = not self._word
            self._at += begins
            self._word += piece
            if self._at >= len(self._shown) or not self._said[self._at].startswith(self._word):
                self._shown = []
            else:
                piece = self._shown[self._at] if begins else ""
            if piece:
                shown += self._space + piece
                self._space = ""
        return shown


def _plain(words: list[str]) -> list[str]:
    return [word.strip(".,!?;:()\"'").lower() for word in words]


def _meeting(one: list[str], at: int, other: list[str], at_other: int) -> tuple[int, int]:
    """How many words to go on in both until they say the same, or end: the fewest, as far as
    MOST_APART; from there on, the second is written as the first's rest."""
    left, left_other = len(one) - at, len(other) - at_other
    for apart in range(MOST_APART + 1):
        for skipped in range(max(0, apart - left_other), min(apart, left) + 1):
            ends = skipped == left, apart - skipped == left_other
            if all(ends):
                return skipped, apart - skipped
            if not any(ends) and one[at + skipped] == other[at_other + apart - skipped]:
                return skipped, apart - skipped
    return left, left_other
