"""Streamed text -> sentences to be said, each as soon as it is complete. Pure."""

from __future__ import annotations

import re

from moss_engine.text.spoken.sentences import split_sentences
from moss_engine.text.spoken.text import spoken_text

MAX_CHARS = 220
"""A sentence without an end is said in pieces of this length, so that no one waits for it."""
_BREAK = re.compile(r"\n+")
_THINK, _THOUGHT = "<think>", "</think>"


class Sentences:
    """`add` what was streamed, and `end` it; both give the sentences that are complete by then."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False
        self._thinking = False

    def add(self, text: str) -> list[str]:
        """Sentences that are complete; the beginning of the next one is kept."""
        self._rest += text
        self._skip_thoughts()
        if self._thinking:
            return []
        *whole, self._rest = _BREAK.split(self._rest)
        found = [sentence for line in whole for sentence in split_sentences(line, MAX_CHARS)]
        if self._rest.strip():
            *complete, last = split_sentences(self._rest, MAX_CHARS)
            found += complete
            self._rest = last + self._rest[len(self._rest.rstrip()) :]
        return [sentence for sentence in found if is_sayable(sentence)]

    def end(self) -> list[str]:
        """What is left."""
        rest, self._rest = self._rest.strip(), ""
        if self._thinking or not rest:
            return []
        return [sentence for sentence in split_sentences(rest, MAX_CHARS) if is_sayable(sentence)]

    def _skip_thoughts(self) -> None:
        """Some models think aloud before they answer; that is not said."""
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
    """Whether there is a word in it."""
    return bool(spoken_text(sentence))
