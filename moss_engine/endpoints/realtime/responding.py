"""The responses of a realtime session: one at a time, and perhaps one that is made ahead of the end
of its turn, of which nothing is told until then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.realtime.answer import Answer, Emit, first_of
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.session import Session
from moss_engine.endpoints.realtime.wire import Wire
from moss_engine.endpoints.server import Server

Ready = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Ahead:
    """An answer that was begun at a pause, to `item` behind the items `before`."""

    answer: Answer
    task: asyncio.Task[None]
    item: Item
    before: tuple[Item, ...]
    session: Session
    begun_s: float


class Responses:
    """`session` holds for the next one. `answer` is being made, `saying` is heard, or was last;
    `asked` are recordings that the client itself asked to be answered."""

    def __init__(
        self,
        server: Server,
        caller: Caller,
        wire: Wire,
        talk: Conversation,
        emit: Emit,
        session: Session,
    ):
        self.session = session
        self.answer: Answer | None = None
        self.saying: Answer | None = None
        self.asked: set[Item] = set()
        self._server = server
        self._caller = caller
        self._wire = wire
        self._talk = talk
        self._emit = emit
        self._answering: asyncio.Task[None] | None = None
        self._turns: set[asyncio.Task[None]] = set()  # found turns that are about to be answered
        self._ahead: Ahead | None = None
        self._thrown: set[asyncio.Task[None]] = set()  # answers ahead that end without a trace
        self._plays_until_s = 0.0
        self._spoken_s = 0.0  # when somebody spoke last

    @property
    def playing(self) -> bool:
        """Whether an answer is made, or still heard."""
        return self.answer is not None or time.monotonic() < self._plays_until_s

    @property
    def idle_s(self) -> float:
        """For how long nobody has said anything behind an answer; 0 where one is to come."""
        if self.saying is None or self.answer is not None or self._turns:
            return 0.0
        return time.monotonic() - max(self._spoken_s, self._plays_until_s)

    def spoken(self) -> None:
        """Somebody speaks, or is spoken to."""
        self._spoken_s = time.monotonic()

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """Everything that is under way."""
        ahead = self._ahead.task if self._ahead else None
        yield from (*self._turns, *self._thrown, *filter(None, (self._answering, ahead)))

    def begin(
        self, session: Session, ready: Ready | None = None, ignored: list[str] | None = None
    ) -> None:
        """Answer what was said, once `ready` is over; `ignored` fields have no effect on it."""
        ahead = self._take_ahead(session)
        if ahead is not None:
            answer, running = ahead.answer, self._release(ahead)
        else:
            answer = Answer(
                self._server, self._caller, session, self._talk, self._emit, ignored=ignored
            )
            running = self._run(answer, ready)
        self.answer = self.saying = answer
        self._answering = asyncio.create_task(running)

    async def over(self) -> None:
        """Wait for the one that is being made."""
        if self._answering is not None:
            await asyncio.wait({self._answering})

    async def stop(self, reason: str) -> None:
        if self.answer is not None:
            self.answer.cancel(reason)
        await self.hush()
        await self.over()

    async def interrupt(self) -> None:
        """As somebody speaks; it ends soon."""
        self._plays_until_s = 0.0
        if self.answer is not None:
            self.answer.cancel("turn_detected")
        await self.hush()

    async def hush(self) -> None:
        """Nothing more of an answer is played, where the wire does that, and no more is history."""
        played, saying = self._wire.hush(), self.saying
        if played is None or saying is None:
            return
        item, info = saying.item, self._server.info
        if item in self._talk.items and played < item.num_samples:
            item.cut(played, info)
            ms = played * 1000 // info.sample_rate_hz
            place = {"item_id": item.id, "content_index": 0}
            await self._emit("conversation.item.truncated", **place, audio_end_ms=ms)

    def turn_over(self, item: Item) -> None:
        """A turn that was found by the service was understood: it is answered when its time comes,
        unless the client asked for that itself."""
        if self.session.vad and self.session.answers and item not in self.asked:
            turn = asyncio.create_task(self._answer_turn(item))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    def forget_turns(self) -> None:
        """Those that were found are answered no more."""
        for turn in self._turns:
            turn.cancel()

    async def begin_ahead(self, item: Item) -> None:
        """A turn was understood as far as it goes: its answer is begun, but not told. Never where
        somebody waits for a place, or has no sound in store."""
        session = self.session
        if not (session.vad and session.answers) or self.answer is not None:
            return
        engine = (await self._server.service.stats()).engine
        if engine.waiting or engine.running >= self._server.info.max_sessions:
            return
        if item in self._talk.items or not self._server.figures.all_in_store():
            return
        talk = Conversation()
        talk.items = [*self._talk.items, item]
        answer = Answer(self._server, self._caller, session, talk, self._emit, ahead=True)
        self.drop_ahead()
        task = asyncio.create_task(answer.run())
        self._ahead = Ahead(answer, task, item, tuple(self._talk.items), session, time.monotonic())

    def drop_ahead(self) -> None:
        """As if it had never been."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.answer.cancel("turn_detected")
            self._thrown.add(ahead.task)
            ahead.task.add_done_callback(self._thrown.discard)
            self._server.figures.ahead.labels("thrown_away").inc()
            self._server.figures.ahead_wasted.inc(time.monotonic() - ahead.begun_s)

    def _take_ahead(self, session: Session) -> Ahead | None:
        """The answer that was begun to what is asked now."""
        ahead = self._ahead
        fits = (
            ahead is not None
            and ahead.session is self.session
            and session == self.session
            and tuple(self._talk.items) == (*ahead.before, ahead.item)
            and not ahead.answer.failed
        )
        if not fits:
            self.drop_ahead()
            return None
        self._ahead = None
        self._server.figures.ahead.labels("released").inc()
        return ahead

    async def _answer_turn(self, item: Item) -> None:
        while self.answer is not None:  # another turn may have waited for it, too
            await self.over()
        if item in self._talk.items:
            self.begin(self.session)

    async def _release(self, ahead: Ahead) -> None:
        answer, begun_s = ahead.answer, time.monotonic()
        try:
            await answer.release(self._talk)
            await ahead.task
        except ApiError as error:
            answer.cancel("client_cancelled")
            self._server.refused(error)
            await self._emit("error", error={**error.value(), "event_id": None})
        finally:
            ahead.task.cancel()
            self._ended(answer, begun_s)

    async def _run(self, answer: Answer, ready: Ready | None) -> None:
        begun_s = time.monotonic()
        try:
            if self._thrown:  # the place that they held is needed
                await asyncio.wait(set(self._thrown))
            if ready is not None:
                await first_of(ready(), answer.unwanted.wait())
            await answer.run()
        finally:
            self._ended(answer, begun_s)

    def _ended(self, answer: Answer, begun_s: float) -> None:
        plays_from_s = answer.first_sound_s or begun_s
        self._plays_until_s = 0.0 if answer.cancelled else plays_from_s + answer.sent_s
        self.spoken()
        self.answer = None
