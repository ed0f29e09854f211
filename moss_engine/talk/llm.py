"""Answers of a chat server, sentence by sentence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from moss_engine.api.errors import BrainError
from moss_engine.api.request import Message, Text, ToolCall
from moss_engine.talk.answer import Part, Question, Reached, Say
from moss_engine.talk.chat_server import ChatServer
from moss_engine.text.spoken.text import split_sentences, spoken_text

MAX_SENTENCE_CHARS = 220
"""A sentence without an end is spoken in pieces of this length, so that nobody waits for it."""
_BREAK = re.compile(r"\n+")
_THINK, _THOUGHT = "<think>", "</think>"


class Sentences:
    """Cuts streamed text into sentences: `add` and `end` return those that are complete."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False
        self._thinking = False

    def add(self, text: str) -> list[str]:
        """Sentences that are complete, some of which may not be sayable; the beginning of the next
        one is kept."""
        self._rest += text
        self._skip_thoughts()
        if self._thinking:
            return []
        *whole, self._rest = _BREAK.split(self._rest)
        found = [
            sentence for line in whole for sentence in split_sentences(line, MAX_SENTENCE_CHARS)
        ]
        if self._rest.strip():
            *complete, last = split_sentences(self._rest, MAX_SENTENCE_CHARS)
            found += complete
            self._rest = last + self._rest[len(self._rest.rstrip()) :]
        return found

    def end(self) -> list[str]:
        """What is left."""
        rest, self._rest = self._rest.strip(), ""
        if self._thinking or not rest:
            return []
        return split_sentences(rest, MAX_SENTENCE_CHARS)

    def _skip_thoughts(self) -> None:
        """Some models write their reasoning before the answer; it is not spoken."""
        if not self._begun:
            start = self._rest.lstrip()
            if _THINK.startswith(start[: len(_THINK)]) and len(start) < len(_THINK):
                self._thinking = bool(start)
                return
            self._begun, self._thinking = True, start.startswith(_THINK)
        if self._thinking and _THOUGHT in self._rest:
            self._rest = self._rest.partition(_THOUGHT)[2].lstrip()
            self._thinking = False


def is_sayable(sentence: str) -> bool:
    """Whether it has at least one word."""
    return bool(spoken_text(sentence))


SYSTEM = (
    "You talk with a person through a voice. Answer in one to three short sentences of plain "
    "spoken English: no lists, no markup, no emoji. Write numbers and names as one says them. If "
    "you did not understand, ask."
)
MAX_HISTORY_CHARS = 8000


class Llm:
    """An `Answerer` that asks a chat server. `name`, its model and host, is shown to visitors."""

    def __init__(self, server: ChatServer):
        self._server = server
        self.name = f"{server.model} at {server.host}"

    async def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """As `Answerer.answer`; raises BrainError."""
        sentences, is_first, said, called = Sentences(), True, False, list[ToolCall]()
        async with aclosing(self._server.stream(messages_of(question), question.tools)) as pieces:
            async for piece in pieces:
                if is_first:
                    is_first = False
                    yield Reached("first_token")
                if isinstance(piece, ToolCall):
                    called.append(piece)
                    continue
                for sentence in sentences.add(piece):
                    await asyncio.sleep(0)  # there may be thousands
                    if not is_sayable(sentence):
                        continue
                    if not said:
                        said = True
                        yield Reached("first_sentence")
                    yield Say(sentence, question.speed)
        for sentence in filter(is_sayable, sentences.end()):
            if not said:
                said = True
                yield Reached("first_sentence")
            yield Say(sentence, question.speed)
        for call in called:
            yield call
        if not said and not called:
            raise BrainError(f"{self.name} had nothing to say; ask in other words.")


def messages_of(question: Question) -> list[dict[str, Any]]:
    """The conversation as the server takes it; the oldest turns are left out where it is long."""
    turns = [message_of(message) for message in question.before]
    if question.text:
        turns.append({"role": "user", "content": question.text})
    asked = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
    first = asked[-1] if asked else 0
    history, room = [], MAX_HISTORY_CHARS
    for turn in reversed(turns[:first]):
        room -= len(str(turn["content"])) + len(str(turn.get("tool_calls", "")))
        if room < 0:
            break
        history.append(turn)
    while history and history[-1]["role"] != "user":
        history.pop()
    system = {"role": "system", "content": question.system or SYSTEM}
    return [system, *reversed(history), *turns[first:]]


def message_of(message: Message) -> dict[str, Any]:
    """A turn of words, as the server takes it, with its calls of functions."""
    assert isinstance(message.content, Text)
    value: dict[str, Any] = {"role": message.role, "content": message.content.text}
    if message.call_id:
        value["tool_call_id"] = message.call_id
    if message.calls:
        value["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    return value
