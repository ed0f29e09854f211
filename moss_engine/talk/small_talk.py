"""Small talk without anybody to think: what the checkpoint knows by heart."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from moss_engine.talk.answer import Part, Question, Recite


class SmallTalk:
    """An `Answerer`."""

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """One part: the network's own answer."""
        yield Recite(question.text, question.speed)
