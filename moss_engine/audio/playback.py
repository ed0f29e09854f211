"""How much of an answer was heard, and so is history: its rows and words up to the last sample that
reached the ear."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from moss_engine.api.info import ServiceInfo
from moss_engine.api.request import Reply, Text
from moss_engine.api.tokens import Row, rows_until_code

LETTER_S, SPACE = 0.055, 0.05
"""How long a letter is said, and what a space has of that. Measured against a recogniser, for both
built-in voices: 41 ms is the median error of where a word begins."""


@dataclass(eq=False, kw_only=True)
class Answered:
    """An answer: its rows, its words with the first sample that they are spoken at, and how many
    samples there are of it. It was `cut`: not all of it was heard, and nothing is added."""

    rows: tuple[Row, ...] = ()
    words: list[tuple[int, str]] = field(default_factory=list)
    num_samples: int = 0
    is_cut: bool = False

    @property
    def transcript(self) -> str:
        """The words, as far as there is sound of them."""
        return "".join(text for start, text in self.words if not start or start < self.num_samples)

    def cut(self, num_samples: int, info: ServiceInfo) -> None:
        """Only the first `num_samples` were heard, and words of which they hold the half."""
        left = heard_chars(self.words, num_samples, info.sample_rate_hz)
        words, self.words = self.words, []
        for start, text in words:
            if kept := text[: max(0, left)]:
                self.words.append((start, kept))
            left -= len(text)
        self.num_samples, self.is_cut = num_samples, True
        self.rows = rows_until_code(self.rows, info.num_codes(num_samples), info.ids)

    def as_history(self, text: str | None = None, *, through_text: bool) -> Reply | Text | None:
        """As a later request tells it: by rows, or by `text` (None: the transcript); None where
        nothing of it was heard."""
        if self.rows and not through_text:
            return Reply(self.rows)
        words = (self.transcript if text is None else text).strip()
        return Text(words) if words else None


def heard_chars(words: list[tuple[int, str]], heard: int, rate_hz: int) -> int:
    """How many characters of an answer's words were heard within `heard` samples: whole words, of
    which half or more was."""
    text = "".join(word for _, word in words)
    places = char_places(words, rate_hz)
    kept = start = 0
    for end in [*(i for i in range(1, len(text)) if text[i].isspace()), len(text)]:
        if places[start] + places[end] > 2 * heard:
            break
        kept = start = end
    return kept


def char_places(words: list[tuple[int, str]], rate_hz: int) -> list[float]:
    """The sample at which each character of an answer's words begins, and the last one's end. Some
    words come at a place: they are said one after the other, at the latest until the next place."""
    starts = sorted({start for start, _ in words})
    places = [0.0]
    for start, following in zip(starts, [*starts[1:], None]):
        text = "".join(word for at, word in words if at == start)
        weights = [SPACE if c.isspace() else float(c.isalnum()) for c in text]
        step = LETTER_S * rate_hz
        if following is not None:
            step = min(step, (following - start) / max(1.0, sum(weights)))
        places[-1:] = [start + step * at for at in accumulate(weights, initial=0.0)]
    return places
