"""What is asked, and what answers are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from moss_engine.api.request import Message, ToolCall, Tools


@dataclass(frozen=True)
class Question:
    """What is asked. `text` was said or typed, and is empty where the conversation ends with a
    function's result; `before` are the earlier turns as text, with calls of functions; `system` is
    the visitor's own system prompt or empty, `speed` the speaking rate asked for, `tools` the
    functions that may be called."""

    text: str
    before: tuple[Message, ...] = ()
    system: str = ""
    session_id: str = ""
    speed: float = 1.0
    tools: Tools | None = None


@dataclass(frozen=True)
class Say:
    """One or more sentences, to be spoken as they stand."""

    text: str
    speed: float = 1.0


@dataclass(frozen=True)
class Reached:
    """The chat server has sent its first token, or its first whole sentence."""

    stage: Literal["first_token", "first_sentence"]


Part = Say | Reached | ToolCall


class Answerer(Protocol):
    """Makes the texts of answers; used on any event loop, for many questions at a time."""

    def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """The parts of an answer, as soon as each is known; closing the generator gives up the
        rest.

        Raises a MossError where the answer cannot go on.
        """
        ...
