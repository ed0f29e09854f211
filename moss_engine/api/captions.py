"""Words with their times as captions: SubRip and WebVTT."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from moss_engine.api.transcript import Word

MAX_CHARS, MAX_S, PAUSE_S = 84, 7.0, 0.8
"""Most characters and seconds of a caption, and the pause that ends one."""
ENDS = (".", "?", "!", "\u2026", "\u3002", "\uff1f", "\uff01")


@dataclass(frozen=True)
class Caption:
    start_s: float
    end_s: float
    text: str


def captions(words: Sequence[Word]) -> list[Caption]:
    """One caption for each sentence, or for each part of a long one."""
    found: list[Caption] = []
    ended = True
    for word in words:
        last = found[-1] if found else None
        if (
            ended
            or last is None
            or word.start_s - last.end_s > PAUSE_S
            or word.end_s - last.start_s > MAX_S
            or len(last.text) + 1 + len(word.text) > MAX_CHARS
        ):
            found.append(Caption(word.start_s, word.end_s, word.text))
        else:
            found[-1] = Caption(last.start_s, word.end_s, f"{last.text} {word.text}")
        ended = word.text.endswith(ENDS)
    return found


def srt(found: Sequence[Caption]) -> str:
    """A SubRip file."""
    return "".join(
        f"{number}\n{_clock(c.start_s, ',')} --> {_clock(c.end_s, ',')}\n{c.text}\n\n"
        for number, c in enumerate(found, 1)
    )


def vtt(found: Sequence[Caption]) -> str:
    """A WebVTT file."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(c.start_s, '.')} --> {_clock(c.end_s, '.')}\n{html.escape(c.text, False)}\n\n"
        for c in found
    )


def _clock(seconds: float, mark: str) -> str:
    """3661.5 -> 01:01:01,500"""
    minutes, ms = divmod(round(1000 * seconds), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}{mark}{ms % 1000:03d}"
