"""How much of an answer was heard, and is therefore history: its rows and words up to the last
sample that was played."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Reply, Text
from moss_engine.api.tokens import Row, rows_until_code
from moss_engine.api.transcript import Word

CONSONANT_S, VOWEL_S, MUTE_S, SPACE_S = 0.05, 0.08, 0.01, 0.005
"""Estimated seconds of a spoken letter; mute are the h of "th" and the second letter of a pair."""
PAUSE_S, END_S, SLOWER = 0.26, 0.35, 1.8
"""Silence at a mark between words and after the last word, and how many times slower than estimated
words are spoken at most. All were fitted to a recogniser's word times of both built-in voices."""
_MARKS = frozenset(",.;:!?")


@dataclass(eq=False, kw_only=True)
class Answered:
    """An answer: its rows, its words with the sample at which each is spoken, and its number of
    samples. Once `cut` to what was heard, it takes no more."""

    rows: tuple[Row, ...] = ()
    words: list[tuple[int, str]] = field(default_factory=list)
    num_samples: int = 0
    is_cut: bool = False

    @property
    def transcript(self) -> str:
        """The words, as far as there is sound of them."""
        return "".join(text for _, text in self._sounding())

    def _sounding(self) -> list[tuple[int, str]]:
        return [word for word in self.words if not word[0] or word[0] < self.num_samples]

    def cut(self, num_samples: int, info: ServiceInfo) -> None:
        """Only the first `num_samples` were heard; a word counts as heard if half of it was."""
        left = heard_chars(self.words, num_samples, info.sample_rate_hz)
        words, self.words = self.words, []
        for start, text in words:
            if kept := text[: max(0, left)]:
                self.words.append((start, kept))
            left -= len(text)
        self.num_samples, self.is_cut = num_samples, True
        self.rows = rows_until_code(self.rows, info.num_codes(num_samples), info.ids)

    def timed(self, rate_hz: int) -> list[Word]:
        """The words of a complete answer, with their times."""
        words, text = self._sounding(), self.transcript
        places = char_places(words, rate_hz, None if self.is_cut else self.num_samples)
        return [
            Word(m[0], places[m.start()] / rate_hz, places[m.start() + len(m[1])] / rate_hz)
            for m in re.finditer(r"(\S+?)[.,;:?!]*(?!\S)", text)
        ]

    def as_history(self, text: str | None = None, *, through_text: bool) -> Reply | Text | None:
        """As a later request carries it: its rows, or with `through_text` the `text` (None: the
        transcript). None where nothing was heard."""
        if self.rows and not through_text:
            return Reply(self.rows)
        words = (self.transcript if text is None else text).strip()
        return Text(words) if words else None


def heard_chars(words: list[tuple[int, str]], heard: int, rate_hz: int) -> int:
    """How many characters of an answer's words were heard in the first `heard` samples; a word
    counts if half of it was."""
    text = "".join(word for _, word in words)
    places = char_places(words, rate_hz)
    kept = start = 0
    for end in [*(i for i in range(1, len(text)) if text[i].isspace()), len(text)]:
        if places[start] + places[end] > 2 * heard:
            break
        kept = start = end
    return kept


def char_places(words: list[tuple[int, str]], rate_hz: int, end: int | None = None) -> list[float]:
    """The sample at which each character of an answer begins, and the end of the last one. Several
    words may come with one start: they are laid one after the other from there, up to the next
    start, or to the `end` of a complete answer; time that is left goes to their punctuation."""
    starts = sorted({start for start, _ in words})
    ends = [*starts[1:], None if end is None else round(end - END_S * rate_hz)]
    places = [0.0]
    for start, following in zip(starts, ends):
        text = "".join(word for at, word in words if at == start)
        spans = [rate_hz * _said_s(text, at) for at in range(len(text))]
        marks = [at for at, c in enumerate(text.rstrip()[:-1]) if c in _MARKS]
        pause = PAUSE_S * rate_hz
        ends_there = start != starts[-1] and text.rstrip()[-1:] in _MARKS
        if following is not None:
            known, needed = max(0, following - start), max(1.0, sum(spans))
            pause = max(0.0, known - needed) / max(1, len(marks) + ends_there)
            most = 1.0 if marks or ends_there else SLOWER
            spans = [min(most, known / needed) * span for span in spans]
        for at in marks:
            spans[at] += pause
        places[-1:] = list(accumulate(spans, initial=float(start)))
    return places


def _said_s(text: str, at: int) -> float:
    letter, before = text[at].lower(), text[max(0, at - 1) : at].lower()
    if not letter.isalnum():
        return SPACE_S if letter.isspace() else 0.0
    if letter == before or before + letter in ("th", "sh", "ch", "wh", "ph"):
        return MUTE_S
    return VOWEL_S if letter in "aeiouy" else CONSONANT_S
