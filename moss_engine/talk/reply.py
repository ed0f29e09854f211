"""The parts of an answer as one reply: their events, and their text as it was written."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from moss_engine.api.events import (
    Accepted,
    AudioChunk,
    Event,
    Finished,
    Sampled,
    Started,
    TextDelta,
)
from moss_engine.text.spoken.signs import unwrapped
from moss_engine.text.spoken.text import spoken_text

if TYPE_CHECKING:
    from moss_engine.api.tokens import Row


class Joined:
    """Joins the events of parts into those of one reply. `samples` and `rows` are those of all
    parts so far, `num_rows` counts what was sampled."""

    def __init__(self, request_id: str):
        self.request_id = request_id
        self.samples = 0
        self.rows: tuple[Row, ...] = ()
        self.num_rows = 0
        self.begin_sample = 0  # of the part that is said now
        self._begin_s = 0.0
        self._begin_row = 0
        self._begin_held_s = self._held_s = 0.0
        self._prompt_rows = 0  # of the part that is said now
        self._started = False
        self._worded = False  # words were said
        self._fresh = False  # the part that is said now has said none yet
        self.writing = Writing("")  # of the part that is said now

    def begin(self, now_s: float) -> None:
        """The next part begins so many seconds after the reply was accepted."""
        self._begin_s, self._begin_row = now_s, self.num_rows
        self.begin_sample, self._begin_held_s = self.samples, self._held_s
        self._fresh = True

    def take(self, event: Event) -> Event | None:
        """An event of the current part as one of the reply; None where it is no news to the
        listener. `Finished` and `Failed` are returned as the part's own."""
        self.num_rows = self._begin_row + event.num_rows
        changes = {
            "request_id": self.request_id,
            "time_s": self._begin_s + event.time_s,
            "num_rows": self.num_rows,
        }
        if isinstance(event, Accepted):
            self._prompt_rows = event.num_prompt_rows
            return None
        if isinstance(event, Started):
            if self._started:
                return None
            self._started = True
            changes["num_prompt_rows"] = self._prompt_rows
        if isinstance(event, Finished):
            self.rows += event.rows
        if isinstance(event, Sampled | AudioChunk):
            self._held_s = self._begin_held_s + event.held_s
            changes["held_s"] = self._held_s
        if isinstance(event, AudioChunk):
            changes["start_sample"] = self.begin_sample + event.start_sample
            self.samples = changes["start_sample"] + len(event.samples)
        if isinstance(event, TextDelta):
            changes["start_sample"] = self.begin_sample + event.start_sample
            if not (text := self.writing.take(event.text)):
                return None
            changes["text"] = self._apart(text)
        return dataclasses.replace(event, **changes)

    def written(self, text: str, now_s: float) -> list[Event]:
        """The events of a part that is only read, not spoken."""
        start = [] if self._started else [Started(self.request_id, now_s, self.num_rows, 0)]
        self._started, self._fresh = True, True
        return [*start, TextDelta(self.request_id, now_s, self.num_rows, self._apart(text), 0)]

    def _apart(self, text: str) -> str:
        """The text of a part, with a space before it where another part precedes it."""
        space = self._worded and self._fresh and not text.startswith(" ")
        self._worded, self._fresh = True, False
        return f" {text}" if space else text


MOST_APART = 40
"""How many spoken or written words an amount, an address and the like may span: the search for
where both agree again goes no further, as it runs on the event loop of all listeners."""


class Writing:
    """Turns the words of a voice back into the `text` that it was given to read: "three
    thirty-eight P M" is shown as "3:38 PM". Words that are not found there are shown as spoken, and
    markup is left out."""

    def __init__(self, text: str):
        given, self._said = _with_signs(unwrapped(text).split()), spoken_text(text).split()
        words, heard = _plain(given), _plain(self._said)
        # For each word that is said; empty where the writing before it stands for it, too.
        self._shown: list[str] = []
        at = 0
        while len(self._shown) < len(heard):
            skipped, last = _meeting(words, at, heard, len(self._shown))
            if last:
                self._shown += [" ".join(given[at : at + skipped]), *[""] * (last - 1)]
            at += skipped
            if len(self._shown) < len(heard):
                self._shown.append(given[at])
                at += 1
        self._at, self._word, self._space = -1, "", ""

    def take(self, text: str) -> str:
        """What is shown for the next spoken words, or pieces of words."""
        shown = ""
        for piece in re.findall(r"\s+|\S+", text):
            if piece.isspace():
                self._word, self._space = "", piece
                continue
            begins = not self._word
            self._at += begins
            self._word += piece
            if not self._is_said(self._word.rstrip(",.?").lower()):
                self._shown = []
            else:
                piece = self._shown[self._at] if begins else ""
            if piece:
                shown += self._space + piece
                self._space = ""
        return shown

    def _is_said(self, word: str) -> bool:
        """Whether the current word begins like this; capitals and punctuation may differ."""
        return self._at < len(self._shown) and self._said[self._at].lower().startswith(word)


def _with_signs(words: list[str]) -> list[str]:
    """Join emoji, dashes and the like to the word before them."""
    joined: list[str] = []
    for word in words:
        if joined and not any(map(str.isalnum, word)):
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def _plain(words: list[str]) -> list[str]:
    return [word.split()[0].strip(".,!?;:()\"'").lower() for word in words]


def _meeting(one: list[str], at: int, other: list[str], at_other: int) -> tuple[int, int]:
    """How many words to skip in each list until both agree or end: as few as possible, and no more
    than MOST_APART; then the rest of the second stands for the rest of the first."""
    left, left_other = len(one) - at, len(other) - at_other
    for apart in range(MOST_APART + 1):
        for skipped in range(max(0, apart - left_other), min(apart, left) + 1):
            ends = skipped == left, apart - skipped == left_other
            if all(ends):
                return skipped, apart - skipped
            if not any(ends) and one[at + skipped] == other[at_other + apart - skipped]:
                return skipped, apart - skipped
    return left, left_other
