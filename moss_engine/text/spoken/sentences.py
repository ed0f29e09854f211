"""Text -> sentences: where a reader would pause. Pure; works on written and on spoken text."""

from __future__ import annotations

import re

from moss_engine.text.spoken.tables import ABBREVIATIONS, SENTENCE_STARTERS, TITLES

_ASKS = re.compile(
    r"(?:(?:and|but|so|well|hey|okay),? )?(?:"
    r"(?:what|where|who|when|why|how|which)(?:'(?:s|re|d|ll)| (?:is|are|was|were|do|does|did|can|"
    r"could|will|would|should|have|has|am))\b"
    r"|(?:is|are|was|were|can|could|will|would|should|does|did|has|am) (?:i|you|he|she|it|we|they|"
    r"there|this|that|these|those|anyone|anybody|the|your|my|his|her|our|their)\b"
    r"|(?:do|have|don't|haven't|isn't|aren't|can't|won't|didn't|doesn't) (?:i|you|we|they)\b)",
    re.I,
)
_SPELT = re.compile(r"(?<![\w'])(?:[B-Z]|(?<=[^.!?] )A) [A-Z]$")
"""The last letters of an acronym as it is said: "T V", but no "A J. Smith"."""
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*\s+")


def split_sentences(text: str, max_chars: int) -> list[str]:
    """Sentences of `text`, each 1 .. `max_chars` characters, in order and without loss but for the
    spaces between.

    Works on written and on spoken text. Overlong sentences are cut at a clause mark, else a comma,
    else a space; text without any of them is cut hard. A sentence of a single short word joins the
    next one.
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


def as_sentence(text: str) -> str:
    """A spoken text as the sentence it stands for, with a capital and a mark at its end, also where
    it was typed without: "what's your name" -> "What's your name?". A part that ends with a comma
    or the like goes on, and keeps it."""
    text = text[:1].upper() + text[1:]
    if not text or text[-1] in ".?!,;:":
        return text
    return text + ("?" if _ASKS.match(text) else ".")


def _sentences(text: str) -> list[str]:
    found, start = [], 0
    for m in _SENTENCE_END.finditer(text):
        before, after = text[start : m.start()], text[m.end() :]
        last = before.rsplit(None, 1)[-1].lstrip("(\"'[") if before.strip() else ""
        is_point = m[0].startswith(".") and not m[0].startswith("..")
        if is_point and not _SPELT.search(before[-5:]) and _is_abbreviation(last, after):
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
            next(
                (
                    at
                    for marks in (";:", ",", " ")
                    if (at := _last_break(head, marks)) >= max_chars // 3
                ),
                0,
            )
            or max_chars
        )
        pieces.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [piece for piece in [*pieces, sentence] if piece]


def _last_break(head: str, marks: str) -> int:
    """Index after the last mark that is followed by a space (or the last space itself), 0 if there
    is none."""
    if marks == " ":
        return max(head.rfind(" "), 0)
    return max((m.start() + 1 for m in re.finditer(rf"[{marks}] ", head)), default=0)
