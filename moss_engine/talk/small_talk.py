"""Small talk without anybody to think: tools first, then what is known by heart, then what the
checkpoint's network was taught, then an admission."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime

from moss_engine.talk import by_heart
from moss_engine.talk.admissions import admit
from moss_engine.talk.answer import Answerer, Part, Question, Recite, Say
from moss_engine.talk.learned import question as learned
from moss_engine.talk.tools import (
    arithmetic,
    clock,
    counting,
    figures,
    plurals,
    repetition,
    speed,
    spelling,
)

MAX_SESSIONS = 256


@dataclass
class _Session:
    """What is remembered of a visitor: the rate that was asked for, what the page's own was then,
    how many answers were known by heart, and how many were not known."""

    speed: float | None = None
    page_speed: float = 1.0
    turns: int = 0
    admitted: int = 0


class SmallTalk:
    """An `Answerer`; `speeds` are the slowest and the fastest rate, None where there is one alone.
    With a `thinker` that one answers everything but the wish for another rate."""

    def __init__(
        self,
        speeds: tuple[float, float] | None = None,
        now: Callable[[], datetime] = datetime.now,
        thinker: Answerer | None = None,
    ):
        self._speeds = speeds
        self._now = now
        self._thinker = thinker
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """One part, or those of the thinker."""
        session = self._session(question.session_id)
        rate = self._rate(session, question)
        changed = self._changed(session, question, rate)
        if changed is not None or self._thinker is None:
            yield changed or self._known(session, question, rate)
            return
        async with aclosing(self._thinker.answer(replace(question, speed=rate))) as parts:
            async for part in parts:
                yield part

    def reply(self, question: Question) -> Say | Recite:
        """The answer to a question, without a thinker."""
        session = self._session(question.session_id)
        rate = self._rate(session, question)
        return self._changed(session, question, rate) or self._known(session, question, rate)

    def _rate(self, session: _Session, question: Question) -> float:
        """The visitor's rate: what was asked for last, in words or by the page's control."""
        if session.speed is not None and session.page_speed == question.speed:
            return session.speed
        return question.speed

    def _changed(self, session: _Session, question: Question, rate: float) -> Say | None:
        """The answer to who wants another rate."""
        found = speed.changed(question.text, rate, *self._speeds) if self._speeds else None
        if found is None:
            return None
        session.speed, session.page_speed = found[0], question.speed
        return Say(found[1], found[0])

    def _known(self, session: _Session, question: Question, rate: float) -> Say | Recite:
        asked = question.text
        if (text := self._by_tools(question)) is not None:
            return Say(text, rate)
        if (text := by_heart.find(asked, session.turns)) is not None:
            session.turns += 1
            return Say(text, rate)
        if taught := learned(asked):
            return Recite(taught, rate)
        session.admitted += 1
        return Say(admit(asked, session.admitted - 1), rate)

    def _by_tools(self, question: Question) -> str | None:
        text = question.text
        return (
            clock.answer(text, self._now())
            or repetition.answer(text, question.history)
            or spelling.answer(text)
            or counting.answer(text)
            or figures.answer(text, question.last)
            or plurals.answer(text)
            or arithmetic.answer(text)
        )

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.pop(session_id, None) or _Session()
        self._sessions[session_id] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session
