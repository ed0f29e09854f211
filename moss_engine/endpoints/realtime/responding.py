"""The responses of a realtime session, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.endpoints.access import Caller
from moss_engine.endpoints.ahead import Ahead
from moss_engine.endpoints.errors import ApiError
from moss_engine.endpoints.realtime.answer import Answer, first_of
from moss_engine.endpoints.realtime.conversation import Conversation, Item
from moss_engine.endpoints.realtime.session import Session
from moss_engine.endpoints.realtime.wire import Wire
from moss_engine.endpoints.server import Server

Emit = Callable[..., Awaitable[None]]
Ready = Callable[[], Coroutine[Any, Any, None]]


class Responses:
    """`session` holds for the next one. `answer` is being made, `saying` is heard, or was last;
    `asked` are recordings that the client itself asked to be answered; `ahead` holds an answer that
    was begun before its turn was over."""

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
        self.ahead = Ahead(server.service, server.figures)
        self.server = server
        self.caller = caller
        self._wire = wire
        self._talk = talk
        self.emit = emit
        self._answering: asyncio.Task[None] | None = None
        self._turns: set[asyncio.Task[None]] = set()  # found turns that are about to be answered
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
        yield from (*self._turns, *filter(None, (self._answering,)))

    def begin(
        self, session: Session, ready: Ready | None = None, ignored: list[str] | None = None
    ) -> None:
        """Answer what was said, once `ready` is over; `ignored` fields have no effect on it."""
        self.answer = self.saying = answer = Answer(self, session, self._talk, ignored)
        self._answering = asyncio.create_task(self._run(answer, ready))

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
        item, info = saying.item, self.server.info
        if item in self._talk.items and played < item.num_samples:
            item.cut(played, info)
            ms = played * 1000 // info.sample_rate_hz
            place = {"item_id": item.id, "content_index": 0}
            await self.emit("conversation.item.truncated", **place, audio_end_ms=ms)

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

    def begin_ahead(self, item: Item) -> None:
        """A turn was understood as far as it goes: its answer is begun, but not told."""
        session = self.session
        if not (session.vad and session.answers) or self.answer is not None:
            return
        talk = Conversation()
        talk.items = [*self._talk.items, item]
        with contextlib.suppress(ApiError, MossError):  # which is told once it is asked for
            self.ahead.begin(Answer(self, session, talk).request())

    async def _answer_turn(self, item: Item) -> None:
        while self.answer is not None:  # another turn may have waited for it, too
            await self.over()
        if item in self._talk.items:
            self.begin(self.session)

    async def _run(self, answer: Answer, ready: Ready | None) -> None:
        begun_s = time.monotonic()
        try:
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
