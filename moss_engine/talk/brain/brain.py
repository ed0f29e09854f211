"""The brain as an answerer: what it streams is said sentence by sentence."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from moss_engine.api.errors import BrainError
from moss_engine.talk.answer import Part, Question, Reached, Say
from moss_engine.talk.brain.sentences import Sentences
from moss_engine.talk.brain.server import ChatServer

SYSTEM = (
    "You talk with a person through a voice. Answer in one to three short sentences of plain "
    "spoken English: no lists, no markup, no emoji. Write numbers and names as one says them. If "
    "you did not understand, ask."
)
MAX_HISTORY_CHARS = 8000


class Brain:
    """An `Answerer`. `name` is shown to visitors: model and host."""

    def __init__(self, server: ChatServer):
        self._server = server
        self.name = f"{server.model} at {server.host}"

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """As `Answerer.answer`; raises BrainError."""
        sentences, is_first, said = Sentences(), True, False
        async with aclosing(self._server.stream(messages_of(question))) as pieces:
            async for piece in pieces:
                if is_first:
                    is_first = False
                    yield Reached("first_token")
                for sentence in sentences.add(piece):
                    if not said:
                        said = True
                        yield Reached("first_sentence")
                    yield Say(sentence, question.speed)
        for sentence in sentences.end():
            if not said:
                said = True
                yield Reached("first_sentence")
            yield Say(sentence, question.speed)
        if not said:
            raise BrainError(f"{self.name} had nothing to say; ask in other words.")


def messages_of(question: Question) -> list[dict[str, str]]:
    """The conversation as the server takes it; the oldest turns are left out where it is long."""
    history, room = [], MAX_HISTORY_CHARS
    for role, text in reversed(question.history):
        room -= len(text)
        if room < 0:
            break
        history.append({"role": role, "content": text})
    while history and history[-1]["role"] == "assistant":
        history.pop()
    return [
        {"role": "system", "content": question.system or SYSTEM},
        *reversed(history),
        {"role": "user", "content": question.text},
    ]
