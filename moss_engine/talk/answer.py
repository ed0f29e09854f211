"""What is asked, and what answers are made of."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from moss_engine.api.request import Message, ToolCall, Tools


@dataclass(frozen=True)
class Question:
    """`text` is what was said or typed, empty where the conversation ends with what a function
    gave; `before` are the turns before it, as text, with calls of functions; `system` is the
    visitor's own system prompt or empty, `speed` the speaking rate asked for, and `tools` are
    functions that may be called."""

    text: str
    before: tuple[Message, ...] = ()
    system: str = ""
    session_id: str = ""
    speed: float = 1.0
    tools: Tools | None = None


@dataclass(frozen=True)
class Say:
    """A sentence or some, to be said as they stand."""

    text: str
    speed: float = 1.0


@dataclass(frozen=True)
class Reached:
    """The LLM got so far."""

    stage: Literal["first_token", "first_sentence"]


Part = Say | Reached | ToolCall


class Answerer(Protocol):
    """Used on any event loop, by many at a time."""

    def answer(self, question: Question) -> AsyncGenerator[Part, None]:
        """The parts of an answer as they are known; closing it gives up the rest.

        Raises a MossError where the answer cannot go on.
        """
        ...
