"""Text -> sentences: where a reader would pause. Pure; works on written and on spoken text."""

from __future__ import annotations

import re

from moss_engine.spoken.tables import ABBREVIATIONS, SENTENCE_STARTERS, TITLES

_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*\s+")


def split_sentences(text: str, max_chars: int) -> list[str]:
    """Sentences of `text`, each 1 .. `max_chars` characters, in order and without loss but for the spaces between.

    Works on written and on spoken text. Overlong sentences are cut at a clause mark, else a comma, else a space; text
    without any of them is cut hard. A sentence of a single short word joins the next one.
    """
    assert max_chars >= 1
    pieces = [piece for sentence in _sentences(text) for piece in _cut(sentence, max_chars)]
    joined: list[str] = []
    for piece in pieces:
        if joined and len(joined[-1]) < 8 and len(joined[-1]) + 1 + len(piece) <= max_chars:
            joined[-1] += " " + piece
        else:
            joined.append(piece)
    return joined


def _sentences(text: str) -> list[str]:
    found, start = [], 0
    for m in _SENTENCE_END.finditer(text):
        before, after = text[start : m.start()], text[m.end() :]
        last = before.rsplit(None, 1)[-1].lstrip("(\"'[") if before.strip() else ""
        if m[0].startswith(".") and not m[0].startswith("..") and _is_abbreviation(last, after):
            continue
        found.append(text[start : m.end()].strip())
        start = m.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _is_abbreviation(word: str, after: str) -> bool:
    if word in TITLES or word in ("Dr", "St"):
        return True
    follower = re.match(r"[\w']*", after)
    starts = follower is not None and follower[0] in SENTENCE_STARTERS
    if word in ABBREVIATIONS or re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]", word):
        return not starts
    return bool(re.fullmatch(r"[B-HJ-Z]", word)) and not starts


def _cut(sentence: str, max_chars: int) -> list[str]:
    pieces = []
    while len(sentence) > max_chars:
        head = sentence[: max_chars + 1]
        cut = (
            next((at for marks in (";:", ",", " ") if (at := _last_break(head, marks)) >= max_chars // 3), 0)
            or max_chars
        )
        pieces.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [piece for piece in [*pieces, sentence] if piece]


def _last_break(head: str, marks: str) -> int:
    """Index after the last mark that is followed by a space (or the last space itself), 0 if there is none."""
    if marks == " ":
        return max(head.rfind(" "), 0)
    return max((m.start() + 1 for m in re.finditer(rf"[{marks}] ", head)), default=0)
