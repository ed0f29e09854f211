"""A service to talk to over a scripted one, and answers that are written down beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace

from moss_engine.api.events import Event, TextDelta
from moss_engine.api.request import Message, Request, Speech, Text
from moss_engine.api.transcript import Transcript
from moss_engine.talk.answer import Part, Question, Say
from moss_engine.talk.modes import talking_modes
from moss_engine.talk.service import TalkingService
from moss_engine.talk.small_talk import SmallTalk
from tests.ui.page_support import DEFAULTS, INFO, MODES, FakeService, Script

HEARD = Transcript("What time is it?", "Scripted ear", 1.5)
READER = replace(
    INFO, modes=(MODES[0], replace(MODES[1], history=False)), recogniser=HEARD.recogniser
)


@dataclass
class Written:
    """An answerer that gives these parts, waiting after each for `wait`; errors are raised."""

    parts: list[Part | Exception] = field(default_factory=list)
    asked: list[Question] = field(default_factory=list)
    wait: asyncio.Event | None = None
    closed: int = 0

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        self.asked.append(question)
        try:
            for part in self.parts:
                if isinstance(part, Exception):
                    raise part
                yield part
                if self.wait is not None:
                    await self.wait.wait()
        finally:
            self.closed += 1


def talking(answerer: Written, **script: float) -> tuple[TalkingService, FakeService]:
    """The talking service, and the one below, which says every part as a second of sound."""
    below = FakeService(Script(**{"seconds": 1.0, "first_s": 0.01, "rtf": 0.01, **script}), READER)
    info = replace(READER, modes=talking_modes(READER))
    return TalkingService(below, info, answerer), below  # type: ignore[arg-type]


def asking(mode: str = "chat", text: str = "What time is it?", **changes) -> Request:
    content = Speech((), HEARD) if mode.startswith("talk") else Text(text)
    values = {"request_id": "asked", "session_id": "visitor", **changes}
    return Request(
        messages=(Message("user", content),), mode=mode, sampling=DEFAULTS, voice=None, **values
    )


def words(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta)).strip()


def reply(talk: SmallTalk, question: Question) -> Say:
    """What it answers without an LLM."""
    (said,) = asyncio.run(all_of(talk.answer(question)))
    return said


async def all_of(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]
