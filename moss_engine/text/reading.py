"""A text to be read aloud -> the sentences that are spoken one by one, and the pauses between them.
Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from moss_engine.api.modes import Mode, Modes, Pauses
from moss_engine.text.language import said
from moss_engine.text.spoken.sentences import as_sentence, split_sentences

_BLANK_LINE = re.compile(r"\r?\n[^\S\n]*\r?\n\s*")


@dataclass(frozen=True)
class Part:
    """A sentence, or a part of a long one, and the codes of silence that go before it."""

    text: str
    silence: tuple[int, ...] = ()


def parts_to_read(text: str, limits: Modes, mode: Mode, speed: float) -> list[Part]:
    """The parts of a text, each of at most `segment_chars` characters, in order; in their spoken
    form where the mode spells out. A text without anything to say has none."""
    paragraphs = _BLANK_LINE.split(text.strip())
    parts: list[Part] = []
    for paragraph in filter(None, (said(mode, paragraph) for paragraph in paragraphs)):
        sentences = split_sentences(paragraph, limits.segment_chars - 1)
        for index, sentence in enumerate(sentences):
            ends = index + 1 == len(sentences)
            codes = _pause(limits.pauses, speed, opens=not index, before=parts[-1:])
            parts.append(Part(_marked(sentence, ends) if mode.spell_out else sentence, codes))
    return parts


def _marked(sentence: str, ends: bool) -> str:
    """With a mark at its end: what goes on in the next part is no sentence yet."""
    return as_sentence(sentence if ends or sentence[-1] in ".?!,;:" else f"{sentence},")


def _pause(
    pauses: Pauses | None, speed: float, *, opens: bool, before: list[Part]
) -> tuple[int, ...]:
    """The silence before a part that `opens` a paragraph or not. Between the parts of one sentence
    there is none but that of its marks; who speaks fast pauses less."""
    if pauses is None or not before or not (opens or before[0].text[-1] in ".?!"):
        return ()
    codes = pauses.paragraph if opens else pauses.sentence
    return (pauses.code,) * round(codes / max(1.0, speed))
